"""Call code on a machine: the package `gpuinfra.remote` is sent to the machine's Python for each process."""

from __future__ import annotations

import contextlib
import json
import threading
import zlib
from collections.abc import Iterator
from functools import cache
from importlib import resources
from time import monotonic
from typing import Any, TypeVar

from gpuinfra.remote.wire import DATA, END, ERROR, HEADER, JSON, MARK
from gpuinfra.runner.connection.port import Connection, Process
from gpuinfra.runner.errors import Broken, ConnectError, RemoteError, TimedOut

PACKAGE = "gpuinfra.remote"
PYTHON = "python3"
# Prefer the system's Python: it starts faster than those that users install.
FIND = 'for each in /usr/bin/python3 python3; do command -v "$each" >/dev/null && exec "$each" "$@"; done; exit 127'
# Ignore the user's settings and packages.
ISOLATED = "-IS"
# One line without `!`: csh, which may be the user's shell, does not allow these in quotes.
BOOT = (
    "import sys;sys.version_info<(3,8) and sys.exit('Python 3.8 or newer is needed, not '+sys.version.split()[0]);"
    "import json,zlib,types;"
    "parts=json.loads(zlib.decompress(sys.stdin.buffer.read(int(sys.argv[1]))));"
    "ours=types.ModuleType('gpuinfra');ours.__path__=[];sys.modules['gpuinfra']=ours;"
    "sent=types.ModuleType('gpuinfra.remote');sent.__path__=[];sys.modules['gpuinfra.remote']=sent;ours.remote=sent;"
    "exec(parts['gpuinfra.remote'],sent.__dict__);"
    "sent.install(parts);from gpuinfra.remote.main import main;sys.exit(main())"
)
# The limit of what the shell may print before our code starts.
MAX_GREETING = 1 << 20
MAX_MESSAGE = 64 << 20
# The protocol has no number beyond. Calculations with larger ones overflow.
LARGEST_NUMBER = (1 << 63) - 1
START_SECONDS = 60.0
NOT_FOUND = (126, 127)

_Number = TypeVar("_Number", int, float)


class Reply(dict[str, Any]):
    """An object from the machine. A missing field raises RemoteError."""

    def __missing__(self, key: str) -> Any:
        raise RemoteError("protocol", f"unexpected reply from the target: `{key}` is missing")


class Call:
    """A process on the machine that exchanges messages. Methods raise only ConnectError and RemoteError."""

    def __init__(self, process: Process, where: str) -> None:
        self._process, self._where = process, where
        self._buffer = bytearray()
        self._limit: float | None = None
        self._deadline = 0.0

    def send(self, payload: bytes | memoryview, kind: bytes = DATA) -> None:
        """Send one message."""
        if len(payload) < 1 << 16:
            self._write(b"".join((HEADER.pack(kind, len(payload)), payload)))
        else:
            self._write(HEADER.pack(kind, len(payload)))
            self._write(payload)

    def send_json(self, value: dict[str, Any]) -> None:
        self.send(json.dumps(value).encode(), JSON)

    def end_input(self) -> None:
        self._process.end_input()

    def receive(self) -> tuple[bytes, bytes]:
        """Return the kind and content of the next message. Raise RemoteError if it is an error."""
        kind, length = HEADER.unpack(self._read(HEADER.size))
        if kind not in {JSON, DATA, ERROR, END} or length > MAX_MESSAGE:
            raise RemoteError("protocol", f"{self._where} sent an invalid message")
        payload = self._read(length)
        if kind == ERROR:
            problem = self.read_object(payload)
            raise RemoteError(str(problem.get("code")), str(problem.get("message")))
        return kind, payload

    def receive_json(self) -> dict[str, Any]:
        """Return the next message, which must be a JSON object."""
        kind, payload = self.receive()
        if kind != JSON:
            raise RemoteError("protocol", f"{self._where} sent data instead of a JSON object")
        return self.read_object(payload)

    def read_object(self, payload: bytes) -> dict[str, Any]:
        """Return the JSON object in a message."""
        try:
            found = json.loads(payload, parse_int=_integer, parse_float=_decimal, parse_constant=_decimal)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise RemoteError("protocol", f"{self._where} sent a message that is not a JSON object")
        return Reply(found)

    def close(self) -> None:
        """Close the streams, which ends the process. Does nothing if they are closed."""
        self._process.end_input()
        self._process.close()

    def set_idle_timeout(self, seconds: float | None) -> None:
        """Limit how long the machine may be silent, and remove any limit of `set_time_limit`."""
        self._limit = None
        self._process.set_idle_timeout(seconds)

    def set_time_limit(self, seconds: float) -> None:
        """Limit how long all further reads may take in total."""
        self._limit, self._deadline = seconds, monotonic() + seconds

    def has_ended(self) -> bool:
        """Return whether the machine has ended its reply, so that the process can serve another call."""
        try:
            return self.receive()[0] == END
        except (ConnectError, RemoteError):
            return False

    def start(self, source: bytes) -> None:
        """Send our code, and discard what the machine's shell prints before it runs."""
        self._write(source)
        self.set_time_limit(START_SECONDS)
        while (mark := self._buffer.find(MARK)) < 0:
            if not self._fill() or len(self._buffer) > MAX_GREETING:
                raise self._start_error()
        del self._buffer[: mark + len(MARK)]

    def _write(self, data: bytes | memoryview) -> None:
        try:
            self._process.write(data)
        except Broken:
            # The machine may have sent the reason before it stopped reading.
            self._raise_sent_error()
            raise

    def _raise_sent_error(self) -> None:
        with contextlib.suppress(ConnectError):
            while True:
                self.receive()

    def _read(self, count: int) -> bytes:
        while len(self._buffer) < count:
            if not self._fill():
                raise Broken(f"the call to {self._where} ended early: {self._process.errors.strip()[-300:]}")
        found = bytes(self._buffer[:count])
        del self._buffer[:count]
        return found

    def _fill(self) -> bool:
        if self._limit is not None:
            # The idle timeout alone would not end a reply that arrives byte by byte.
            left = self._deadline - monotonic()
            if left <= 0:
                raise TimedOut(f"{self._where} did not answer within {self._limit:g} s")
            self._process.set_idle_timeout(left)
        data = self._process.read()
        self._buffer += data
        return bool(data)

    def _start_error(self) -> Exception:
        with contextlib.suppress(TimedOut):
            code = self._process.wait(5.0)
            stderr = " ".join(self._process.errors.split())[-300:]
            if code in NOT_FOUND or code == 1 or stderr:
                note = f"`{PYTHON}` does not run on {self._where}: {stderr or f'exit code {code}'}"
                return RemoteError("no-python", note)
        return Broken(f"the call to {self._where} did not start")


def _integer(text: str) -> int:
    return _checked(int(text))


def _decimal(text: str) -> float:
    return _checked(float(text))


def _checked(number: _Number) -> _Number:
    if not abs(number) <= LARGEST_NUMBER:  # NaN, too
        raise ValueError("a number that is too large")
    return number


class RemoteClient:
    """Calls code on the machine of a connection. Thread-safe; a process serves many calls, one at a time."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._idle: list[Call] = []
        self._starting = 0
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def call(self, verb: str, request: dict[str, Any], *, idle: float | None = 60.0) -> Iterator[Call]:
        """Call a verb and exchange its messages in the block. A call that has not ended by then is closed."""
        call, is_reusable = self._take(), False
        try:
            call.set_idle_timeout(idle)
            call.send_json({"verb": verb, **request})
            yield call
            is_reusable = call.has_ended()
        finally:
            if is_reusable:
                self._keep(call)
            else:
                call.close()

    def ask(self, verb: str, *, seconds: float = 60.0, **request: Any) -> dict[str, Any]:
        """Call a verb and return its reply, a JSON object that must arrive within `seconds`."""
        with self.call(verb, request, idle=seconds) as call:
            call.set_time_limit(seconds)
            return call.receive_json()

    def prepare(self) -> None:
        """Start a process in advance. Calls that need one wait for it."""
        with self._changed:
            self._starting += 1
        try:
            self._keep(self._start())
        finally:
            with self._changed:
                self._starting -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Close all idle processes; the connection stays open."""
        with self._changed:
            calls, self._idle = self._idle, []
        for call in calls:
            call.close()

    def _keep(self, call: Call) -> None:
        with self._changed:
            self._idle.append(call)
            self._changed.notify()

    def _take(self) -> Call:
        with self._changed:
            self._changed.wait_for(lambda: self._idle or not self._starting, START_SECONDS)
            if self._idle:
                return self._idle.pop()
        return self._start()

    def _start(self) -> Call:
        source = _source()
        command = ["sh", "-c", FIND, "sh", ISOLATED, "-c", BOOT, str(len(source))]
        process = self.connection.start(command, timeout=START_SECONDS, idle=START_SECONDS)
        call = Call(process, self.connection.where)
        try:
            call.start(source)
        except BaseException:
            call.close()
            raise
        return call


@cache
def _source() -> bytes:
    files = sorted(file.name for file in resources.files(PACKAGE).iterdir() if file.name.endswith(".py"))
    return zlib.compress(json.dumps({_module(file): _text(file) for file in files}).encode(), 6)


def _module(file: str) -> str:
    return PACKAGE if file == "__init__.py" else f"{PACKAGE}.{file.removesuffix('.py')}"


def _text(file: str) -> str:
    return resources.files(PACKAGE).joinpath(file).read_text("utf-8")
