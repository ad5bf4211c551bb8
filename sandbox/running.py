"""The server as a separate process: start it once per folder, find it, send it requests, stop it, reset it."""

import fcntl
import http.client
import importlib.util
import json
import os
import shutil
import signal
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

FILE = "server.json"
# Names of fields and of members in the file.
_TEXTS = {
    **{name: name for name in ("endpoint", "authority", "ca", "tenant", "subscription", "started")},
    "client_id": "clientId",
    "docker_host": "dockerHost",
}


@dataclass(frozen=True)
class Description:
    """What clients need to know about a server. It contains no secrets."""

    pid: int
    port: int
    endpoint: str
    authority: str
    ca: str
    """The file with the certificate that clients have to trust."""
    tenant: str
    subscription: str
    client_id: str
    started: str
    ssh_port: int | None = None
    docker_host: str = ""
    """The DOCKER_HOST that guests use: the one of the shell that started the server."""

    def as_json(self) -> dict[str, Any]:
        plain = {"pid": self.pid, "port": self.port, **{key: getattr(self, name) for name, key in _TEXTS.items()}}
        return plain if self.ssh_port is None else {**plain, "sshPort": self.ssh_port}


def from_json(plain: dict[str, Any]) -> Description:
    """Parse what `as_json` returns. Raises KeyError for anything else."""
    port = plain.get("sshPort")
    return Description(
        pid=int(plain["pid"]),
        port=int(plain["port"]),
        ssh_port=None if port is None else int(port),
        **{name: str(plain[key]) for name, key in _TEXTS.items()},
    )


def read_description(folder: Path) -> Description | None:
    """Return the description in a folder, if there is one."""
    try:
        return from_json(json.loads((folder / FILE).read_text("utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_description(folder: Path, description: Description) -> None:
    """Write the description atomically, readable by this user only."""
    temporary = folder / f"{FILE}.new"
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as stream:
        json.dump(description.as_json(), stream, indent=2)
    temporary.replace(folder / FILE)


def remove_description(folder: Path) -> None:
    """Remove the description: the server has ended."""
    (folder / FILE).unlink(missing_ok=True)


HEADER = "x-sandbox-secret"
SECRET = "secret"  # noqa: S105 the name of a file
HOST = "127.0.0.1"


class ClientError(Exception):
    """A request to the sandbox failed."""


class UnreachableError(ClientError):
    """The server does not answer."""


class RefusedError(ClientError):
    """The server refused, and its message says why."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class Client:
    """Sends requests to the server of a description."""

    def __init__(self, folder: Path, description: Description, *, timeout: float = 60.0) -> None:
        self._folder, self._description, self._timeout = folder, description, timeout

    @cached_property
    def _trusted(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self._description.ca)

    def get(self, path: str) -> dict[str, Any]:
        """Return the answer at a path, such as `bill` or `log?after=3`."""
        return self._ask("GET", path)

    def post(self, path: str, payload: dict[str, Any]) -> dict[str, Any]:
        return self._ask("POST", path, payload)

    def delete(self, path: str) -> dict[str, Any]:
        return self._ask("DELETE", path)

    def _ask(self, method: str, path: str, payload: dict[str, Any] | None = None) -> dict[str, Any]:
        content = None if payload is None else json.dumps(payload)
        # Not urllib, which would send loopback requests to a proxy from the environment.
        connection = None
        try:
            secret = (self._folder / SECRET).read_text("ascii")
            connection = http.client.HTTPSConnection(
                HOST, self._description.port, timeout=self._timeout, context=self._trusted
            )
            connection.request(
                method, f"/_sandbox/{path}", content, {HEADER: secret, "Content-Type": "application/json"}
            )
            answer = connection.getresponse()
            status, text = answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            where = f"{HOST}:{self._description.port}"
            raise UnreachableError(f"{where} does not answer: {error or type(error).__name__}") from error
        finally:
            if connection is not None:
                connection.close()
        return _read(status, text)


def _read(status: int, text: bytes) -> dict[str, Any]:
    try:
        body = json.loads(text)
        if status == 200 and isinstance(body, dict):
            return body
        raise RefusedError(status, str(body["error"]["code"]), str(body["error"]["message"]))
    except (ValueError, KeyError, TypeError):
        raise RefusedError(status, "NotASandbox", f"the server answered {status} with something else") from None


SERVER, START = "server.lock", "start.lock"
# struct flock of Linux: type, whence, start, length, process.
_FLOCK = "hhqqi"


class LockedError(Exception):
    """Another process holds the lock, and did not release it in time."""


def take(folder: Path, name: str, *, seconds: float = 0.0) -> int:
    """Take a lock of the folder, until the descriptor is closed or the process ends; wait `seconds` for it.

    It is a record lock: children do not inherit it, and the kernel knows the holder.
    """
    deadline = time.monotonic() + seconds
    descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    while True:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() >= deadline:
                os.close(descriptor)
                raise LockedError(f"another process holds {folder / name}") from None
            time.sleep(0.02)
        else:
            return descriptor


@contextmanager
def hold(folder: Path, name: str, *, seconds: float = 0.0) -> Iterator[None]:
    """Hold a lock within the context."""
    descriptor = take(folder, name, seconds=seconds)
    try:
        yield
    finally:
        os.close(descriptor)


def holder(folder: Path, name: str) -> int | None:
    """Return the process that holds a lock, from the kernel: a PID in a file may belong to another process by now."""
    try:
        stream = (folder / name).open("rb")
    except OSError:
        return None
    with stream:
        asked = struct.pack(_FLOCK, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, process = struct.unpack(_FLOCK, fcntl.fcntl(stream, fcntl.F_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else int(process)


HOME = "GPUINFRA_SANDBOX_HOME"
LOG = "server.log"
NEEDED = ("asyncssh", "cryptography", "starlette", "uvicorn")
"""Packages that the extra `sandbox` installs."""
START_SECONDS = 20.0
STOP_SECONDS = 10.0
_PAUSE = 0.02


class ProcessError(Exception):
    """The server could not be started or stopped; `log` is the end of its log."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class MissingPartsError(ProcessError):
    """The extra `sandbox` is not installed."""


def default_folder() -> Path:
    """Return the sandbox's folder: GPUINFRA_SANDBOX_HOME, or ~/.gpuinfra/sandbox."""
    return Path(os.environ.get(HOME) or Path.home() / ".gpuinfra" / "sandbox").absolute()


def status(folder: Path) -> Description | None:
    """Return the description of the server of this folder, if one runs."""
    process, description = holder(folder, SERVER), read_description(folder)
    # A killed server leaves its description; a starting one has only the lock.
    return description if description and description.pid == process else None


def client(folder: Path) -> Client | None:
    """Return a client for the server of this folder, if one runs."""
    description = status(folder)
    return Client(folder, description) if description else None


def ensure_started(folder: Path | None = None) -> Description:
    """Return the server of a folder; start it if necessary."""
    folder = folder or default_folder()
    return status(folder) or start(folder)


def start(folder: Path) -> Description:
    """Start a server that outlives this process, and wait until it answers. A running one is not changed."""
    missing = [name for name in NEEDED if not _is_installed(name)]
    if missing:
        raise MissingPartsError(f"{', '.join(missing)} cannot be imported")
    deadline = time.monotonic() + START_SECONDS
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with hold(folder, START, seconds=START_SECONDS):
            return status(folder) or _spawn(folder, deadline)
    except LockedError as error:
        raise ProcessError(f"another process is starting the sandbox: {error}") from None
    except OSError as error:
        raise ProcessError(f"`{folder}` cannot be used: {error.strerror or error}") from None


def stop(folder: Path) -> bool:
    """Stop the server of a folder with SIGTERM, then SIGKILL. Returns False if there was none."""
    # The lock's holder is the server; a PID in a file may be outdated.
    process = holder(folder, SERVER)
    if process is None:
        remove_description(folder)
        return False
    for number in (signal.SIGTERM, signal.SIGKILL):
        if _signal(process, number) and _has_gone(folder, process):
            remove_description(folder)
            return True
    raise ProcessError(f"process {process} does not end", _tail(folder))


def reset(folder: Path) -> None:
    """Delete all VMs, resource groups, bills, faults and requests; identity, certificates and profile stay."""
    asked = client(folder)
    if asked:
        asked.post("reset", {})
        return
    from gpuinfra.sandbox.kernel.store import Store

    file = folder / "state.sqlite3"
    if not file.exists():
        return
    try:
        with hold(folder, SERVER):
            store = Store(file)
            try:
                store.reset()
            finally:
                store.close()
            shutil.rmtree(folder / "guests", ignore_errors=True)
    except LockedError:
        raise ProcessError("the server is just starting; try again") from None


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _spawn(folder: Path, deadline: float) -> Description:
    log = folder / LOG
    if log.exists() and log.stat().st_size > 1_000_000:
        log.replace(log.with_suffix(".log.1"))
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as stream:
        server = subprocess.Popen(  # noqa: S603 a command of our own
            [sys.executable, "-m", "gpuinfra.sandbox", "serve", "--folder", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            cwd=folder,
            start_new_session=True,
        )
    # Reap the server if it ends before this process.
    threading.Thread(target=server.wait, daemon=True).start()
    while time.monotonic() < deadline:
        description = status(folder)
        if description and _answers(folder, description):
            return description
        if server.returncode is not None:
            raise ProcessError(f"the server ended with exit code {server.returncode}", _tail(folder))
        time.sleep(_PAUSE)
    server.kill()
    raise ProcessError(f"the server did not answer within {START_SECONDS:.0f} seconds", _tail(folder))


def _answers(folder: Path, description: Description) -> bool:
    try:
        Client(folder, description, timeout=5).get("status")
    except ClientError:
        return False
    return True


def _signal(process: int, number: signal.Signals) -> bool:
    try:
        os.kill(process, number)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return True


def _has_gone(folder: Path, process: int) -> bool:
    deadline = time.monotonic() + STOP_SECONDS
    while time.monotonic() < deadline:
        if holder(folder, SERVER) != process:
            return True
        time.sleep(_PAUSE)
    return False


def _tail(folder: Path) -> str:
    try:
        text = (folder / LOG).read_text("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-15:])
