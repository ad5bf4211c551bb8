"""Jobs: what runs on a target, in a container or as a process of its own, and how it is followed to its end."""
