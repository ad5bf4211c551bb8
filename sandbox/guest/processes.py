"""How a guest's commands are started, and how all of their processes are found and ended."""

import asyncio
import os
import signal
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from gpuinfra.sandbox.guest.disk import Disk
from gpuinfra.sandbox.guest.spec import GuestSpec

MARKER = "GPUINFRA_GUEST_MARKER"
# As in systemd, each start of a service has one; here each background command too.
INVOCATION = "INVOCATION_ID"
GRACE_SECONDS = 1.5
_KILL_SECONDS = 10.0
_PROC_BYTES = 1 << 16
_KEPT_OF_THE_SERVER = ("LANG", "TZ")


class ProcessesLeftError(RuntimeError):
    """Processes that SIGKILL did not end within the deadline."""


@dataclass(frozen=True)
class Tag:
    """An environment variable that identifies processes; their children inherit it."""

    name: str
    value: str


@dataclass(frozen=True)
class Process:
    """A process; `started` distinguishes it from a later one with the same PID."""

    pid: int
    parent: int
    session: int
    started: int


def guest_tag(vm_id: str, root: Path) -> Tag:
    """Return the tag of a guest's processes. It includes the root: two servers may have VMs with the same id."""
    return Tag(MARKER, f"{vm_id}:{root.resolve()}")


def environment(spec: GuestSpec, disk: Disk) -> dict[str, str]:
    """Return the environment of a guest's command; only PATH, language and time zone come from the server."""
    mark = guest_tag(spec.vm_id, spec.root)
    return {
        **{name: os.environ[name] for name in _KEPT_OF_THE_SERVER if name in os.environ},
        "SHELL": "/bin/bash",
        **spec.environment,
        "HOME": str(disk.home),
        "USER": spec.username,
        "LOGNAME": spec.username,
        "PATH": f"{disk.bin}:{os.environ.get('PATH', os.defpath)}",
        "GPUINFRA_GUEST_ROOT": str(disk.root),
        "GPUINFRA_IMDS_ENDPOINT": spec.metadata_url,
        mark.name: mark.value,
    }


async def run(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    folder: Path,
    output: BinaryIO,
    errors: BinaryIO,
    deadline_seconds: float,
) -> int:
    """Run a command in its own session until it exits. Past the deadline it is ended and TimeoutError raised."""
    tag = Tag(INVOCATION, environment.get(INVOCATION) or uuid.uuid4().hex)
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        env={**environment, tag.name: tag.value},
        cwd=folder,
        start_new_session=True,
    )
    try:
        return await asyncio.wait_for(asyncio.shield(process.wait()), deadline_seconds)
    except (TimeoutError, asyncio.CancelledError):
        await end(tag)
        await asyncio.wait_for(process.wait(), _KILL_SECONDS)
        raise


async def end(tag: Tag, grace_seconds: float = GRACE_SECONDS) -> int:
    """End every process with the tag: SIGTERM, a grace period, SIGKILL. Returns how many there were."""
    found = await asyncio.to_thread(find, tag)
    count = len(found)
    loop = asyncio.get_running_loop()
    start = loop.time()
    asked: set[Process] = set()
    while found:
        if loop.time() - start > grace_seconds + _KILL_SECONDS:
            raise ProcessesLeftError(f"{tag.value}: still there: {', '.join(str(process.pid) for process in found)}")
        for process in found:
            if loop.time() - start > grace_seconds:
                send(process, signal.SIGKILL)
            elif process not in asked:
                asked.add(process)
                send(process, signal.SIGTERM)
                # A stopped process handles SIGTERM only after SIGCONT.
                send(process, signal.SIGCONT)
        await asyncio.sleep(0.03)
        found = await asyncio.to_thread(find, tag)
    return count


def find(tag: Tag) -> list[Process]:
    """Return every live process that has the tag, shares a session with one that does, or descends from one.

    The environment alone is not enough: a program may clear it, or overwrite it with its title.
    """
    alive = {process.pid: process for process in _alive()}
    wanted = f"{tag.name}={tag.value}".encode()
    marked = {pid for pid in alive if wanted in _environ(pid)}
    if tag.name == MARKER:
        sessions = {alive[pid].session for pid in marked} - {os.getsid(0)}
        marked |= {process.pid for process in alive.values() if process.session in sessions}
    grown = -1
    while grown != len(marked):
        grown = len(marked)
        marked |= {process.pid for process in alive.values() if process.parent in marked}
    return [alive[pid] for pid in sorted(marked - set(_ourselves(alive)))]


def send(process: Process, number: signal.Signals) -> None:
    """Send a signal to exactly this process, never to a later one with the same PID."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        now = _read_process(process.pid)
        if now is not None and now.started == process.started:
            signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return
    finally:
        os.close(descriptor)


def _ourselves(alive: Mapping[int, Process]) -> Iterator[int]:
    pid = os.getpid()
    while pid in alive:
        yield pid
        pid = alive[pid].parent


def _alive() -> Iterator[Process]:
    for entry in os.listdir("/proc"):  # noqa: PTH208 - names are all that is needed, of some thousands of entries
        if entry.isdigit():
            process = _read_process(int(entry))
            if process is not None:
                yield process


def _read_process(pid: int) -> Process | None:
    try:
        content = _read(f"/proc/{pid}/stat")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name is in parentheses and may itself contain parentheses: proc(5).
    fields = content[content.rindex(b")") + 2 :].split()
    if fields[0] in {b"Z", b"X"}:
        return None
    return Process(pid, parent=int(fields[1]), session=int(fields[3]), started=int(fields[19]))


def _environ(pid: int) -> list[bytes]:
    try:
        return _read(f"/proc/{pid}/environ").split(b"\0")
    except (FileNotFoundError, PermissionError, ProcessLookupError):
        return []


def _read(path: str) -> bytes:
    """Return a file of /proc: two for each process of the computer, so without the layers of `open`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = part = os.read(descriptor, _PROC_BYTES)
        while part:
            part = os.read(descriptor, _PROC_BYTES)
            content += part
        return content
    finally:
        os.close(descriptor)
