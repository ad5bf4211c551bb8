"""Microsoft.Network: networks, security groups, addresses, interfaces."""
