"""Microsoft.Compute: machines, disks, and what is on offer."""
