"""Microsoft.Network: virtual networks, network security groups, public IPs, NICs."""
