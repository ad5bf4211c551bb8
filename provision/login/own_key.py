"""Create an SSH key for a user who has none."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from gpuinfra.models.keys import OWN_KEY
from gpuinfra.provision.login.host_key import new_host_key


def create_own_key() -> Path:
    """Create the key pair, mode 0600 in a folder of mode 0700, unless it exists. Return the private key's path."""
    public = Path(OWN_KEY).expanduser()
    private = public.with_suffix("")
    private.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    private.parent.mkdir(mode=0o700, exist_ok=True)
    private.parent.chmod(0o700)
    _write_new(private, new_host_key().private.encode("ascii"))
    _write_new(public, f"{_public_half(private)} gpuinfra\n".encode("ascii"))
    return private


def _public_half(private: Path) -> str:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_ssh_private_key(private.read_bytes(), None).public_key()
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode("ascii")


def _write_new(path: Path, content: bytes) -> None:
    """Write a complete file that only the user can read, unless it exists."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        # Unlike a rename, a link never replaces a file that another process has just created.
        with contextlib.suppress(FileExistsError):
            os.link(name, path)
    finally:
        Path(name).unlink()
