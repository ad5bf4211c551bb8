"""The server as a separate process: start it once per folder, find it, stop it, reset it."""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from gpuinfra.sandbox.running.client import Client, ClientError
from gpuinfra.sandbox.running.description import Description, read_description, remove_description
from gpuinfra.sandbox.running.lock import SERVER, START, LockedError, hold, holder

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
