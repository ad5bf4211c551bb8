"""The embedded Azure: an independent server on loopback. It imports no other package of gpuinfra."""
