"""Read a project: find the files to send, and the digest of each."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from gpuinfra.runner.errors import UploadError
from gpuinfra.runner.progress import Progress, counted
from gpuinfra.runner.upload.content import read, shown
from gpuinfra.runner.upload.copied_outputs import copied_folders
from gpuinfra.runner.upload.credentials import may_hold_credentials
from gpuinfra.runner.upload.ignore import GIT, NAMES, Ignore
from gpuinfra.runner.upload.index import Index
from gpuinfra.runner.upload.tree import FILE, FOLDER, LINK, Entry, Skipped, Tree

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


def read_tree(project: Path, state: Path | None, progress: Progress) -> Tree:
    """Return the project as it will be sent. Raise UploadError if a file cannot be read."""
    progress.begin(STEP, "reading the project")
    try:
        with _no_garbage_collection():
            tree = _Walk(project, Index(state), copied_folders(state), progress).tree()
    except UploadError as error:
        progress.fail(STEP, str(error))
        raise
    progress.end(STEP, counted(tree.files, "file"))
    return tree


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
    def __init__(self, project: Path, index: Index, copied: frozenset[str], progress: Progress) -> None:
        self._project, self._index, self._copied, self._progress = project, index, copied, progress
        self._root = os.path.realpath(os.fsencode(project))
        self._ignore_name = next((name for name in NAMES if (project / name).is_file()), NAMES[0])
        self._entries: list[Entry] = []
        self._skipped: list[Skipped] = []
        self._foreign_rules: set[str] = set()
        self._held_back: list[str] = []
        self._included: list[str] = []
        self._left_copies: list[str] = []
        self._unignored: list[str] = []
        self._pool: dict[str, bytes] = {}
        self._pooled = self._read = 0

    def tree(self) -> Tree:
        # Follow what git ignores only if another ignore file is used.
        git = None if self._ignore_name == GIT else Ignore()
        waiting: list[tuple[str, Ignore, Ignore | None]] = [("", Ignore(), git)]
        while waiting:
            waiting += reversed(self._folder(*waiting.pop()))
        self._index.save()
        return Tree(
            self._project,
            tuple(self._entries),
            tuple(self._skipped),
            held_back=tuple(sorted(self._held_back)),
            included=tuple(sorted(self._included)),
            ignore_file=self._ignore_name,
            copied=tuple(sorted(self._left_copies)),
            unignored=tuple(sorted(self._unignored)),
            pool=self._pool,
        )

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
            if name in ALWAYS_LEFT_OUT or (not folder and name in LEFT_OUT_AT_TOP):
                continue
            is_folder = child.is_dir(follow_symlinks=False)
            if ignore.leaves_out(path, is_folder) or self._holds_back(path, name, is_folder, ignore):
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
        return ignore.below(folder, content)

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
