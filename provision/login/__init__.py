"""How one gets into a machine: keys, its first boot, and where the caller comes from."""
