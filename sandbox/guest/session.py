"""One SSH session of a guest: a command, a shell or a file transfer."""

from __future__ import annotations

from collections.abc import Callable

import asyncssh
from asyncssh.session import DataType
from asyncssh.stream import SSHServerStreamSession

from gpuinfra.sandbox.guest.disk import Disk
from gpuinfra.sandbox.guest.files import GuestFiles
from gpuinfra.sandbox.guest.program import Program

# What OpenSSH speaks.
_SFTP_VERSION = 3
# What starts a program for a session whose request is known.
ProgramFactory = Callable[[asyncssh.SSHServerChannel[bytes]], Program]


class GuestSession(SSHServerStreamSession[bytes]):
    """Passes what the client asks for to a program; SFTP and SCP are the library's own, on the guest's files."""

    def __init__(self, disk: Disk, start_program: ProgramFactory) -> None:
        super().__init__(None, lambda channel: GuestFiles(channel, disk), _SFTP_VERSION, allow_scp=True)
        self._start_program = start_program
        self._channel: asyncssh.SSHServerChannel[bytes] | None = None
        self._program: Program | None = None

    def connection_made(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:  # type: ignore[override]
        """Remember the channel."""
        super().connection_made(chan)
        self._channel = chan

    def pty_requested(self, term_type: str, term_size: object, term_modes: object) -> bool:
        """Whether there may be a terminal: always."""
        del term_type, term_size, term_modes
        return True

    def shell_requested(self) -> bool:
        """Whether there may be a shell: always."""
        return True

    def exec_requested(self, command: str) -> bool:
        """Whether there may be a command: any."""
        del command
        return True

    def subsystem_requested(self, subsystem: str) -> bool:
        """Whether there may be a subsystem: file transfer."""
        return subsystem == "sftp"

    def session_started(self) -> None:
        """Start what was asked for."""
        channel = self._channel
        if channel is None:
            return
        command = channel.get_command()
        if channel.get_subsystem() == "sftp" or (command is not None and command.startswith("scp ")):
            super().session_started()
        else:
            self._program = self._start_program(channel)

    def data_received(self, data: bytes, datatype: DataType) -> None:
        """Input for the program."""
        if self._program:
            self._program.feed(data)
        else:
            super().data_received(data, datatype)

    def eof_received(self) -> bool:
        """No more input; the channel stays open for the output."""
        if self._program:
            self._program.feed_end()
            return True
        return super().eof_received()

    def signal_received(self, signal: str) -> None:
        """A signal for the program, by its name without SIG."""
        if self._program:
            self._program.deliver(signal)

    def break_received(self, msec: int) -> bool:
        """A serial line's break, which no program here expects."""
        del msec
        return False

    def terminal_size_changed(self, width: int, height: int, pixwidth: int, pixheight: int) -> None:
        """The client's window has another size."""
        if self._program:
            self._program.resize(width, height, pixwidth, pixheight)

    def pause_writing(self) -> None:
        """The client reads slower than the program writes."""
        super().pause_writing()
        if self._program:
            self._program.pause()

    def resume_writing(self) -> None:
        """The client has caught up."""
        super().resume_writing()
        if self._program:
            self._program.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        """The channel is closed, by whichever side."""
        super().connection_lost(exc)
        if self._program:
            self._program.hang_up()
