"""The embedded Azure, an outsider on loopback. Imports nothing of the other packages."""
