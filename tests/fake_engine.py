"""A Docker Engine that only answers its version: enough for `docker version`, and started at once."""

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

VERSION, API_VERSION = "27.5.1", "1.47"
ABOUT = {"Version": VERSION, "ApiVersion": API_VERSION, "MinAPIVersion": "1.24", "Os": "linux", "Arch": "amd64"}


class _Answers(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self._answer(b"")

    def do_GET(self) -> None:
        self._answer(b"OK" if self.path.endswith("/_ping") else json.dumps(ABOUT).encode())

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Api-Version", API_VERSION)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "unix"

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 the base class's own word
        del format, arguments


@contextmanager
def fake_engine(socket: Path) -> Iterator[str]:
    """Serve at this socket, and return its address. A socket's path has at most a hundred characters."""
    with socketserver.ThreadingUnixStreamServer(str(socket), _Answers) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield f"unix://{socket}"
        finally:
            server.shutdown()
            thread.join(10)
