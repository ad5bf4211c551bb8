"""Forward ports of this computer's loopback interface to a machine, through its SSH connection."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Protocol, Self

from gpuinfra.runner.connection.port import CHUNK
from gpuinfra.runner.errors import ConnectError
from gpuinfra.runner.progress import in_thread

# A child of the program's logger, so that `--verbose` shows it.
logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
BACKLOG = 64


class Tunnel(Protocol):
    """A connection to a port of the machine. Its methods are those of a socket, and raise OSError."""

    def recv(self, size: int, /) -> bytes:
        """Return data, or nothing at the end."""

    def sendall(self, data: bytes, /) -> None:
        """Send all data."""

    def shutdown(self, how: int, /) -> None:
        """Tell the other side that no more data follows."""

    def close(self) -> None:
        """Close the connection, which ends waits in other threads."""


class PortForward:
    """A local port that leads to a machine while this context is open. Each connection opens a tunnel of its own."""

    def __init__(self, open_tunnel: Callable[[], Tunnel], port: int, *, is_only: bool = True) -> None:
        """Listen on `port`, or, unless it `is_only`, on any free one if that is in use. Raises OSError."""
        self._open_tunnel = open_tunnel
        self._listener = socket.socket()
        try:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                self._listener.bind((LOOPBACK, port))
            except OSError:
                if is_only:
                    raise
                self._listener.bind((LOOPBACK, 0))
            self._listener.listen(BACKLOG)
        except OSError:
            self._listener.close()
            raise
        self.port: int = self._listener.getsockname()[1]

    @property
    def address(self) -> str:
        """The local address, such as `127.0.0.1:6006`."""
        return f"{LOOPBACK}:{self.port}"

    def __enter__(self) -> Self:
        in_thread(self._serve, f"forward-{self.port}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A thread that waits in `accept` would keep the port open.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # it was closed
                return
            in_thread(partial(self._connect, client), "tunnel")

    def _connect(self, client: socket.socket) -> None:
        with contextlib.closing(client):
            try:
                tunnel = self._open_tunnel()
            except (ConnectError, OSError) as error:
                logger.debug("port %d: %s", self.port, error)
                return
            with contextlib.closing(tunnel):
                in_thread(partial(_pump, client, tunnel), "tunnel-out")
                _pump(tunnel, client)
                with contextlib.suppress(OSError):  # ends the wait in the other thread
                    client.shutdown(socket.SHUT_RDWR)


def _pump(source: Tunnel, sink: Tunnel) -> None:
    """Pass data on until one side ends, and then close the way to the other."""
    with contextlib.suppress(OSError, EOFError):
        while data := source.recv(CHUNK):
            sink.sendall(data)
    with contextlib.suppress(OSError, EOFError):
        sink.shutdown(socket.SHUT_WR)
