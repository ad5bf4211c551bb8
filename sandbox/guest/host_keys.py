"""The keys by which a guest's SSH server is known."""

from __future__ import annotations

import logging

import asyncssh

from gpuinfra.sandbox.guest.disk import Disk, write_whole

logger = logging.getLogger(__name__)

# In the order that OpenSSH offers them.
_KINDS = ("rsa", "ecdsa", "ed25519")


def host_keys(disk: Disk) -> list[asyncssh.SSHKey]:
    """The keys on the disk; where there is none, one is made and kept."""
    keys = []
    for kind in _KINDS:
        file = disk.root / "etc" / "ssh" / f"ssh_host_{kind}_key"
        try:
            keys.append(asyncssh.import_private_key(file.read_bytes()))
        except FileNotFoundError:
            continue
        except asyncssh.KeyImportError as error:
            logger.warning("%s is no host key: %s", file, error)
    return keys or [_make(disk)]


def _make(disk: Disk) -> asyncssh.SSHKey:
    key = asyncssh.generate_private_key("ssh-ed25519", comment="root@simulated")
    file = disk.root / "etc" / "ssh" / "ssh_host_ed25519_key"
    write_whole(file, key.export_private_key(), 0o600)
    write_whole(file.with_suffix(".pub"), key.export_public_key())
    return key
