"""Find machines whose specs were deleted from a folder in git, and when."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath

from gpuinfra.diagnostics import Problem
from gpuinfra.models.reap import SpecSource
from gpuinfra.parse.source import MAX_BYTES, decode, mentions_spec, yaml_files
from gpuinfra.parse.tree import Mapping as Document
from gpuinfra.parse.tree import Scalar, read
from gpuinfra.programs import Branches, GitError, PartialCloneError, Repository, ShallowCloneError, open_repository
from gpuinfra.provision.tags import default_group, machine_key

MAX_AGE = timedelta(days=90)
MAX_COMMITS = 500
_SUFFIXES = {".yaml", ".yml"}
_SKIPPED = {"node_modules", "__pycache__"}
_REMOTE = "refs/remotes/origin/"
_NO_NAME = re.compile("[0-9a-f]{40,64}")
_NO_BLOB = re.compile("0+")
# For files that are not valid YAML. A superfluous match is better than treating an existing spec as deleted.
_NAME = re.compile(r"""(?:^|[\s{,])["']?name["']?\s*:\s*["']?([A-Za-z0-9][\w.-]*)""")


@dataclass(frozen=True)
class SpecHistory:
    """What git records about a folder of specs."""

    deleted: Mapping[str, datetime] = field(default_factory=dict)
    """Keys of machines with the time of the commit that deleted the spec, at least the time of its parent."""
    present: frozenset[str] = frozenset()
    """Case-folded names of machines that have, or may have, a spec in what is checked out of the whole repository."""
    committed: frozenset[str] = frozenset()
    """Case-folded names of machines that have, or may have, a spec in the commit that is checked out, or on the default
    branch."""
    repository: str = ""
    """The repository's ID; empty without a repository, or in a shallow clone."""
    source: SpecSource | None = None
    is_shallow: bool = False
    note: str = ""
    """Why git's history is not available."""


@dataclass(frozen=True)
class Commit:
    """A commit on the main line: its time, and the machine keys in its changed files before and after it."""

    at: datetime
    before: tuple[str, ...]
    after: tuple[str, ...]


def spec_history(folder: Path, now: datetime) -> SpecHistory:
    """Return the specs that were deleted from this folder in the last 90 days and 500 commits.

    A spec counts as deleted on the default branch only, and only if no file in the whole repository has it: neither
    there, nor in what is checked out.
    """
    try:
        with open_repository(folder) as repository:
            found = repository.identify()
            below = Path(folder).resolve().relative_to(repository.root).as_posix()
            here = _names_here(repository.root)
            blobs = _Blobs(repository)
            possible = default_branch(repository.branches, repository.head)
            name, main = next(iter(possible.items()))
            files = {commit: dict(_files_at(repository, commit)) for commit in {repository.head, *possible.values()}}
            blobs.fetch([blob for found_there in files.values() for blob in found_there.values()])
            everywhere = {blob for found_there in files.values() for blob in found_there.values()}
            committed = {name for blob in everywhere for name in blobs.possible_names(blob)}
            at_main = [key for path, blob in files[main].items() if _is_yaml(path, below) for key in blobs.names(blob)]
            times = _times(repository, main)
            gone = deletions(at_main, _commits(repository, main, below, now, blobs, times))
            source = SpecSource(
                ref=_short(name),
                commit=main,
                at=times[main],
                checked_out=_short(repository.branches.checked_out or repository.head),
                is_default=repository.head == main,
                is_known=len(possible) == 1,
                dirty=_uncommitted(repository, below),
            )
    except (GitError, ValueError, OSError) as error:
        is_shallow = isinstance(error, ShallowCloneError)
        return SpecHistory(is_shallow=is_shallow, note=f"no machine was compared with its spec: {error}")
    # A spec with another group, or anywhere else in the repository, does not count as deleted.
    deleted = {key: at for key, at in gone.items() if key.rpartition("/")[2] not in here | committed}
    return SpecHistory(deleted, frozenset(here), frozenset(committed), found, source)


def default_branch(branches: Branches, head: str) -> dict[str, str]:
    """Return the default branch with its commit; if the clone does not know it, all branches that could be it.

    A clone knows it as `origin/HEAD`; a checkout in CI often does not. Then `origin/main` or `origin/master` is, if
    only one of them exists, or the only branch of the remote. Without a remote, the same applies to its own branches.
    """
    remote = {name: at for name, at in branches.commits.items() if name.startswith(_REMOTE)}
    if branches.default in remote:
        return {branches.default: remote[branches.default]}
    usual = {name: at for name, at in (remote or branches.commits).items() if name.endswith(("/main", "/master"))}
    usual = {name: at for name, at in usual.items() if name.count("/") == (3 if remote else 2)}
    for found in (usual, remote):
        if len(found) == 1:
            return found
    return {branches.checked_out or head: head, **(remote or usual)}


def deletions(at_head: Iterable[str], commits: Iterable[Commit]) -> dict[str, datetime]:
    """Return deleted names with the time of the commit that deleted their last file. `commits` are newest first."""
    count = Counter(at_head)
    present, gone = set(count), dict[str, datetime]()
    for commit in commits:
        before = Counter(count)
        before.subtract(Counter(commit.after))
        before.update(Counter(commit.before))
        for name in commit.before:
            if before[name] > 0 and count[name] <= 0 and name not in present:
                gone.setdefault(name, commit.at)
        count = before
    return gone


def names_in(content: bytes) -> tuple[str, ...]:
    """Return the keys of the machines in a YAML file, even if a spec in it is no longer valid."""
    if not mentions_spec(content):
        return ()
    try:
        documents = read(decode("", content[: MAX_BYTES + 1])).documents
    except Problem:
        return ()
    return tuple(key for document in documents if (key := _key_of(document)))


def _key_of(document: object) -> str:
    if not isinstance(document, Document):
        return ""
    version, name = document.items.get("apiVersion"), document.items.get("name")
    if not isinstance(version, Scalar) or not isinstance(name, Scalar) or not version.text.startswith("gpuinfra/"):
        return ""
    group = document.items.get("resourceGroup")
    return machine_key(group.text if isinstance(group, Scalar) and group.text else default_group(name.text), name.text)


def _names_here(root: Path) -> set[str]:
    """Return every name that the work tree's files could mean. Raise GitError if a file cannot be read."""
    found: set[str] = set()
    for file in yaml_files(root):
        try:
            content = file.read_bytes()
        except OSError as error:
            raise GitError(f"`{file}` cannot be read: {error.strerror}") from error
        found |= _possible_names(content, names_in(content))
    return found


def _possible_names(content: bytes, keys: Iterable[str]) -> frozenset[str]:
    """Return every name that a file could mean, also one that is not valid YAML. `keys` are those of its specs."""
    if not mentions_spec(content):
        return frozenset()
    named = (key.rpartition("/")[2] for key in keys)
    return frozenset((*named, *(name.casefold() for name in _NAME.findall(content.decode("utf-8", "replace")))))


def repository_of(file: Path) -> tuple[str, str]:
    """Return the ID of the git repository that contains the spec, and a note if a shallow clone hides the ID."""
    if not file.is_file():
        return "", ""
    try:
        with open_repository(file.parent) as repository:
            return repository.identify(), ""
    except ShallowCloneError as error:
        return "", f"`reap --specs` cannot know which repository the spec is from: {error}"
    except GitError:
        return "", ""


# Git


def _files_at(repository: Repository, commit: str) -> Iterator[tuple[str, str]]:
    """Yield path and blob of every YAML file in a commit, including hidden folders."""
    for line in repository.ask("ls-tree", "-r", "-z", "--full-tree", commit).split(b"\0"):
        facts, _, path = line.decode("utf-8", "surrogateescape").partition("\t")
        if PurePosixPath(path).suffix in _SUFFIXES:
            yield path, facts.split()[2]


def _times(repository: Repository, commit: str) -> dict[str, datetime]:
    """Return the time of each commit on the main line, at least its parent's time: the committer chooses the date."""
    times, latest = dict[str, datetime](), datetime.fromtimestamp(0, UTC)
    lines = repository.ask("rev-list", "--first-parent", "--reverse", "--timestamp", commit).decode().splitlines()
    for seconds, each in (line.split() for line in lines):
        latest = max(latest, datetime.fromtimestamp(int(seconds), UTC))
        times[each] = latest
    return times


def _commits(
    repository: Repository, main: str, below: str, now: datetime, blobs: _Blobs, times: Mapping[str, datetime]
) -> list[Commit]:
    """Return the commits before `main` that change the folder, newest first, each compared with its first parent."""
    words = (
        "log",
        "--first-parent",
        "--diff-merges=first-parent",
        "--no-renames",
        "--raw",
        "--no-abbrev",
        "-z",
        "--format=%x01%H%x01",
        f"--max-count={MAX_COMMITS}",
        f"--since={(now - MAX_AGE).isoformat()}",
        main,
        "--",
        # Without a pathspec, the whole repository counts.
        *([] if below == "." else [f":(top,literal){below}"]),
    )
    parts = repository.ask(*words).decode("utf-8", "replace").split("\x01")
    found = []
    for commit, changes in zip(parts[1::2], parts[2::2], strict=False):
        pairs = list(_changes(changes, below))
        blobs.fetch([blob for pair in pairs for blob in pair])
        before, after = ([name for pair in pairs for name in blobs.names(pair[side])] for side in (0, 1))
        found.append(Commit(times[commit], tuple(before), tuple(after)))
    return found


def _uncommitted(repository: Repository, below: str) -> tuple[str, ...]:
    """Return the paths of changed and new files in the folder that are not committed, and may be part of a spec."""
    # Git runs programs that the settings of a submodule name.
    words = ("status", "--porcelain=v1", "--no-renames", "--untracked-files=all", "--ignore-submodules=all", "-z", "--")
    answer = repository.ask(*words, *([] if below == "." else [f":(top,literal){below}"]))
    paths = (line[3:].decode("utf-8", "replace") for line in answer.split(b"\0") if line)
    return tuple(path for path in paths if _is_yaml(path, below) or path.endswith(".txt"))


def _short(name: str) -> str:
    short = name.removeprefix("refs/heads/").removeprefix("refs/remotes/")
    return short[:7] if _NO_NAME.fullmatch(short) else short


def _changes(text: str, below: str) -> Iterator[tuple[str, str]]:
    """Yield the blobs of changed YAML files before and after, from `:100644 100644 OLD NEW M` followed by the path."""
    words = [word for word in text.strip("\n").split("\0") if word.strip()]
    for facts, path in zip(words[::2], words[1::2], strict=False):
        fields = facts.strip().lstrip(":").split()
        if len(fields) >= 4 and _is_yaml(path, below):
            yield fields[2], fields[3]


def _is_yaml(path: str, below: str) -> bool:
    """Return whether `validate` would also read the file."""
    whole = PurePosixPath(path)
    if not whole.is_relative_to(below):
        return False
    inner = whole.relative_to(below)
    hidden = any(part.startswith(".") or part in _SKIPPED for part in inner.parts[:-1])
    return inner.suffix in _SUFFIXES and not hidden


@dataclass(frozen=True)
class _Names:
    """The names in a file."""

    keys: tuple[str, ...] = ()
    """The keys of the machines of its valid specs."""
    possible: frozenset[str] = frozenset()
    """Case-folded names that it could mean."""


class _Blobs:
    """The machine keys in git's files, each file read once."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._names: dict[str, _Names] = {}

    def names(self, blob: str) -> tuple[str, ...]:
        """Return the keys in a blob, or an empty tuple if the file did not exist."""
        return self._read(blob).keys

    def possible_names(self, blob: str) -> frozenset[str]:
        """Return the case-folded names that a blob could mean."""
        return self._read(blob).possible

    def _read(self, blob: str) -> _Names:
        if _NO_BLOB.fullmatch(blob):
            return _Names()
        self.fetch([blob])
        return self._names[blob]

    def fetch(self, blobs: Sequence[str]) -> None:
        """Read the blobs that are not known yet, with one git call. Raise GitError if the clone lacks one."""
        missing = [each for each in dict.fromkeys(blobs) if each not in self._names and not _NO_BLOB.fullmatch(each)]
        if missing:
            answer = self._repository.ask("cat-file", "--batch", stdin="\n".join(missing).encode() + b"\n")
            self._names |= dict(_batch(answer, missing))


def _batch(answer: bytes, blobs: Sequence[str]) -> Iterator[tuple[str, _Names]]:
    """Yield names by blob from `SHA blob SIZE`, newline, content, newline; or `SHA missing`, as in a partial clone."""
    place = 0
    for blob in blobs:
        end = answer.index(b"\n", place)
        head = answer[place:end].split()
        place = end + 1
        if head[-1] == b"missing":
            # Without the file, its spec would look deleted, or a deleted one would not be found.
            raise PartialCloneError
        size = int(head[2])
        content = answer[place : place + size] if head[1] == b"blob" else b""
        keys = names_in(content)
        yield blob, _Names(keys, _possible_names(content, keys))
        place += size + 1
