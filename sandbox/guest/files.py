"""SFTP and SCP for a guest: its own paths, never the host's."""

from __future__ import annotations

import os
from typing import cast

import asyncssh
from asyncssh.channel import SSHChannel

from gpuinfra.sandbox.guest.disk import Disk


class GuestFiles(asyncssh.SFTPServer):
    """A file server whose relative paths start at home and whose absolute ones start at the guest's root."""

    def __init__(self, channel: SSHChannel[bytes], disk: Disk) -> None:
        super().__init__(cast("asyncssh.SSHServerChannel[bytes]", channel), chroot=os.fsencode(disk.root))
        self._disk = disk

    def map_path(self, path: bytes) -> bytes:
        """Where the client's path is on the host."""
        return os.fsencode(self._disk.place(os.fsdecode(path)))

    def reverse_map_path(self, path: bytes) -> bytes:
        """What the client is told of a path on the host; where a link leads out of the guest, its text."""
        root = os.fsencode(self._disk.root)
        return (path[len(root) :] or b"/") if path == root or path.startswith(root + b"/") else path

    def exit(self) -> None:
        """Say that all went well: OpenSSH's scp takes a session without exit code for a failure."""
        if self.channel.get_subsystem() == "sftp":
            self.channel.exit(0)
