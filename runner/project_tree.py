"""A project as it is sent: walk its folder, with an index of what did not change."""

from __future__ import annotations

import contextlib
import errno
import gc
import hashlib
import json
import os
import posixpath
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from gpuinfra.runner.content import read, shown
from gpuinfra.runner.errors import UploadError
from gpuinfra.runner.ignore import GIT, NAMES, Ignore, Ignored, copied_folders, may_hold_credentials
from gpuinfra.runner.progress import Progress, counted
from gpuinfra.workspace import write_text

FILE, FOLDER, LINK = "f", "d", "l"
# Entries per message.
BATCH = 5000


class Entry(NamedTuple):
    """A file, folder or link in the project, in the form in which it is sent."""

    path: str
    """Relative to the project. Names that are not UTF-8 have surrogates."""
    kind: str
    """FILE, FOLDER or LINK."""
    mode: int
    """Permissions, at most 0o777."""
    size: int
    content: str
    """The digest of a file, or the target of a link."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A path that is not sent, although no ignore file names it."""

    path: str
    reason: str


@dataclass(frozen=True)
class Tree:
    """The entries of a project, folders before their content, and what is not sent."""

    root: Path
    entries: tuple[Entry, ...]
    skipped: tuple[Skipped, ...] = ()
    held_back: tuple[str, ...] = ()
    """Files and folders that are not sent because they may hold credentials."""
    included: tuple[str, ...] = ()
    """Files and folders that usually hold credentials, but are sent because the ignore file includes them."""
    ignore_file: str = ""
    ignored: tuple[Ignored, ...] = ()
    """Files and folders that ignore files leave out."""
    copied: tuple[str, ...] = ()
    """Folders with copies of outputs, which are not sent."""
    unignored: tuple[str, ...] = ()
    """Paths that are sent although `.gitignore` names them, because another ignore file is used."""
    pool: dict[str, bytes] = field(default_factory=dict, repr=False, compare=False)
    """The content of small files that were read for their digest, by digest."""

    @cached_property
    def files(self) -> int:
        """Return the number of files."""
        return sum(entry.kind == FILE for entry in self.entries)

    @cached_property
    def size(self) -> int:
        """Return the size of all files in bytes."""
        return sum(entry.size for entry in self.entries)

    @cached_property
    def digest(self) -> str:
        """Return the digest of all entries. It is the same for the same project on every computer."""
        whole = hashlib.sha256()
        for batch in self.batches:
            whole.update(batch)
        return whole.hexdigest()[:32]

    @cached_property
    def batches(self) -> tuple[bytes, ...]:
        """Return all entries, encoded for the target."""
        return tuple(self._batches())

    def includes(self, path: str) -> bool:
        """Return whether a path in the project is sent."""
        return posixpath.normpath(path) in self._paths

    def replacing(self, entry: Entry) -> Tree:
        """Return this tree with a new entry for a path."""
        return replace(self, entries=tuple(entry if each.path == entry.path else each for each in self.entries))

    def without(self, path: str) -> Tree:
        """Return this tree without a path."""
        return replace(self, entries=tuple(each for each in self.entries if each.path != path))

    @cached_property
    def _paths(self) -> frozenset[str]:
        return frozenset(entry.path for entry in self.entries)

    def _batches(self) -> Iterator[bytes]:
        for start in range(0, len(self.entries), BATCH):
            yield json.dumps(self.entries[start : start + BATCH], separators=(",", ":")).encode()


INDEX_FILE = "upload-index"
INDEX_FORMAT = 2
# A file that changes twice within a clock tick keeps its stamp. So the digest of a recent file is not stored.
RACY_NS = 2_000_000_000


def stamp_of(stat: os.stat_result) -> str:
    """Return a text that identifies an unchanged file. Text, because thousands of lists are slow to parse."""
    return f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns} {stat.st_ino} "


class Index:
    """Digests by path. Without a folder, nothing is stored."""

    def __init__(self, folder: Path | None) -> None:
        self._file = folder / INDEX_FILE if folder else None
        self._before = _read(self._file) if self._file else {}
        self._now: dict[str, str] = {}

    def digest(self, path: str, stat: os.stat_result) -> str | None:
        """Return the stored digest of a file, or None if the file has changed."""
        entry, same = self._before.get(path), stamp_of(stat)
        if entry is None or not entry.startswith(same):
            return None
        self._now[path] = entry
        return entry[len(same) :]

    def remember(self, path: str, stat: os.stat_result, digest: str, read_at_ns: int) -> None:
        """Store the digest of a file, unless the file is so recent that a later change could be missed."""
        if max(stat.st_mtime_ns, stat.st_ctime_ns) < read_at_ns - RACY_NS:
            self._now[path] = stamp_of(stat) + digest

    def save(self) -> None:
        """Write the index. If that fails, the next upload reads all files again."""
        if self._file is None or self._now == self._before:
            return
        with contextlib.suppress(OSError):
            content = json.dumps({"format": INDEX_FORMAT, "files": self._now}, separators=(",", ":"))
            write_text(self._file, content, replace=True)


def _read(file: Path) -> dict[str, str]:
    try:
        found = json.loads(file.read_bytes() if file.is_file() else b"")
        entries = found["files"] if found["format"] == INDEX_FORMAT else {}
        if set(map(type, entries.values())) <= {str}:
            return dict(entries)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass  # an invalid index counts as empty
    return {}


STEP = "project"
LEADS_OUT = "a link that leads out of the project"
FOREIGN_RULES = f"{LEADS_OUT}; its rules are not used"
MAX_RULES_SIZE = 256 << 10
SPECIAL = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
}
# Never sent: git's folder at any depth, and in the top folder gpuinfra's folder and the outputs of jobs.
ALWAYS_LEFT_OUT = {".git"}
LEFT_OUT_AT_TOP = {".gpuinfra", "outputs"}
# The content of small files stays in memory after it was read for the digest, up to this total.
MAX_POOLED_FILE = 64 << 10
MAX_POOL = 32 << 20


def read_tree(project: Path, state: Path | None, progress: Progress, more_outputs: Sequence[str] = ()) -> Tree:
    """Return the project as it will be sent, without folders for outputs. Raise UploadError if it cannot be read."""
    progress.begin(STEP, "reading the project")
    try:
        with _no_garbage_collection():
            tree = _Walk(project, Index(state), copied_folders(state), progress, more_outputs).tree()
    except UploadError as error:
        progress.fail(STEP, str(error))
        raise
    progress.end(STEP, counted(tree.files, "file"))
    return tree


def find_ignored(project: Path, path: str, progress: Progress) -> Ignored | None:
    """Return what ignore files leave out of the project: this path or a folder above it. None if they do not."""
    return _Walk(project, Index(None), frozenset(), progress, ()).find_ignored(path)


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Disable the garbage collector. A walk creates many objects and no cycles, and the collector takes a third of
    its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Walk:
    def __init__(
        self, project: Path, index: Index, copied: frozenset[str], progress: Progress, more_outputs: Sequence[str]
    ) -> None:
        self._left_out_at_top = LEFT_OUT_AT_TOP | set(more_outputs)
        self._project, self._index, self._copied, self._progress = project, index, copied, progress
        self._root = os.path.realpath(os.fsencode(project))
        self._ignore_name = next((name for name in NAMES if (project / name).is_file()), NAMES[0])
        self._entries: list[Entry] = []
        self._skipped: list[Skipped] = []
        self._foreign_rules: set[str] = set()
        self._ignored: list[Ignored] = []
        self._held_back: list[str] = []
        self._included: list[str] = []
        self._left_copies: list[str] = []
        self._unignored: list[str] = []
        self._pool: dict[str, bytes] = {}
        self._pooled = self._read = 0

    def tree(self) -> Tree:
        # Follow what git ignores only if another ignore file is used.
        git = None if self._ignore_name == GIT else Ignore()
        pending: list[tuple[str, Ignore, Ignore | None]] = [("", Ignore(), git)]
        while pending:
            pending += reversed(self._folder(*pending.pop()))
        self._index.save()
        return Tree(
            self._project,
            tuple(self._entries),
            tuple(self._skipped),
            held_back=tuple(sorted(self._held_back)),
            included=tuple(sorted(self._included)),
            ignore_file=self._ignore_name,
            ignored=tuple(self._ignored),
            copied=tuple(sorted(self._left_copies)),
            unignored=tuple(sorted(self._unignored)),
            pool=self._pool,
        )

    def find_ignored(self, path: str) -> Ignored | None:
        """See `find_ignored`."""
        ignore, folder, full = Ignore(), "", self._root
        *above, name = path.split("/")
        for each in (*above, name):
            ignore = self._with_rules(folder, full, ignore, self._ignore_name)
            folder, full = f"{folder}/{each}" if folder else each, os.path.join(full, os.fsencode(each))
            is_folder = os.path.isdir(full) and not os.path.islink(full)
            if line := ignore.line_for(folder, is_folder):
                return Ignored(folder, is_folder, line)
        return None

    def _folder(self, folder: str, ignore: Ignore, git: Ignore | None) -> list[tuple[str, Ignore, Ignore | None]]:
        """Add the content of a folder, and return the folders in it."""
        full = os.path.join(self._root, folder.encode("utf-8", "surrogateescape")) if folder else self._root
        try:
            with os.scandir(full) as found:
                children = sorted((child.name.decode("utf-8", "surrogateescape"), child) for child in found)
        except OSError as error:
            raise _unreadable("a folder cannot be read", folder or ".", error) from error
        names = {name for name, _ in children}
        if self._ignore_name in names:
            ignore = self._with_rules(folder, full, ignore, self._ignore_name)
        if git is not None and GIT in names:
            git = self._with_rules(folder, full, git, GIT)
        folders = []
        for name, child in children:
            path = f"{folder}/{name}" if folder else name
            if name in ALWAYS_LEFT_OUT or (not folder and name in self._left_out_at_top):
                continue
            is_folder = child.is_dir(follow_symlinks=False)
            if self._is_ignored(path, is_folder, ignore) or self._holds_back(path, name, is_folder, ignore):
                continue
            try:
                self._add(path, full, child)
            except FileNotFoundError:
                continue  # removed since the folder was listed
            except OSError as error:
                raise _unreadable("a file cannot be read", path, error) from error
            below = self._follow_git(path, is_folder, git)
            if is_folder:
                folders.append((path, ignore, below))
        return folders

    def _follow_git(self, path: str, is_folder: bool, git: Ignore | None) -> Ignore | None:
        """Note a path that git ignores. The content of an ignored folder is not noted again."""
        if git is None or not git.leaves_out(path, is_folder):
            return git
        self._unignored.append(f"{path}/" if is_folder else path)
        return None

    def _is_ignored(self, path: str, is_folder: bool, ignore: Ignore) -> bool:
        line = ignore.line_for(path, is_folder)
        if line:
            self._ignored.append(Ignored(path, is_folder, line))
        return line is not None

    def _holds_back(self, path: str, name: str, is_folder: bool, ignore: Ignore) -> bool:
        """Return whether a path is not sent because it may hold credentials or copies of outputs."""
        is_copy, shown_path = is_folder and path in self._copied, f"{path}/" if is_folder else path
        if not (is_copy or may_hold_credentials(name, is_folder)):
            return False
        if ignore.includes_by_name(path, is_folder):
            if not is_copy:
                self._included.append(shown_path)
            return False
        (self._left_copies if is_copy else self._held_back).append(shown_path)
        return True

    def _with_rules(self, folder: str, full: bytes, ignore: Ignore, name: str) -> Ignore:
        file = os.path.join(full, name.encode())
        path = f"{folder}/{name}" if folder else name
        if not os.path.isfile(file):  # a folder with the name of an ignore file
            return ignore
        if not os.path.realpath(file).startswith(os.path.join(self._root, b"")):
            self._foreign_rules.add(path)
            return ignore
        try:
            with open(file, "rb") as stream:
                content = stream.read(MAX_RULES_SIZE + 1)
        except OSError as error:
            raise _unreadable("an ignore file cannot be read", path, error) from error
        if len(content) > MAX_RULES_SIZE:
            too_large = OSError(errno.EFBIG, f"it has more than {MAX_RULES_SIZE >> 10} KiB")
            raise _unreadable("an ignore file cannot be read", path, too_large)
        return ignore.below(folder, content, name)

    def _add(self, path: str, folder: bytes, child: os.DirEntry[bytes]) -> None:
        found = child.stat(follow_symlinks=False)
        mode = stat.S_IMODE(found.st_mode) & 0o777
        if stat.S_ISREG(found.st_mode):
            self._add_file(path, mode, found)
        elif stat.S_ISDIR(found.st_mode):
            self._entries.append(Entry(path, FOLDER, mode, 0, ""))
        elif stat.S_ISLNK(found.st_mode):
            target = inside(self._root, folder, os.readlink(child.path))
            if target is None or path in self._foreign_rules:
                reason = FOREIGN_RULES if path in self._foreign_rules else LEADS_OUT
                self._skipped.append(Skipped(path, reason))
            else:
                self._entries.append(Entry(path, LINK, 0o777, 0, target.decode("utf-8", "surrogateescape")))
        else:
            self._skipped.append(Skipped(path, SPECIAL.get(stat.S_IFMT(found.st_mode), "not a regular file")))

    def _add_file(self, path: str, mode: int, found: os.stat_result) -> None:
        digest = self._index.digest(path, found)
        if digest is not None:
            self._entries.append(Entry(path, FILE, mode, found.st_size, digest))
            return
        began = time.time_ns()
        content = read(self._root, path, MAX_POOLED_FILE, self._report)
        self._entries.append(Entry(path, FILE, mode, content.size, content.digest))
        if content.size == content.stat.st_size:
            self._index.remember(path, content.stat, content.digest, began)
        if content.data and self._pooled + content.size <= MAX_POOL:
            self._pool[content.digest] = content.data
            self._pooled += content.size

    def _report(self, count: int) -> None:
        self._read += count
        self._progress.amount(STEP, self._read, None)


def _unreadable(summary: str, path: str, error: OSError) -> UploadError:
    help_ = "make it readable, or name it in `.gpuinfraignore`"
    return UploadError(summary, shown(path), error.strerror or str(error), help_)


def inside(root: bytes, folder: bytes, target: bytes) -> bytes | None:
    """Return a link's target relative to the link's folder, or None if it leads out of the project.

    `root` and `folder` are absolute paths without links.
    """
    place = os.path.join(folder, target)
    if not _is_below(root, os.path.realpath(place)):
        return None
    direct = os.path.normpath(place)
    if not os.path.isabs(target) and _never_leaves(root, folder, target):
        return target
    # The target reaches the project by another path, such as a link to the project: use where it ends.
    kept = direct if _is_below(root, direct) else os.path.realpath(place)
    return os.path.relpath(kept, folder)


def _is_below(root: bytes, path: bytes) -> bool:
    return path == root or path.startswith(root.rstrip(b"/") + b"/")


def _never_leaves(root: bytes, folder: bytes, target: bytes) -> bool:
    """Return whether each step of a path stays in the project, because the project's folder has another name there."""
    depth = len(os.path.relpath(folder, root).split(b"/")) if folder != root else 0
    for part in target.split(b"/"):
        depth += -1 if part == b".." else part not in {b"", b"."}
        if depth < 0:
            return False
    return True
