"""Docker Engines, on this computer or on a machine over our connection."""
