"""Docker Engines: one on this computer, or one that is reached over our own connection."""
