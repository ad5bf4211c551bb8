"""What is inside a simulated VM: a disk, processes, services, and an SSH server that really answers."""
