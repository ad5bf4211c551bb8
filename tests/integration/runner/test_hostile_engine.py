"""The Docker Engine of a hostile machine: responses that never end, and values that no engine sends."""

import contextlib
import json
import socketserver
import tempfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuinfra.diagnostics import Code
from gpuinfra.runner.connection.local import LocalConnection
from gpuinfra.runner.container import ContainerJob
from gpuinfra.runner.docker import stream
from gpuinfra.runner.docker.client import Engine
from gpuinfra.runner.docker.images import find_image, pull
from gpuinfra.runner.errors import JobError

SILENT = cast("Any", SimpleNamespace(begin=print, amount=lambda *_: None, end=print, fail=print, note=print))
LIMIT = 1 << 20
PIECE = b"x" * (1 << 16)


class EndlessResponses(BaseHTTPRequestHandler):
    """Sends an endless response to every request except `/_ping`."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        is_ping = self.path.endswith("/_ping")
        self.send_response(200)
        self.send_header("Content-Length" if is_ping else "Transfer-Encoding", "0" if is_ping else "chunked")
        self.end_headers()
        # One endless chunk, until the client closes the connection.
        with contextlib.suppress(OSError):
            self.wfile.write(b"" if is_ping else b"7fffffffff\r\n")
            while not is_ping:
                self.wfile.write(PIECE)

    def do_POST(self) -> None:
        self.do_GET()

    def address_string(self) -> str:
        return "unix"

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 the base class's own word
        del format, arguments


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setattr(stream, "MAX_RESPONSE", LIMIT)
    monkeypatch.setattr(stream, "MAX_MESSAGE", LIMIT)
    with open_hostile(monkeypatch, EndlessResponses) as found:
        yield found


@contextlib.contextmanager
def open_hostile(monkeypatch: pytest.MonkeyPatch, answers: type[BaseHTTPRequestHandler]) -> Iterator[Engine]:
    with (
        tempfile.TemporaryDirectory() as folder,
        socketserver.ThreadingUnixStreamServer(str(Path(folder, "engine")), answers) as server,
    ):
        server.daemon_threads = True
        monkeypatch.setenv("DOCKER_HOST", f"unix://{server.server_address}")
        monkeypatch.setenv("DOCKER_CONFIG", folder)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        found = Engine(LocalConnection(), 20.0)
        yield found
        found.close()
        server.shutdown()
        thread.join(10)


def check_refused(ask: Callable[[], object]) -> None:
    with pytest.raises(JobError) as raised:
        ask()
    assert raised.value.code is Code.ENGINE_FAILED


def test_endless_response_is_an_error(engine: Engine) -> None:
    check_refused(lambda: find_image(engine, "python:3.11"))


def test_endless_report_of_a_pull_is_an_error(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuinfra.runner.docker.images.find_image", lambda *_: None)
    check_refused(lambda: pull(engine, "python:3.11", SILENT))


STATE = {
    "Running": False,
    "Status": "exited",
    "ExitCode": 0,
    "StartedAt": "2026-11-18T21:00:00.123456789Z",
    "FinishedAt": "2026-11-18T21:00:01.123456789Z",
}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ExitCode", float("inf")),
        ("ExitCode", 10**30),
        ("ExitCode", "0"),
        ("FinishedAt", "2026-11-18T21:00:00"),
        ("FinishedAt", "0001-01-01T00:00:00+23:59"),
    ],
)
def test_end_of_a_container_with_an_impossible_value_is_an_error(
    monkeypatch: pytest.MonkeyPatch, key: str, value: object
) -> None:
    content = json.dumps({"State": {**STATE, key: value}, "Config": {"Labels": {}}}).encode()

    class Inspection(EndlessResponses):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    with open_hostile(monkeypatch, Inspection) as engine:
        check_refused(ContainerJob(engine, "a" * 64).ended)
