"""Find machines whose specs were deleted from a folder in git, and when."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath

from gpuinfra.diagnostics import Problem
from gpuinfra.git import GitError, Repository, ShallowCloneError, open_repository
from gpuinfra.parse.folder import mentions_spec, yaml_files
from gpuinfra.parse.source import MAX_BYTES, decode
from gpuinfra.parse.tree import Mapping as Document
from gpuinfra.parse.tree import Scalar, read
from gpuinfra.provision.names import default_group, machine_key

MAX_AGE = timedelta(days=90)
MAX_COMMITS = 500
_SUFFIXES = {".yaml", ".yml"}
_SKIPPED = {"node_modules", "__pycache__"}
_NO_BLOB = re.compile("0+")
# For files that are not valid YAML. A superfluous match is better than treating an existing spec as deleted.
_NAME = re.compile(r"""(?:^|[\s{,])["']?name["']?\s*:\s*["']?([A-Za-z0-9][\w.-]*)""")


@dataclass(frozen=True)
class SpecHistory:
    """What git records about a folder of specs."""

    deleted: Mapping[str, datetime] = field(default_factory=dict)
    """Keys of machines with the time of the commit that deleted the spec, at least the time of its parent."""
    repository: str = ""
    """The repository's ID; empty without a repository, or in a shallow clone."""
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
    """Return the specs that were deleted from this folder in the last 90 days and 500 commits."""
    try:
        with open_repository(folder) as repository:
            found = repository.identify()
            below = Path(folder).resolve().relative_to(repository.root).as_posix()
            here = _names_here(repository.root)
            blobs = _Blobs(repository)
            files = dict(_files_at_head(repository))
            blobs.fetch(list(files.values()))
            here |= {key.rpartition("/")[2] for blob in files.values() for key in blobs.names(blob)}
            at_head = [key for path, blob in files.items() if _is_yaml(path, below) for key in blobs.names(blob)]
            gone = deletions(at_head, _commits(repository, below, now, blobs))
    except (GitError, ValueError, OSError) as error:
        is_shallow = isinstance(error, ShallowCloneError)
        return SpecHistory(is_shallow=is_shallow, note=f"no machine was compared with its spec: {error}")
    # A spec with another group, or anywhere else in the repository, does not count as deleted.
    return SpecHistory({key: at for key, at in gone.items() if key.rpartition("/")[2] not in here}, found)


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
        if mentions_spec(content):
            text = content.decode("utf-8", "replace")
            named = (key.rpartition("/")[2] for key in names_in(content))
            found |= {*named, *(name.casefold() for name in _NAME.findall(text))}
    return found


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


def _files_at_head(repository: Repository) -> Iterator[tuple[str, str]]:
    """Yield path and blob of every YAML file in the last commit, including hidden folders."""
    for line in repository.ask("ls-tree", "-r", "-z", "--full-tree", "HEAD").split(b"\0"):
        facts, _, path = line.decode("utf-8", "surrogateescape").partition("\t")
        if PurePosixPath(path).suffix in _SUFFIXES:
            yield path, facts.split()[2]


def _times(repository: Repository) -> dict[str, datetime]:
    """Return the time of each commit on the main line, at least its parent's time: the committer chooses the date."""
    times, latest = dict[str, datetime](), datetime.fromtimestamp(0, UTC)
    lines = repository.ask("rev-list", "--first-parent", "--reverse", "--timestamp", "HEAD").decode().splitlines()
    for seconds, commit in (line.split() for line in lines):
        latest = max(latest, datetime.fromtimestamp(int(seconds), UTC))
        times[commit] = latest
    return times


def _commits(repository: Repository, below: str, now: datetime, blobs: _Blobs) -> list[Commit]:
    """Return the commits that change the folder, newest first, each compared with its first parent."""
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
        "HEAD",
        "--",
        # Without a pathspec, the whole repository counts.
        *([] if below == "." else [f":(top,literal){below}"]),
    )
    parts = repository.ask(*words).decode("utf-8", "replace").split("\x01")
    times, found = _times(repository), []
    for commit, changes in zip(parts[1::2], parts[2::2], strict=False):
        pairs = list(_changes(changes, below))
        blobs.fetch([blob for pair in pairs for blob in pair])
        before, after = ([name for pair in pairs for name in blobs.names(pair[side])] for side in (0, 1))
        found.append(Commit(times[commit], tuple(before), tuple(after)))
    return found


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


class _Blobs:
    """The machine keys in git's files, each file read once."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._names: dict[str, tuple[str, ...]] = {}

    def names(self, blob: str) -> tuple[str, ...]:
        """Return the keys in a blob, or an empty tuple if the file did not exist."""
        if _NO_BLOB.fullmatch(blob):
            return ()
        self.fetch([blob])
        return self._names[blob]

    def fetch(self, blobs: Sequence[str]) -> None:
        """Read the blobs that are not known yet, with one git call."""
        missing = [each for each in dict.fromkeys(blobs) if each not in self._names and not _NO_BLOB.fullmatch(each)]
        if missing:
            answer = self._repository.ask("cat-file", "--batch", stdin="\n".join(missing).encode() + b"\n")
            self._names |= dict(_batch(answer, missing))


def _batch(answer: bytes, blobs: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield keys by blob from `SHA blob SIZE`, newline, content, newline; or `SHA missing`, as in a partial clone."""
    place = 0
    for blob in blobs:
        end = answer.index(b"\n", place)
        head = answer[place:end].split()
        place = end + 1
        if head[-1] == b"missing":
            yield blob, ()
            continue
        size = int(head[2])
        yield blob, names_in(answer[place : place + size]) if head[1] == b"blob" else ()
        place += size + 1
