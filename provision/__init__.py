"""Create a machine in Azure from a Spec, and remove it. Never imports `runner`: `Target` connects the two."""
