"""Read a git repository without running any program that the repository names.

A repository's own settings can name programs: filters, monitors, hooks, signature checkers, helpers for fetching. No
complete list of them exists, so none of these settings are read. `git` works on a temporary git directory that borrows
the objects and the index of the real one, with harmless settings only.
"""

import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gpuinfra.programs import find_program

SECONDS = 60.0
_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
# These change only how files are compared. They name no programs.
_HARMLESS = "filemode|symlinks|ignorecase|autocrlf|eol|precomposeunicode|trustctime|checkstat|excludesfile"
# What else belongs to the repository's content: where a shallow clone ends, ignored files, parts of a split index.
_BORROWED = ("shallow", "info/exclude", "info/sparse-checkout", "sharedindex.*")


class GitError(Exception):
    """Git failed, with the reason."""


class ShallowCloneError(GitError):
    """The repository cannot be identified, because its first commits are missing."""

    def __init__(self) -> None:
        super().__init__("the clone is shallow; fetch its whole history (`fetch-depth: 0` in CI)")


@dataclass(frozen=True)
class Repository:
    """A repository for queries, and its checked-out commit."""

    root: Path
    """The folder of its files."""
    head: str
    _folder: Path
    _settings: tuple[str, ...]
    _environment: dict[str, str]

    def identify(self) -> str:
        """Return the repository's id, the same in every clone: a hash of its first commits. Raises GitError.

        All first commits count, so merging the history of another repository does not give that repository's id.
        """
        if self.ask("rev-parse", "--is-shallow-repository").strip() == b"true":
            raise ShallowCloneError
        roots = sorted(self.ask("rev-list", "--max-parents=0", self.head).split())
        return hashlib.sha256(b"\n".join(roots)).hexdigest()[:32]

    def ask(self, *words: str, stdin: bytes = b"", seconds: float = SECONDS) -> bytes:
        """Return what a git command that only reads prints; raises GitError."""
        return _run(self._folder, (*self._settings, *words), self._environment, stdin, seconds)


@contextmanager
def open_repository(folder: Path) -> Iterator[Repository]:
    """Open the repository that a folder is in; raises GitError if it has no repository with a commit."""
    # Nothing that these two commands do can run a program. They check `safe.directory`.
    environment = _environment()
    words = ("rev-parse", "--show-toplevel", "--absolute-git-dir", "--git-common-dir", "--verify", "HEAD")
    facts = _run(folder, words, environment).decode("utf-8", "surrogateescape").splitlines()
    if len(facts) != 4 or not _ID.fullmatch(facts[3]):
        raise GitError("git does not say where the repository is")
    root, own, common = (Path(folder, each).resolve() for each in facts[:3])
    settings = _settings(folder, environment)
    with tempfile.TemporaryDirectory(prefix="gpuinfra-git-") as made:
        _make_git_folder(Path(made), own, common, facts[3])
        safe = {
            **environment,
            "HOME": made,
            "XDG_CONFIG_HOME": made,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_DIR": made,
            "GIT_WORK_TREE": str(root),
            "GIT_INDEX_FILE": str(own / "index"),
            "GIT_OBJECT_DIRECTORY": str(common / "objects"),
        }
        yield Repository(root, facts[3], folder, settings, safe)


def _make_git_folder(made: Path, own: Path, common: Path, head: str) -> None:
    """Write a git directory whose only setting is the format of the objects."""
    (made / "HEAD").write_text(f"{head}\n")
    for name in ("refs", "objects", "info"):
        (made / name).mkdir()
    version, extension = (1, "[extensions]\n\tobjectFormat = sha256\n") if len(head) == 64 else (0, "")
    (made / "config").write_text(f"[core]\n\trepositoryFormatVersion = {version}\n\tbare = false\n{extension}")
    for pattern in _BORROWED:
        for file in {*common.glob(pattern), *own.glob(pattern)}:
            with suppress(FileExistsError):
                (made / file.relative_to(own if file.is_relative_to(own) else common)).symlink_to(file)


def _settings(folder: Path, environment: dict[str, str]) -> tuple[str, ...]:
    """Return the harmless settings of the user and the repository, as options of git."""
    home = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config")
    found = {"core.excludesfile": str(home / "git" / "ignore")}
    with suppress(GitError):  # git fails if none is set
        answer = _run(folder, ("config", "--null", "--get-regexp", rf"^core\.({_HARMLESS})$"), environment)
        for each in answer.decode("utf-8", "surrogateescape").split("\0"):
            name, _, value = each.partition("\n")
            if value:
                found[name] = value
    with suppress(RuntimeError):  # there is no such user
        found["core.excludesfile"] = str(Path(found["core.excludesfile"]).expanduser())
    return tuple(word for name, value in found.items() for word in ("-c", f"{name}={value}"))


def _environment() -> dict[str, str]:
    """Return the variables for git, without the caller's: they could name a repository or allow more than reading."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return {**kept, "GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "", "GIT_PAGER": "cat"}


# A folder of plain files in the work tree must not count as a repository.
_PLAIN = ("-c", "safe.bareRepository=explicit")


def _run(
    folder: Path, words: tuple[str, ...], environment: dict[str, str], stdin: bytes = b"", seconds: float = SECONDS
) -> bytes:
    git = find_program("git")
    if git is None:
        raise GitError("git is not installed")
    try:
        done = subprocess.run(  # noqa: S603 git itself, with fixed arguments
            [git, *_PLAIN, *words],
            cwd=folder,
            env=environment,
            input=stdin,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GitError(f"git does not answer: {type(error).__name__}") from error
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["git fails"]
        raise GitError(said[0].removeprefix("fatal: "))
    return done.stdout
