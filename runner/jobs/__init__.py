"""Start, follow and end jobs on a target, in a container or as a process."""
