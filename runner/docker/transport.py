"""HTTP to an engine: over our streams, or by a socket of this computer.

What our streams raise, ConnectError and JobError, goes through urllib3 and requests as it is: they know neither.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Any

from requests import PreparedRequest, Response
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool
from urllib3.connection import HTTPConnection

from gpuinfra.runner.connection.port import CHUNK
from gpuinfra.runner.docker import limits
from gpuinfra.runner.docker.stream import Stream, Streams

MOST_IDLE = 8


class Link(HTTPConnection):
    """One HTTP connection."""

    def __init__(self, streams: Streams) -> None:
        super().__init__("localhost")
        self._streams = streams

    def connect(self) -> None:
        """Open a stream to the engine."""
        self.sock = self._streams.take()  # as much of a socket as is needed

    @property
    def is_connected(self) -> bool:
        """Whether it can be used again."""
        return isinstance(self.sock, Stream) and not self.sock.has_ended


class SocketLink(HTTPConnection):
    """One HTTP connection to a socket of this computer. The SDK's own leaves sockets open if nothing listens."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        """Call the engine."""
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            link.settimeout(self.timeout)
            link.connect(self._path)
        except BaseException:
            link.close()
            raise
        self.sock = link


class Pool(HTTPConnectionPool):
    """HTTP connections to one engine, kept and used again."""

    def __init__(self, make: Callable[[], HTTPConnection]) -> None:
        super().__init__("localhost", maxsize=MOST_IDLE)
        self._make = make

    def _new_conn(self) -> HTTPConnection:
        self.num_connections += 1
        return self._make()


class Adapter(HTTPAdapter):
    """Has requests use the pool, whatever the address is."""

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self._pool = pool

    def send(self, request: PreparedRequest, stream: bool = False, *more: Any, **named: Any) -> Response:
        """Send a request. An answer that is not a stream is read here, up to a limit."""
        answer = super().send(request, stream, *more, **named)
        if not stream:
            whole = bytearray()
            for data in answer.iter_content(CHUNK):
                whole += data
                if len(whole) > limits.MOST_ANSWER:
                    answer.close()
                    raise limits.endless_answer()
            answer._content = bytes(whole)
        return answer

    def get_connection_with_tls_context(
        self,
        request: PreparedRequest,  # noqa: ARG002 the signature is requests'
        verify: Any,  # noqa: ARG002
        proxies: Mapping[str, str] | None = None,  # noqa: ARG002
        cert: Any = None,  # noqa: ARG002
    ) -> Pool:
        """The one pool."""
        return self._pool

    def request_url(self, request: PreparedRequest, proxies: Mapping[str, str] | None) -> str:  # noqa: ARG002
        """The path alone: no proxy is asked."""
        return request.path_url

    def close(self) -> None:
        """Hang up."""
        super().close()
        self._pool.close()
