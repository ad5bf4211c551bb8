"""Check a project's files before jobs run, and fix them in place.

`rules` lists the rules, with one file per family; `facts` describes public images and packages; `fix` writes files.
"""
