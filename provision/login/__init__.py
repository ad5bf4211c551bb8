"""Access to a machine: SSH keys, the first boot, and the caller's own address."""
