"""Generate host keys for new machines."""

from __future__ import annotations

from gpuinfra.provision.plan_input import HostKey


def new_host_key() -> HostKey:
    """Return a new Ed25519 key. The private half exists only in memory until Azure has it."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return HostKey(public.decode("ascii"), private.decode("ascii"))
