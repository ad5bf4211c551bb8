"""What is wrong with a project before it runs: rules over its files, and edits that mend them in place.

`rules` lists the rules, one file a family; `facts` has what is known of others' images and packages; `fix` writes.
"""
