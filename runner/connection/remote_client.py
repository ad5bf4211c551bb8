"""Calls to the remote side: our own code, run by the machine's Python for as long as a call takes."""

from __future__ import annotations

import contextlib
import json
import threading
import zlib
from collections.abc import Iterator
from functools import cache
from importlib import resources
from time import monotonic
from typing import Any

from gpuinfra.remote.wire import DATA, END, ERROR, HEADER, JSON, MARK
from gpuinfra.runner.connection.port import Connection, Process
from gpuinfra.runner.errors import Broken, ConnectError, RemoteError, TimedOut

PACKAGE = "gpuinfra.remote"
PYTHON = "python3"
# The system's own, where it has one: it is quicker than what users put before it.
FIND = 'for each in /usr/bin/python3 python3; do command -v "$each" >/dev/null && exec "$each" "$@"; done; exit 127'
# Neither a user's settings nor packages are looked at.
ALONE = "-IS"
# On one line and without `!`: csh, which may be the user's shell, takes neither in quotes.
BOOT = (
    "import sys;sys.version_info<(3,8) and sys.exit('Python 3.8 or newer is needed, not '+sys.version.split()[0]);"
    "import json,zlib,types;"
    "parts=json.loads(zlib.decompress(sys.stdin.buffer.read(int(sys.argv[1]))));"
    "ours=types.ModuleType('gpuinfra');ours.__path__=[];sys.modules['gpuinfra']=ours;"
    "sent=types.ModuleType('gpuinfra.remote');sent.__path__=[];sys.modules['gpuinfra.remote']=sent;ours.remote=sent;"
    "exec(parts['gpuinfra.remote'],sent.__dict__);"
    "sent.install(parts);from gpuinfra.remote.main import main;sys.exit(main())"
)
# More than a shell's greeting, and not without end.
MOST_GREETING = 1 << 20
LONGEST_MESSAGE = 64 << 20
START_SECONDS = 60.0
NOT_FOUND = (126, 127)


class Answer(dict[str, Any]):
    """An object from the machine. A field that it should have, and does not, raises RemoteError."""

    def __missing__(self, key: str) -> Any:
        raise RemoteError("protocol", f"an answer without `{key}` makes no sense")


class Call:
    """One call: messages to the machine and from it. Raises ConnectError and RemoteError, nothing else."""

    def __init__(self, process: Process, where: str) -> None:
        self._process, self._where = process, where
        self._buffer = bytearray()
        self._limit: float | None = None
        self._ends = 0.0

    def send(self, payload: bytes | memoryview, kind: bytes = DATA) -> None:
        """One message."""
        if len(payload) < 1 << 16:
            self._write(b"".join((HEADER.pack(kind, len(payload)), payload)))
        else:
            self._write(HEADER.pack(kind, len(payload)))
            self._write(payload)

    def send_json(self, value: dict[str, Any]) -> None:
        """An object."""
        self.send(json.dumps(value).encode(), JSON)

    def end_input(self) -> None:
        """Nothing more will be sent."""
        self._process.end_input()

    def receive(self) -> tuple[bytes, bytes]:
        """The next message; one that is an error is raised."""
        kind, length = HEADER.unpack(self._exactly(HEADER.size))
        if kind not in {JSON, DATA, ERROR, END} or length > LONGEST_MESSAGE:
            raise RemoteError("protocol", f"{self._where} sent something that is not a message")
        payload = self._exactly(length)
        if kind == ERROR:
            problem = self._object(payload)
            raise RemoteError(str(problem.get("code")), str(problem.get("message")))
        return kind, payload

    def receive_json(self) -> dict[str, Any]:
        """The next message, which has to be an object."""
        kind, payload = self.receive()
        if kind != JSON:
            raise RemoteError("protocol", f"{self._where} answered data where an object was expected")
        return self._object(payload)

    def _object(self, payload: bytes) -> dict[str, Any]:
        try:
            found = json.loads(payload)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise RemoteError("protocol", f"{self._where} sent something that is not an object")
        return Answer(found)

    def close(self) -> None:
        """Hang up. A second call does nothing."""
        self._process.end_input()
        self._process.close()

    def idle(self, seconds: float | None) -> None:
        """How long the machine may be silent from now on."""
        self._limit = None
        self._process.idle(seconds)

    def limit(self, seconds: float) -> None:
        """How long all that is read from now on may take, up to the next `idle`."""
        self._limit, self._ends = seconds, monotonic() + seconds

    def is_over(self) -> bool:
        """Whether the remote side has ended its answer, so that the next call can be made."""
        try:
            return self.receive()[0] == END
        except (ConnectError, RemoteError):
            return False

    def begin(self, source: bytes) -> None:
        """Send our code, and leave behind what the machine's shell says first."""
        self._write(source)
        self.limit(START_SECONDS)
        while (place := self._buffer.find(MARK)) < 0:
            if not self._fill() or len(self._buffer) > MOST_GREETING:
                raise self._unstarted()
        del self._buffer[: place + len(MARK)]

    def _write(self, data: bytes | memoryview) -> None:
        try:
            self._process.write(data)
        except Broken:
            # The machine may have said why it stopped reading.
            self._raise_refusal()
            raise

    def _raise_refusal(self) -> None:
        with contextlib.suppress(ConnectError):
            while True:
                self.receive()

    def _exactly(self, count: int) -> bytes:
        while len(self._buffer) < count:
            if not self._fill():
                raise Broken(f"the call to {self._where} ended too early: {self._process.errors.strip()[-300:]}")
        found = bytes(self._buffer[:count])
        del self._buffer[:count]
        return found

    def _fill(self) -> bool:
        if self._limit is not None:
            # A machine that sends a byte now and then is never silent.
            left = self._ends - monotonic()
            if left <= 0:
                raise TimedOut(f"{self._where} did not answer within {self._limit:g} s")
            self._process.idle(left)
        data = self._process.read()
        self._buffer += data
        return bool(data)

    def _unstarted(self) -> Exception:
        with contextlib.suppress(TimedOut):
            code = self._process.wait(5.0)
            said = " ".join(self._process.errors.split())[-300:]
            if code in NOT_FOUND or code == 1 or said:
                note = f"`{PYTHON}` does not run on {self._where}: {said or f'it ended with {code}'}"
                return RemoteError("no-python", note)
        return Broken(f"the call to {self._where} did not begin")


class RemoteClient:
    """The remote side of a connection. Calls may be made at once, from several threads; one process serves many."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._idle: list[Call] = []
        self._coming = 0
        self._change = threading.Condition()

    @contextlib.contextmanager
    def call(self, verb: str, request: dict[str, Any], *, idle: float | None = 60.0) -> Iterator[Call]:
        """A call in which messages of the verb's own follow. One that is left before its end is hung up."""
        call, is_reusable = self._take(), False
        try:
            call.idle(idle)
            call.send_json({"verb": verb, **request})
            yield call
            is_reusable = call.is_over()
        finally:
            if is_reusable:
                self._keep(call)
            else:
                call.close()

    def ask(self, verb: str, *, seconds: float = 60.0, **request: Any) -> dict[str, Any]:
        """A call with one small answer, which has to come within so many seconds."""
        with self.call(verb, request, idle=seconds) as call:
            call.limit(seconds)
            return call.receive_json()

    def prepare(self) -> None:
        """Start a process ahead of time; calls that need one meanwhile wait for it."""
        with self._change:
            self._coming += 1
        try:
            self._keep(self._start())
        finally:
            with self._change:
                self._coming -= 1
                self._change.notify_all()

    def close(self) -> None:
        """Hang up all calls; the connection stays. A second call does nothing."""
        with self._change:
            calls, self._idle = self._idle, []
        for call in calls:
            call.close()

    def _keep(self, call: Call) -> None:
        with self._change:
            self._idle.append(call)
            self._change.notify()

    def _take(self) -> Call:
        with self._change:
            self._change.wait_for(lambda: self._idle or not self._coming, START_SECONDS)
            if self._idle:
                return self._idle.pop()
        return self._start()

    def _start(self) -> Call:
        source = _source()
        words = ["sh", "-c", FIND, "sh", ALONE, "-c", BOOT, str(len(source))]
        process = self.connection.start(words, timeout=START_SECONDS, idle=START_SECONDS)
        call = Call(process, self.connection.where)
        try:
            call.begin(source)
        except BaseException:
            call.close()
            raise
        return call


@cache
def _source() -> bytes:
    files = sorted(file.name for file in resources.files(PACKAGE).iterdir() if file.name.endswith(".py"))
    return zlib.compress(json.dumps({_name(file): _text(file) for file in files}).encode(), 6)


def _name(file: str) -> str:
    return PACKAGE if file == "__init__.py" else f"{PACKAGE}.{file.removesuffix('.py')}"


def _text(file: str) -> str:
    return resources.files(PACKAGE).joinpath(file).read_text("utf-8")
