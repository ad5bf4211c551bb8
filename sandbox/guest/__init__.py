"""What is inside a simulated virtual machine: a disk, processes, services and an SSH server that really answer."""
