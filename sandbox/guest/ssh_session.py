"""One SSH session of a guest: a command, a shell or a file transfer."""

import os
from collections.abc import Callable
from typing import cast

import asyncssh
from asyncssh.channel import SSHChannel
from asyncssh.session import DataType
from asyncssh.stream import SSHServerStreamSession

from gpuinfra.sandbox.guest.disk import Disk
from gpuinfra.sandbox.guest.ssh_process import Program


class GuestFiles(asyncssh.SFTPServer):
    """An SFTP server whose relative paths start at home and whose absolute ones start at the guest's root."""

    def __init__(self, channel: SSHChannel[bytes], disk: Disk) -> None:
        super().__init__(cast("asyncssh.SSHServerChannel[bytes]", channel), chroot=os.fsencode(disk.root))
        self._disk = disk

    def map_path(self, path: bytes) -> bytes:
        return os.fsencode(self._disk.place(os.fsdecode(path)))

    def reverse_map_path(self, path: bytes) -> bytes:
        """Return a host path as the client sees it; for a link that leads out of the guest, its text."""
        root = os.fsencode(self._disk.root)
        return (path[len(root) :] or b"/") if path == root or path.startswith(root + b"/") else path

    def exit(self) -> None:
        """Report success: OpenSSH's scp treats a session without exit code as a failure."""
        if self.channel.get_subsystem() == "sftp":
            self.channel.exit(0)


# The version that OpenSSH uses.
_SFTP_VERSION = 3
# Starts the program of a session.
ProgramFactory = Callable[[asyncssh.SSHServerChannel[bytes]], Program]


class GuestSession(SSHServerStreamSession[bytes]):
    """Connects a session to a program; SFTP and SCP are asyncssh's own, on the guest's files."""

    def __init__(self, disk: Disk, start_program: ProgramFactory) -> None:
        super().__init__(None, lambda channel: GuestFiles(channel, disk), _SFTP_VERSION, allow_scp=True)
        self._start_program = start_program
        self._channel: asyncssh.SSHServerChannel[bytes] | None = None
        self._program: Program | None = None

    def connection_made(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:  # type: ignore[override]
        super().connection_made(chan)
        self._channel = chan

    def pty_requested(self, term_type: str, term_size: object, term_modes: object) -> bool:
        del term_type, term_size, term_modes
        return True

    def shell_requested(self) -> bool:
        return True

    def exec_requested(self, command: str) -> bool:
        del command
        return True

    def subsystem_requested(self, subsystem: str) -> bool:
        return subsystem == "sftp"

    def session_started(self) -> None:
        channel = self._channel
        if channel is None:
            return
        command = channel.get_command()
        if channel.get_subsystem() == "sftp" or (command is not None and command.startswith("scp ")):
            super().session_started()
        else:
            self._program = self._start_program(channel)

    def data_received(self, data: bytes, datatype: DataType) -> None:
        if self._program:
            self._program.feed(data)
        else:
            super().data_received(data, datatype)

    def eof_received(self) -> bool:
        """Pass the end of input to the program; the channel stays open for output."""
        if self._program:
            self._program.feed_end()
            return True
        return super().eof_received()

    def signal_received(self, signal: str) -> None:
        if self._program:
            self._program.deliver(signal)

    def break_received(self, msec: int) -> bool:
        del msec
        return False

    def terminal_size_changed(self, width: int, height: int, pixwidth: int, pixheight: int) -> None:
        if self._program:
            self._program.resize(width, height, pixwidth, pixheight)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._program:
            self._program.pause()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._program:
            self._program.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._program:
            self._program.hang_up()
