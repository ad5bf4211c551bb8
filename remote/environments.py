"""Python environments of jobs without a container: one folder per digest of its content, made once and reused.

An environment is complete when its marker exists, which is written last: an interrupted one is removed and made again.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import tarfile
import time
from typing import Any

from gpuinfra.remote import home
from gpuinfra.remote.processes import JOB_PATH
from gpuinfra.remote.wire import DATA, GoneError, RefusedError, Wire

FOLDER = "environments"
MARKER = "gpuinfra-complete"
SCRIPT = "environment.sh"
CHUNK = 1 << 16
PAUSE_SECONDS, KEEPALIVE_SECONDS = 0.1, 15.0
# A removal holds the lock of an environment for moments.
USE_SECONDS = 10.0


def find(wire: Wire, request: dict[str, Any]) -> None:
    """Send the folder of a complete environment, or null."""
    wire.send_json({"folder": _complete(home.named(FOLDER, request["digest"]))})


def make(wire: Wire, request: dict[str, Any]) -> None:
    """Make an environment from the files that the client sends, send the installer's output, and its exit code."""
    digest = request["digest"]
    folder, context = home.named(FOLDER, digest), home.named(FOLDER, f"{digest}.build")
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    lock = os.open(home.named(FOLDER, f"{digest}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    # A copy of the requirements may contain passwords.
    received = home.named(FOLDER, f"{digest}.{os.getpid()}.tar")
    try:
        _receive(wire, received)
        _wait_for_lock(wire, lock)
        if _complete(folder) and not request.get("fresh"):
            wire.send_json({"folder": folder, "code": 0, "made": False})
            return
        home.remove_tree(folder)
        home.remove_tree(context)
        os.mkdir(context, 0o700)
        with tarfile.open(received) as archive:
            _extract(archive, context)
        code = _install(wire, context, folder, lock)
        if code == 0:
            # Everything must be on the disk before the marker is.
            os.sync()
            home.replace(os.path.join(folder, MARKER), f"{digest}\n")
        else:
            home.remove_tree(folder)
        wire.send_json({"folder": _complete(folder), "code": code, "made": True})
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(received)
        home.remove_tree(context)
        os.close(lock)


def use(folder: str) -> int | None:
    """Return an open file that keeps an environment from being removed, or None if it was removed."""
    marker, ends = os.path.join(folder, MARKER), time.monotonic() + USE_SECONDS
    with contextlib.suppress(FileNotFoundError):
        file = os.open(marker, os.O_RDONLY | os.O_CLOEXEC)
        while not (is_locked := home.try_lock(file, shared=True)) and time.monotonic() < ends:
            time.sleep(PAUSE_SECONDS)
        # The one that was opened may have been removed before it was locked.
        if is_locked and os.path.exists(marker) and os.path.samestat(os.stat(marker), os.fstat(file)):
            return file
        os.close(file)
    return None


def _complete(folder: str) -> str | None:
    """Return the folder if the environment is complete and its Python still exists, and record that it is used."""
    if not os.path.exists(os.path.join(folder, "bin", "python")):
        return None
    try:
        os.utime(os.path.join(folder, MARKER))
    except FileNotFoundError:
        return None
    return folder


def _receive(wire: Wire, path: str) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        while True:
            kind, data = wire.receive()
            if kind != DATA:
                raise RefusedError("protocol", f"expected data, got {kind!r}")
            if not data:
                return
            file.write(data)


def _wait_for_lock(wire: Wire, lock: int) -> None:
    """Wait until no other process makes this environment."""
    sent = time.monotonic()
    while not home.try_lock(lock):
        if select.select([0], [], [], PAUSE_SECONDS)[0]:
            raise GoneError()
        if time.monotonic() - sent > KEEPALIVE_SECONDS:
            wire.send(DATA, b"")
            wire.flush()
            sent = time.monotonic()


def _extract(archive: tarfile.TarFile, folder: str) -> None:
    for member in archive:
        if not member.isfile() or member.name.startswith("/") or ".." in member.name.split("/"):
            raise RefusedError("protocol", f"invalid name: {member.name!r}")
        path = os.path.join(folder, member.name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        content = archive.extractfile(member)
        if content is not None:
            with open(path, "wb") as file:
                shutil.copyfileobj(content, file)


def _install(wire: Wire, context: str, folder: str, lock: int) -> int:
    """Run the installer, and return its exit code. It is stopped if the client disconnects."""
    import subprocess  # slow to import, and few calls need it

    variables = dict(os.environ, prefix=folder)
    if JOB_PATH in variables:
        variables["PATH"] = variables.pop(JOB_PATH)
    child = subprocess.Popen(  # noqa: S603 our own script
        ["/bin/sh", SCRIPT],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=context,
        env=variables,
        start_new_session=True,
        # If this process is killed, the lock is held until the installer has ended.
        pass_fds=(lock,),
    )
    try:
        _forward(wire, child.stdout.fileno())  # type: ignore[union-attr]
        return child.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _forward(wire: Wire, output: int) -> None:
    while True:
        readable = select.select([0, output], [], [], KEEPALIVE_SECONDS)[0]
        if 0 in readable:
            raise GoneError()
        data = os.read(output, CHUNK) if readable else b""
        if readable and not data:
            return
        wire.send(DATA, data)
        wire.flush()
