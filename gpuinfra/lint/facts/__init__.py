"""Facts about public images, packages and wheels, with their sources."""
