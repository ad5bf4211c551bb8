"""A process behind an SSH channel, connected by pipes or by a terminal."""

import asyncio
import contextlib
import fcntl
import logging
import os
import pty
import signal
import struct
import termios
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import asyncssh

logger = logging.getLogger(__name__)

# A terminal ends with its shell; remaining output is read for at most this long.
_TERMINAL_DRAIN_SECONDS = 0.5
_EXEC_FAILED = 255


@dataclass(frozen=True)
class Launch:
    """What to start, and the terminal size if it has a terminal."""

    command: Sequence[str]
    environment: Mapping[str, str]
    folder: Path
    terminal_size: tuple[int, int, int, int] | None


class _Output(asyncio.Protocol):
    """Sends one stream of the program to the client."""

    def __init__(self, channel: asyncssh.SSHServerChannel[bytes], datatype: int | None) -> None:
        self._channel = channel
        self._datatype = datatype
        self.ended = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        # A client that closed its side does not need the rest; the program gets SIGHUP.
        with contextlib.suppress(BrokenPipeError):
            self._channel.write(data, self._datatype)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        # A terminal without any open descriptor returns EIO, which is its end of file.
        if not self.ended.done():
            self.ended.set_result(None)


class _Input(asyncio.BaseProtocol):
    """The program's input; if the program does not read, the client has to wait."""

    def __init__(self, channel: asyncssh.SSHServerChannel[bytes]) -> None:
        self._channel = channel

    def pause_writing(self) -> None:
        self._channel.pause_reading()

    def resume_writing(self) -> None:
        # Not at once: asyncio's pipe calls this during a write, and data that the channel delivers then, above all the
        # end of the input, would make it close with data left.
        asyncio.get_running_loop().call_soon(self._channel.resume_reading)


class Program:
    """A process whose streams are connected to a channel. It starts at once; `finished` is done when all has ended."""

    def __init__(self, channel: asyncssh.SSHServerChannel[bytes], launch: Launch) -> None:
        self._channel = channel
        self._launch = launch
        self._process: asyncio.subprocess.Process | None = None
        self._input: asyncio.WriteTransport | None = None
        self._outputs: list[asyncio.ReadTransport] = []
        self._terminal: int | None = None
        self._early: list[bytes] = []
        self._input_ended = False
        self._paused = False
        self._hung_up = False
        self.finished = asyncio.get_running_loop().create_task(self._run())

    # Called for the client

    def feed(self, data: bytes) -> None:
        """Pass input to the process; input that arrives before the process exists is kept for it."""
        if self._input is None:
            self._early.append(data)
        elif not self._input.is_closing():
            self._input.write(data)

    def feed_end(self) -> None:
        """Pass end of file. A terminal has none: there the client types a character."""
        self._input_ended = True
        if self._input is not None and self._terminal is None and not self._input.is_closing():
            self._input.write_eof()

    def deliver(self, name: str) -> None:
        """Send a signal to the foreground process group."""
        number = getattr(signal.Signals, f"SIG{name}", None)
        if number is None:
            logger.warning("the client sent an unknown signal: %s", name)
        else:
            self._send(number)

    def resize(self, width: int, height: int, pixel_width: int, pixel_height: int) -> None:
        """Set the terminal's window size; the kernel notifies the program."""
        if self._terminal is not None:
            size = struct.pack("HHHH", *(min(value, 0xFFFF) for value in (height, width, pixel_width, pixel_height)))
            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, size)

    def pause(self) -> None:
        self._paused = True
        for output in self._outputs:
            if not output.is_closing():
                output.pause_reading()

    def resume(self) -> None:
        self._paused = False
        for output in self._outputs:
            if not output.is_closing():
                output.resume_reading()

    def hang_up(self) -> None:
        """Handle the client's disconnect as sshd does: SIGHUP for the foreground group; detached processes continue."""
        if not self._hung_up:
            self._hung_up = True
            self._send(signal.SIGHUP)
            self._close()

    # The process

    async def _run(self) -> None:
        try:
            ends = await (self._start_by_pipes() if self._launch.terminal_size is None else self._start_at_terminal())
        except OSError as error:
            self._fail(error)
            return
        process = self._process
        if process is None:
            return
        if self._hung_up:
            self._send(signal.SIGHUP)
        # Neither a command nor a background child that holds its pipes has a time limit: sshd waits for both until the
        # client hangs up or the VM powers off. It does not wait for a child that holds a terminal.
        code = await process.wait()
        await asyncio.wait(ends, timeout=None if self._launch.terminal_size is None else _TERMINAL_DRAIN_SECONDS)
        self._close()
        self._report(code)

    async def _start_by_pipes(self) -> list[asyncio.Future[None]]:
        (input_end, input_side), (output_side, output_end), (error_side, error_end) = os.pipe(), os.pipe(), os.pipe()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._launch.command,
                stdin=input_end,
                stdout=output_end,
                stderr=error_end,
                env=self._launch.environment,
                cwd=self._launch.folder,
                start_new_session=True,
            )
        except BaseException:
            for descriptor in (input_side, output_side, error_side):
                os.close(descriptor)
            raise
        finally:
            for descriptor in (input_end, output_end, error_end):
                os.close(descriptor)
        ends = [
            await self._read(output_side, None),
            await self._read(error_side, asyncssh.EXTENDED_DATA_STDERR),
        ]
        await self._write(input_side)
        return ends

    async def _start_at_terminal(self) -> list[asyncio.Future[None]]:
        self._terminal, inner = pty.openpty()
        try:
            self.resize(*(self._launch.terminal_size or (0, 0, 0, 0)))
            # `setsid --ctty` makes it the controlling terminal, for which Python would need code between fork and exec.
            self._process = await asyncio.create_subprocess_exec(
                *("setsid", "--ctty", *self._launch.command),
                stdin=inner,
                stdout=inner,
                stderr=inner,
                env={**self._launch.environment, "SSH_TTY": os.ttyname(inner)},
                cwd=self._launch.folder,
            )
        except BaseException:
            os.close(self._terminal)
            self._terminal = None
            raise
        finally:
            os.close(inner)
        ends = [await self._read(os.dup(self._terminal), None)]
        await self._write(os.dup(self._terminal))
        return ends

    async def _read(self, descriptor: int, datatype: int | None) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        transport, output = await loop.connect_read_pipe(
            lambda: _Output(self._channel, datatype), os.fdopen(descriptor, "rb", buffering=0)
        )
        self._outputs.append(transport)
        if self._paused:
            transport.pause_reading()
        if self._hung_up:
            transport.close()
        return output.ended

    async def _write(self, descriptor: int) -> None:
        loop = asyncio.get_running_loop()
        self._input, _ = await loop.connect_write_pipe(
            lambda: _Input(self._channel), os.fdopen(descriptor, "wb", buffering=0)
        )
        for data in self._early:
            self._input.write(data)
        self._early.clear()
        if self._input_ended:
            self.feed_end()
        if self._hung_up:
            self._input.abort()

    def _send(self, number: signal.Signals) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        # The group may be gone before its exit is known here.
        with contextlib.suppress(ProcessLookupError, OSError):
            group = process.pid if self._terminal is None else os.tcgetpgrp(self._terminal)
            os.killpg(group or process.pid, number)

    def _close(self) -> None:
        # One that is closing by itself must not be ended twice, unless it waits for a reader that is gone.
        if self._input is not None and (not self._input.is_closing() or self._input.get_write_buffer_size()):
            self._input.abort()
        for output in self._outputs:
            output.close()
        if self._terminal is not None:
            os.close(self._terminal)
            self._terminal = None

    def _report(self, code: int) -> None:
        if self._channel.is_closing():
            return
        if code < 0:
            self._channel.exit_with_signal(_signal_name(-code))
        else:
            self._channel.write_eof()  # as OpenSSH does: without it, a client may take the end for a lost connection
            self._channel.exit(code)

    def _fail(self, error: OSError) -> None:
        logger.warning("a session could not start: %s", error)
        if not self._channel.is_closing():
            self._channel.write_stderr(f"{error}\n".encode())
            self._channel.exit(_EXEC_FAILED)


def _signal_name(number: int) -> str:
    """Return the name that SSH uses; real-time signals have none there."""
    try:
        return signal.Signals(number).name.removeprefix("SIG")
    except ValueError:
        return str(number)
