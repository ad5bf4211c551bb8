"""The far side: what runs on the machine that jobs are sent to.

Its modules travel there as text for each call (`runner.far` sends them) and need nothing but Python 3.8 or newer and
its standard library. They import nothing of ours but each other.
"""
