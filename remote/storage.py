"""What gpuinfra keeps on this machine: runs, copies of projects and Python environments. List it with its sizes, and
remove what nothing needs.

A folder is renamed while all locks of its possible users are held, and removed afterwards. If that is interrupted,
the next removal completes it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import shlex
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from gpuinfra.remote import environments, heartbeat, home, output_folders, slots, states
from gpuinfra.remote.run_folder import LOG, OUTPUTS, RUNS
from gpuinfra.remote.wire import DATA, GoneError, RefusedError, Wire

RUN, COPY, ENVIRONMENT, CACHE, LEFTOVER = "run", "copy", "environment", "cache", "leftover"
PROJECTS, STAGING, GONE = "projects", "staging", ".gone-"
# A client may be about to use what it found a short time ago. The same for images: see `runner.stored_images`.
RECENT_SECONDS = 2 * 3600.0
PULSE_SECONDS = 5.0
BLOCK_SIZE = 512
# A workspace locks its records of runs with these. If it is the home folder, its records are in RUNS, too.
RECORD_LOCKS = ("log.lock", "outputs-lock")
# The installer, the variable with its cache, the usual folder in the home, and the command that empties it.
CACHES = (
    ("uv", "UV_CACHE_DIR", ".cache/uv", "uv cache clean"),
    ("pip", "PIP_CACHE_DIR", ".cache/pip", "pip cache purge"),
    ("conda", "CONDA_PKGS_DIRS", ".conda/pkgs", "conda clean --all"),
)


class Terms(NamedTuple):
    """What a client wants, and what it knows."""

    seconds: float
    """Only what was not used for longer can be removed."""
    fetched: frozenset[str]
    """The client's runs that it has fetched completely."""
    unfetched: frozenset[str]
    """The client's other runs."""


class Item(NamedTuple):
    """Something that gpuinfra keeps here."""

    kind: str
    name: str
    paths: tuple[str, ...]
    judge: Callable[[], tuple[float, str]]
    """Returns when it was used last, and what needs it, or an empty text."""
    locks: tuple[tuple[str, str], ...] = ()
    """The lock files of its possible users, and what a taken one means."""


def list_items(wire: Wire, request: dict[str, Any]) -> None:
    """Send everything with its size, and whether a job is being prepared, which may use any environment or image."""
    terms, pulse = _terms(request), Pulse(wire)
    for item in _items(terms):
        size = sum(_size(path, pulse, is_shared=item.kind == CACHE) for path in item.paths)
        used, kept = _look(item, terms)
        wire.send_json({"kind": item.kind, "name": item.name, "size": size, "used": used, "kept": kept})
    wire.send_json({"preparing": _is_preparing()})


def remove_items(wire: Wire, request: dict[str, Any]) -> None:
    """Remove the named items, unless something needs them by now. Send for each why it stays, or an empty text.

    `left` is a folder of which root owns a part. `againKind` and `againName` are what to remove once the user owns it.
    """
    terms, pulse = _terms(request), Pulse(wire)
    wanted = {(str(kind), str(name)) for kind, name in request["items"]}
    for item in _items(terms):
        if (item.kind, item.name) in wanted:
            wire.send_json({"kind": item.kind, "name": item.name, **_remove(item, terms, pulse)})
    wire.send_json({"preparing": _is_preparing()})


def _terms(request: dict[str, Any]) -> Terms:
    return Terms(float(request["seconds"]), frozenset(request["fetched"]), frozenset(request["unfetched"]))


class Pulse:
    """Tells the client every few seconds that work continues. Raises GoneError if it has disconnected."""

    def __init__(self, wire: Wire) -> None:
        self._wire, self._last = wire, time.monotonic()

    def __call__(self) -> None:
        """Report progress. It is cheap to call often."""
        now = time.monotonic()
        if now - self._last > PULSE_SECONDS:
            self._last = now
            if select.select([0], [], [], 0)[0]:
                raise GoneError()
            self._wire.send(DATA, b"")
            self._wire.flush()


# What exists, and what needs it


def _items(terms: Terms) -> Iterator[Item]:
    for run in _names(RUNS):
        yield Item(RUN, run, (home.run_folder(run),), partial(judge_run, run, terms))
    for project in _names(PROJECTS):
        yield from _copies(project, terms)
    for digest in _names(environments.FOLDER):
        if "." not in digest:
            yield _environment(digest)
    yield from _leftovers()
    yield from _caches()


def _look(item: Item, terms: Terms) -> tuple[float, str]:
    """Return when an item was used last, and why it stays, or an empty text."""
    used, needed = item.judge()
    taken = next((reason for path, reason in item.locks if _is_locked(path)), "")
    linked = item.kind != CACHE and any(map(_is_linked, item.paths))
    return used, reason_to_keep(taken or needed, time.time() - used, terms.seconds, linked=linked)


def reason_to_keep(needed: str, age: float, seconds: float, *, linked: bool) -> str:
    """Return why something stays, or an empty text. `needed` is what needs it."""
    if linked:
        return "behind a symbolic link, or of another user"
    return needed or ("used recently" if age < max(seconds, RECENT_SECONDS) else "")


def judge_run(run: str, terms: Terms) -> tuple[float, str]:
    """Return when a run ended, and what needs its files."""
    used = _number((states.read(run) or {}).get("ended")) or _mtime(home.run_folder(run))
    if any(os.path.lexists(states.path(run, name)) for name in RECORD_LOCKS):
        return used, "the workspace in the home folder keeps it"
    if not states.is_over(run):
        return used, "its job is active"
    if needed := _unfetched(run, terms):
        return used, needed
    # Until the machine is off, its guest agent reads there that the run is over.
    return used, "the machine goes off after it" if heartbeat.ends_machine(run) and used >= _booted() else ""


def _unfetched(run: str, terms: Terms) -> str:
    """Return what of an ended run was not fetched. If all was, a client knows it, or has recorded it."""
    if run in terms.unfetched:
        return "its outputs were not fetched"
    if run in terms.fetched or heartbeat.is_kept(run):
        return ""
    if output_folders.has_outputs(run):
        return "its outputs were not fetched"
    # Without a log here, the Docker Engine may have one.
    is_container = (states.read(run) or {}).get("kind") == "container"
    has_log = is_container or (os.path.exists(log := states.path(run, LOG)) and os.stat(log).st_size > 0)
    return "its log was not fetched" if has_log else ""


def _copies(project: str, terms: Terms) -> Iterator[Item]:
    """Yield a project's copies, and what arrived of interrupted uploads."""
    for folder in slots.folders(project):
        locks = ((os.path.join(folder, "lock"), "an upload uses it"),)
        if paths := _filled(folder, "tree", STAGING):
            name = f"{project}/{os.path.basename(folder)}"
            yield Item(COPY, name, paths, partial(judge_copy, folder, terms), locks)
    above = home.named(PROJECTS, project)
    for staging in _filled(above, STAGING):
        locks = ((os.path.join(above, "staging.lock"), "an upload uses it"),)
        yield Item(COPY, f"{project}/{STAGING}", (staging,), partial(_judge_staging, staging), locks)


def judge_copy(folder: str, terms: Terms) -> tuple[float, str]:
    """Return when a run last used a copy of its project, and what needs it."""
    run, used = slots.holder(folder), _mtime(os.path.join(folder, "holder"))
    if not slots.is_free(folder):
        return used, "its job is active"
    with contextlib.suppress(RefusedError):  # not the name of a run
        used = max(used, _number((states.read(run) or {}).get("ended")))
    owner, names = slots.outputs_of(folder)
    places = [os.path.join(folder, "tree", name) for name in {*names, OUTPUTS}]
    if not any(map(output_folders.has_content, places)):
        return used, ""
    with contextlib.suppress(RefusedError):
        if owner not in terms.unfetched and (owner in terms.fetched or heartbeat.is_kept(owner)):
            return used, "" if states.is_over(owner) else "its job is active"
    return used, "outputs in it were not fetched"


def _judge_staging(folder: str) -> tuple[float, str]:
    return max(map(_mtime, [folder, *(os.path.join(folder, name) for name in os.listdir(folder))])), ""


def _environment(digest: str) -> Item:
    folder = home.named(environments.FOLDER, digest)
    marker = os.path.join(folder, environments.MARKER)
    locks = ((f"{folder}.lock", "it is being made"), (marker, "a job uses it"))
    return Item(ENVIRONMENT, digest, (folder,), partial(_judge_environment, folder, marker), locks)


def _judge_environment(folder: str, marker: str) -> tuple[float, str]:
    # Without a marker, its installation was interrupted.
    return _mtime(marker) or _mtime(folder), "a job is being prepared" if _is_preparing() else ""


def _is_preparing() -> bool:
    """Return whether a client prepares a job, which may have found its environment or image already."""
    recent = time.time() - states.ABANDONED_SECONDS
    return any(states.read(run) is None and _mtime(home.run_folder(run)) > recent for run in _names(RUNS))


def _leftovers() -> Iterator[Item]:
    """Yield what interrupted removals and installations left."""
    folders = [RUNS, environments.FOLDER]
    for project in _names(PROJECTS):
        inner = [os.path.basename(each) for each in slots.folders(project)]
        folders += [os.path.join(PROJECTS, project, *name) for name in ((), *((each,) for each in inner))]
    for folder in folders:
        above = os.path.join(home.root(), folder)
        for name in sorted(os.listdir(above)) if os.path.isdir(above) else ():
            path = os.path.join(above, name)
            if name.startswith(GONE) or (folder == environments.FOLDER and _is_abandoned(path)):
                yield Item(LEFTOVER, os.path.join(folder, name), (path,), _judge_leftover)


def _judge_leftover() -> tuple[float, str]:
    return 0.0, ""


def _is_abandoned(path: str) -> bool:
    """Return whether these files were for an installation that was killed."""
    start, _, end = path.rpartition(".")
    if end == "build":
        return not _is_locked(f"{start}.lock")
    process = start.rpartition(".")[2]
    return end == "tar" and process.isdigit() and not os.path.exists(f"/proc/{process}")


def _judge_cache(path: str, kept: str) -> tuple[float, str]:
    return _mtime(path), kept


def _caches() -> Iterator[Item]:
    """Yield the caches of the installers. Other programs of this user share them, so they stay."""
    for program, variable, usual, command in CACHES:
        path = os.environ.get(variable) or os.path.join(os.path.expanduser("~"), usual)
        if os.path.isdir(path):
            kept = f"not only for jobs; `{command}` empties it"
            yield Item(CACHE, program, (path,), partial(_judge_cache, path, kept))


# Removing


def _remove(item: Item, terms: Terms, pulse: Pulse) -> dict[str, Any]:
    if kept := _look(item, terms)[1]:
        return {"kept": kept}
    if item.kind == LEFTOVER:
        return _empty(item.paths, pulse)
    try:
        return _remove_run(item, pulse) if item.kind == RUN else _remove_locked(item, terms, pulse)
    except FileNotFoundError:
        return {"kept": ""}  # another client has removed it


def _remove_locked(item: Item, terms: Terms, pulse: Pulse) -> dict[str, Any]:
    """Remove a copy or an environment while nothing else can use it."""
    with contextlib.ExitStack() as stack:
        for path, reason in item.locks:
            if not _take(path, stack):
                return {"kept": reason}
        used, needed = item.judge()
        if kept := reason_to_keep(needed, time.time() - used, terms.seconds, linked=False):
            return {"kept": kept}
        gone = [_set_aside(path) for path in item.paths]
    return _empty(gone, pulse)


def _remove_run(item: Item, pulse: Pulse) -> dict[str, Any]:
    """Remove a run that was just seen to be over."""
    lock = states.take(item.name)
    if lock is None:
        return {"kept": "its job is active"}
    try:
        if left := output_folders.release(item.name):
            return _left(left, item.kind, item.name)
        gone = _set_aside(item.paths[0])
    finally:
        os.close(lock)
    return _empty([gone], pulse)


def _take(path: str, stack: contextlib.ExitStack) -> bool:
    """Take a lock until the stack ends. The marker of an environment is one only if it exists."""
    is_marker = os.path.basename(path) == environments.MARKER
    try:
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC | (0 if is_marker else os.O_CREAT), 0o600)
    except FileNotFoundError:
        return is_marker
    stack.callback(os.close, lock)
    if not home.try_lock(lock):
        return False
    if not is_marker:
        # An upload ends the process whose id is in it: see `slots.Lock`. An old id may be another process by now.
        os.ftruncate(lock, 0)
    return True


def _set_aside(path: str) -> str:
    """Rename a folder, so that it is no longer found, and return its new path."""
    above, name = os.path.split(path)
    for number in itertools.count(1):
        gone = os.path.join(above, f"{GONE}{name}-{number}")
        if not os.path.lexists(gone):
            os.rename(path, gone)
            return gone
    raise AssertionError


def _empty(folders: Sequence[str], pulse: Pulse) -> dict[str, Any]:
    """Remove folders that were set aside."""
    for folder in folders:
        worker = threading.Thread(target=_delete, args=(folder,), daemon=True)
        worker.start()
        while worker.is_alive():
            worker.join(PULSE_SECONDS)
            pulse()
        if os.path.lexists(folder):
            return _left(folder, LEFTOVER, os.path.relpath(folder, home.root()))
    return {"kept": ""}


def _left(folder: str, kind: str, name: str) -> dict[str, Any]:
    """Return the answer for a folder in which a container's root wrote, and what to remove once that is fixed."""
    kept = f"root owns files in it; run on the machine: `sudo chown -R $USER {shlex.quote(folder)}`"
    return {"kept": kept, "left": folder, "againKind": kind, "againName": name}


def _delete(path: str) -> None:
    if os.path.isdir(path):
        home.remove_tree(path)
    else:
        os.unlink(path)


# Files


def _names(*parts: str) -> list[str]:
    """Return the folders in a folder of the root."""
    above = os.path.join(home.root(), *parts)
    if not os.path.isdir(above):
        return []
    return sorted(name for name in os.listdir(above) if name[0] != "." and os.path.isdir(os.path.join(above, name)))


def _filled(folder: str, *names: str) -> tuple[str, ...]:
    """Return the paths of these folders, except of absent and empty ones."""
    paths = (os.path.join(folder, name) for name in names)
    return tuple(path for path in paths if os.path.isdir(path) and os.listdir(path))


def _is_linked(path: str) -> bool:
    """Return whether a path in the root leads through a link, or to something of another user."""
    with contextlib.suppress(FileNotFoundError):
        while path != os.path.dirname(home.root()):
            found = os.lstat(path)
            if stat.S_ISLNK(found.st_mode) or found.st_uid != os.getuid():
                return True
            path = os.path.dirname(path)
    return False


def _is_locked(path: str) -> bool:
    with contextlib.ExitStack() as stack:
        return os.path.exists(path) and not _take(path, stack)


def _mtime(path: str) -> float:
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return 0.0


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def _booted() -> float:
    """Return when the machine was started."""
    with open("/proc/stat") as lines:
        return next(float(line.split()[1]) for line in lines if line.startswith("btime "))


def _size(top: str, pulse: Pulse, *, is_shared: bool) -> int:
    """Return the bytes that a removal frees: not those of files that have a name elsewhere, unless it `is_shared`."""
    total, pending = 0, [top]
    links: dict[int, int] = {}
    while pending:
        path = pending.pop()
        pulse()
        with contextlib.suppress(OSError):
            found = os.lstat(path)
            if stat.S_ISDIR(found.st_mode):
                pending += [os.path.join(path, name) for name in os.listdir(path)]
            elif found.st_nlink > 1:
                seen = links[found.st_ino] = links.get(found.st_ino, 0) + 1
                if seen != (1 if is_shared else found.st_nlink):
                    continue
            total += found.st_blocks * BLOCK_SIZE
    return total
