"""The guest agent: a service on the machine that deallocates its own VM when nothing needs it.

It is sent as one archive (`provision.login`) of these modules and `run_folder`, and needs nothing but
Python 3.8 or newer and its standard library. Times are seconds since 1970 by Azure's clock; files and jobs use the
guest's clock.
"""
