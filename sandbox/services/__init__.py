"""What ARM's resource providers answer: one folder per provider, one file per kind of resource; see `registry`."""
