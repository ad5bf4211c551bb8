"""Programs that gpuinfra runs: found outside the current folder; git, with settings of its own."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

# The job's own PATH, which may name the project's virtual environment. `remote/supervisor.py` gives it to the job.
JOB_PATH = "GPUINFRA_JOB_PATH"
USUAL = "/usr/local/bin:/usr/bin:/bin"


def secure_path(project: Path) -> None:
    """Remove the project's folders from PATH, for this process and all programs that it starts.

    Jobs keep the absolute entries: the user may have activated a virtual environment of the project.
    """
    found = os.get_exec_path()
    os.environ[JOB_PATH] = os.pathsep.join(absolute_entries(found)) or USUAL
    os.environ["PATH"] = os.pathsep.join(entries_outside(found, project)) or USUAL


def entries_outside(entries: list[str], project: Path) -> list[str]:
    """Return the absolute entries outside the project.

    This program's own folder stays. A project that contains the home folder is the user's own.
    """
    root, own = project.resolve(), Path(sys.executable).parent
    if Path(os.path.expanduser("~")).resolve().is_relative_to(root):  # noqa: PTH111 never fails
        return absolute_entries(entries)
    return [
        each
        for each in absolute_entries(entries)
        if Path(each) == own
        or not (Path(os.path.realpath(each)).is_relative_to(root) or Path(each).is_relative_to(root))
    ]


def absolute_entries(entries: list[str]) -> list[str]:
    """Return the absolute entries. Others, such as the empty one, depend on the current folder."""
    return [each for each in entries if Path(each).is_absolute()]


def find_program(name: str) -> str | None:
    """Return the full path of a program in the absolute entries of PATH, or None."""
    return shutil.which(name, path=os.pathsep.join(absolute_entries(os.get_exec_path())) or USUAL)


def find_job_program(name: str) -> str | None:
    """Return the full path of a program in the PATH of local jobs, or None."""
    return shutil.which(name, path=os.environ.get(JOB_PATH)) if JOB_PATH in os.environ else find_program(name)


SECONDS = 60.0
OPEN_SECONDS = 10.0
"""For commands that read single small files: a foreign repository may have pipes instead."""
_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
# These change only how files are compared. They name no programs.
_HARMLESS = "filemode|symlinks|ignorecase|autocrlf|eol|precomposeunicode|trustctime|checkstat|excludesfile"
# What else belongs to the repository's content: where a shallow clone ends, ignored files, parts of a split index.
_BORROWED = ("shallow", "info/exclude", "info/sparse-checkout", "sharedindex.*")


class GitError(Exception):
    """Git failed, with the reason."""


class ShallowCloneError(GitError):
    """The repository cannot be identified, because its first commits are missing."""

    def __init__(self, why: str = "the clone is shallow; fetch its whole history (`fetch-depth: 0` in CI)") -> None:
        super().__init__(why)


class PartialCloneError(ShallowCloneError):
    """Files of the history are missing."""

    def __init__(self) -> None:
        super().__init__("the clone is partial; `git fetch --refetch --no-filter` fetches the files of its history")


@dataclass(frozen=True)
class Branches:
    """The branches of a clone."""

    checked_out: str
    """The full name, such as `refs/heads/main`; empty if none is checked out, as often in CI."""
    default: str
    """The remote's default branch, such as `refs/remotes/origin/main`; empty if the clone does not know it."""
    commits: dict[str, str]
    """By full names."""


@dataclass(frozen=True)
class Repository:
    """A repository for queries, and its checked-out commit."""

    root: Path
    """The folder of its files."""
    head: str
    branches: Branches
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
    facts = _run(folder, words, environment, seconds=OPEN_SECONDS).decode("utf-8", "surrogateescape").splitlines()
    if len(facts) != 4 or not _ID.fullmatch(facts[3]):
        raise GitError("git does not say where the repository is")
    root, own, common = (Path(folder, each).resolve() for each in facts[:3])
    settings = _settings(folder, environment)
    branches = _branches(folder, environment)
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
        yield Repository(root, facts[3], branches, folder, settings, safe)


def _branches(folder: Path, environment: dict[str, str]) -> Branches:
    form = "--format=%(HEAD)%00%(refname)%00%(objectname)%00%(symref)"
    words = ("for-each-ref", form, "refs/heads", "refs/remotes")
    answer = _run(folder, words, environment, seconds=OPEN_SECONDS).decode("utf-8", "surrogateescape")
    lines = [each for line in answer.splitlines() if len(each := line.split("\0")) == 4]
    return Branches(
        checked_out=next((name for mark, name, _, _ in lines if mark == "*"), ""),
        default=next((target for _, name, _, target in lines if name == "refs/remotes/origin/HEAD"), ""),
        commits={name: commit for _, name, commit, target in lines if _ID.fullmatch(commit) and not target},
    )


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
        answer = _run(
            folder, ("config", "--null", "--get-regexp", rf"^core\.({_HARMLESS})$"), environment, seconds=OPEN_SECONDS
        )
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
