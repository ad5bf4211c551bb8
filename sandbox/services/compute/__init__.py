"""Microsoft.Compute: virtual machines, disks, images, sizes and quota."""
