"""The files of an Azure ML Workbench project: compute targets, run configurations, conda environments.

`compute`, `runconfig` and `conda` read one kind of file each, `project` finds them in a folder, `targets` writes them.
"""
