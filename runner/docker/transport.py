"""HTTP to an engine: over our streams, or through a socket of this computer.

urllib3 and requests do not catch the ConnectError and JobError that our streams raise.
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
from gpuinfra.runner.docker import stream as stream_module
from gpuinfra.runner.docker.stream import Stream, Streams

MAX_IDLE = 8


class StreamConnection(HTTPConnection):
    """An HTTP connection over a stream."""

    def __init__(self, streams: Streams) -> None:
        super().__init__("localhost")
        self._streams = streams

    def connect(self) -> None:
        """Open a stream to the engine."""
        self.sock = self._streams.take()

    @property
    def is_connected(self) -> bool:
        """Return whether it can be used again."""
        return isinstance(self.sock, Stream) and not self.sock.has_ended


class SocketConnection(HTTPConnection):
    """An HTTP connection to a socket of this computer. The SDK's own leaks sockets if nothing listens."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        """Connect to the engine."""
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            link.settimeout(self.timeout)
            link.connect(self._path)
        except BaseException:
            link.close()
            raise
        self.sock = link


class Pool(HTTPConnectionPool):
    """A pool of HTTP connections to one engine."""

    def __init__(self, make: Callable[[], HTTPConnection]) -> None:
        super().__init__("localhost", maxsize=MAX_IDLE)
        self._make = make

    def _new_conn(self) -> HTTPConnection:
        self.num_connections += 1
        return self._make()


class Adapter(HTTPAdapter):
    """Lets requests use the pool for every address."""

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self._pool = pool

    def send(self, request: PreparedRequest, stream: bool = False, *more: Any, **named: Any) -> Response:
        """Send a request. A response that is not a stream is read here, up to a limit."""
        answer = super().send(request, stream, *more, **named)
        if not stream:
            whole = bytearray()
            for data in answer.iter_content(CHUNK):
                whole += data
                if len(whole) > stream_module.MAX_RESPONSE:
                    answer.close()
                    raise stream_module.response_too_large()
            answer._content = bytes(whole)
        return answer

    def get_connection_with_tls_context(
        self,
        request: PreparedRequest,  # noqa: ARG002 the signature is requests'
        verify: Any,  # noqa: ARG002
        proxies: Mapping[str, str] | None = None,  # noqa: ARG002
        cert: Any = None,  # noqa: ARG002
    ) -> Pool:
        """Return the pool."""
        return self._pool

    def request_url(self, request: PreparedRequest, proxies: Mapping[str, str] | None) -> str:  # noqa: ARG002
        """Return the path only, because no proxy is used."""
        return request.path_url

    def close(self) -> None:
        """Close the connections."""
        super().close()
        self._pool.close()
