"""A proxy on loopback that holds back what clients send, so that a test can stop an upload halfway."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Proxy:
    """It passes `allowed` bytes from its clients, and the rest when it is opened. Responses pass at once."""

    def __init__(self, port: int, allowed: int) -> None:
        self._server, self._left = port, allowed
        self.is_holding, self._is_open = threading.Event(), threading.Event()
        self._is_passing = threading.Event()
        self._is_passing.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._sockets = [self._listener]
        self._stranded: list[threading.Event] = []
        self._is_closed = threading.Event()
        self._threads: list[threading.Thread] = []
        self._begin(self._accept)

    def open(self) -> None:
        """Pass everything from now on."""
        self._is_open.set()

    def freeze(self) -> None:
        """Hold back everything in both directions: the connection stays open and silent."""
        self._is_passing.clear()

    def thaw(self) -> None:
        """Pass everything again, including what was held back."""
        self._is_passing.set()

    def strand(self) -> None:
        """Hold back everything on the connections so far, forever. New ones pass."""
        for event in self._stranded:
            event.set()

    def close(self) -> None:
        """End every connection."""
        self.open()
        self.thaw()
        self._is_closed.set()
        for each in self._sockets:
            _end(each)
        for thread in self._threads:
            thread.join(20)
        for each in self._sockets:
            each.close()

    def _begin(self, target: object, *values: object) -> None:
        thread = threading.Thread(target=target, args=values, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._server))
                self._sockets += [client, server]
                self._stranded.append(stranded := threading.Event())
                self._begin(self._copy, client, server, True, stranded)
                self._begin(self._copy, server, client, False, stranded)

    def _copy(
        self, source: socket.socket, target: socket.socket, is_counted: bool, is_stranded: threading.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if is_counted and not self._is_open.is_set():
                    self._left -= len(data)
                    if self._left < 0:
                        self.is_holding.set()
                        self._is_open.wait()
                self._is_passing.wait()
                if is_stranded.is_set():
                    self._is_closed.wait()
                target.sendall(data)
        _end(source)
        _end(target)


def _end(link: socket.socket) -> None:
    with contextlib.suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)


@contextmanager
def holding(port: int, allowed: int) -> Iterator[Proxy]:
    """Run a proxy for the block."""
    proxy = Proxy(port, allowed)
    try:
        yield proxy
    finally:
        proxy.close()
