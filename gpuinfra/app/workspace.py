"""The workspace of a command: its files, its targets with their passwords, and its history of runs."""

from __future__ import annotations

import re
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuinfra.app.access import check_target
from gpuinfra.app.settings import Settings
from gpuinfra.diagnostics import Code, Exit, Problem, problem
from gpuinfra.models.consent import Question
from gpuinfra.models.plan import MachineId, parse_machine_id

if TYPE_CHECKING:
    from gpuinfra.app.frontend import Frontend
    from gpuinfra.models.run import Run
    from gpuinfra.models.spec import Spec
    from gpuinfra.models.target import Target
    from gpuinfra.runner.job_spec import JobSpec
    from gpuinfra.runner.link import Link
    from gpuinfra.runner.log import LogFile
    from gpuinfra.runner.record import Record
    from gpuinfra.store import History

PROJECT_FILE = "project"
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,80}")


@dataclass(frozen=True)
class Workspace:
    """A workspace from which jobs are submitted."""

    settings: Settings
    path: Path
    state: Path
    history: History

    def run_folder(self, run_id: str) -> Path:
        """Return the local folder of one run."""
        from gpuinfra.store import run_folder

        return run_folder(self.state, run_id)

    def log_of(self, run_id: str) -> LogFile:
        """Return the log of a run on this computer."""
        from gpuinfra.runner.log import LogFile

        return LogFile(self.run_folder(run_id) / "log")

    def is_unfollowed(self, run: Run) -> bool:
        """Return whether the job may run while no local process follows it: its client was killed, or detached."""
        return not run.state.is_over and not self.log_of(run.id).is_followed

    def record(self, run: Run, *, tracked: bool = True) -> Record:
        """Return the record of an active run, after creating its folder."""
        from gpuinfra.runner.record import Record
        from gpuinfra.workspace import state_folder

        with _writing(self.path):
            state_folder(self.path)
            folder = self.run_folder(run.id)
            folder.mkdir(parents=True, exist_ok=True)
        return Record(run, folder, self.history if tracked else None)

    def project_key(self) -> str:
        """Return this project's unique name on targets, which stays the same if its folder is moved."""
        from gpuinfra.workspace import write_text

        file = self.state / PROJECT_FILE
        for _ in range(2):
            if file.is_file() and _KEY.fullmatch(key := file.read_text("utf-8", "replace").strip()):
                return key
            plain = re.sub(r"[^A-Za-z0-9]+", "-", self.path.resolve().name).strip("-")[:40] or "project"
            # If two processes do this at once, the second reads what the first wrote.
            with suppress(FileExistsError):
                write_text(file, f"{plain}-{secrets.token_hex(4)}\n", replace=file.exists())
        return file.read_text("utf-8").strip()


def open_workspace(settings: Settings) -> Workspace:
    """Return the workspace. Its folder `.gpuinfra` is created with the first run."""
    from gpuinfra.store import History

    workspace = settings.folder
    state = settings.state
    return Workspace(settings, workspace, state, History(state))


def check_workspace(settings: Settings) -> None:
    """Raise Problem if no run could be recorded in the workspace."""
    from gpuinfra.workspace import check_state_folder

    workspace = settings.folder
    with _writing(workspace):
        check_state_folder(workspace)


@contextmanager
def _writing(workspace: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        note = f"`{workspace}`: {error.strerror}; what is known of runs is kept in its folder `.gpuinfra`"
        raise problem(Code.FILE_UNWRITABLE, "file cannot be written", note, "make it writable") from error


def with_spec(workspace: Workspace, job: JobSpec) -> tuple[JobSpec, Spec | None]:
    """Return the job with what its machine's spec adds, and the spec, or None if the workspace has none."""
    target = job.target
    if not target.address:
        return job, None
    from gpuinfra.app.specs import spec_named, spec_of_machine

    check_target(workspace.settings, target)
    machine = parse_machine_id(target.resource_id)
    if machine:
        spec = spec_of_machine(workspace.path, machine.name, machine.group_name)
    else:
        spec = spec_named(workspace.path, target.name)
    if spec is None or (machine is None and spec.target_name != target.name):
        return job, None
    return with_options(replace(job, target=with_key(workspace.path, target, spec)), spec), spec


def with_key(workspace: Path, target: Target, spec: Spec) -> Target:
    """Return the target of a spec's machine, with the private key for the spec's public key."""
    from gpuinfra.runner.connection.private_keys import identity_of

    return replace(target, machine=spec.name, identity=target.identity or identity_of(spec.admin.key(), workspace))


def with_options(job: JobSpec, spec: Spec) -> JobSpec:
    """Return the job, which needs a GPU if the spec says so and no project file says otherwise."""
    from gpuinfra.runner.job_spec import GpuNeed

    needs_gpu = spec.target.nvidia_docker and not job.says_gpu
    return replace(job, gpu_need=GpuNeed.REQUIRED if needs_gpu else job.gpu_need)


@contextmanager
def linked(target: Target, frontend: Frontend, *, send_credentials: bool = False) -> Iterator[Link]:
    """Connect to a target for the duration of this block."""
    from gpuinfra.runner.link import link_to

    secret = secret_of(target, frontend, can_ask=frontend.can_ask) if target.address else None
    link = link_to(target, secret, send_credentials=send_credentials)
    try:
        yield link
    finally:
        link.drop()


def target_of_run(workspace: Workspace, run: Run) -> tuple[Target, Spec | None]:
    """Return the target of an earlier run, from its configuration's current files, and the machine's spec, if any."""
    from gpuinfra.runner.resolve import read_job

    job, spec = with_spec(workspace, read_job(workspace.path, run.configuration))
    target = job.target
    if target.type != run.type or target.name != run.target:
        was, now = f"`{run.target}`, of type {run.type}", "something else"
    elif run.machine and target.resource_id and not run.is_of(target.machine, target.resource_id):
        was, now = f"the machine `{run.machine}`", f"`{target.machine}`"
    else:
        return target, spec
    note = f"run {run.id} was on {was}; `{run.configuration}` means {now} now"
    help_line = "restore the original configuration first: `gpuinfra up SPEC` with the spec of that machine"
    raise problem(Code.UNKNOWN_TARGET, "the target has changed", note, help_line)


def machine_of(target: Target, spec: Spec | None) -> Spec | MachineId | None:
    """Return our machine behind a target, from its spec or the target file; None if it is not ours."""
    return spec or (parse_machine_id(target.resource_id, target.host_key) if target.resource_id else None)


# Longer than any password, and a limit for endless streams.
LONGEST = 4096


class Secret:
    """A password that is requested once, when a machine needs it."""

    def __init__(self, find: Callable[[], str]) -> None:
        self._find = find
        self._found: str | None = None

    def __call__(self) -> str:
        """Return the password."""
        if self._found is None:
            self._found = self._find()
        return self._found

    def keep(self, target: Target) -> str | None:
        """Store it in the keyring if the machine asked for it; return the reference for the target file."""
        from gpuinfra.runner.connection.passwords import account, save_password

        return None if self._found is None else save_password(target.name, account(target), self._found)


def read_password(frontend: Frontend) -> str:
    """Return one line of standard input, or hidden input from a terminal."""
    if sys.stdin.isatty():
        return frontend.ask_password("Password")
    line = sys.stdin.buffer.readline(LONGEST + 1)
    try:
        text = line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError:
        text = ""  # the exception contains the whole line, so drop it
    if not text or len(line) > LONGEST:
        note = "the first line of standard input is empty, too long, or not UTF-8"
        help_line = "for example: `gpuinfra attach … --password-stdin < file`"
        raise problem(Code.USAGE, "no password", note, help_line, exit_code=Exit.USAGE)
    return text


def secret_of(target: Target, frontend: Frontend, *, can_ask: bool) -> Secret | None:
    """Return a target's password, from the keyring or by asking the user; None if neither is possible."""
    from gpuinfra.runner.connection.passwords import find_password, keyring_entry

    def ask() -> str:
        return frontend.ask_password(f"Password of {target.username} at {target.address}")

    kept = keyring_entry(target)
    if found := find_password(*kept) if kept else None:
        return Secret(lambda: found)
    return Secret(ask) if can_ask else None


def write_file(
    path: Path,
    content: str | bytes,
    settings: Settings,
    frontend: Frontend,
    *,
    ours: bool = False,
    project: Path | None = None,
) -> None:
    """Write a complete file. Replace an existing one only if it is `ours`, with `--yes`, or after confirmation.

    Links must not lead out of `project`, which is the workspace by default.
    """
    from gpuinfra.workspace import check_inside, write_bytes

    check_inside(path, project or settings.workspace)
    if path.exists() and not path.is_file():
        # Writing would replace a device with a plain file.
        raise _unwritable(path, "there is something else than a file")
    replace = ours or settings.yes
    if path.exists() and not replace and frontend.can_ask:
        replace = frontend.confirm(Question(f"{path} exists. Replace it?"))
    try:
        write_bytes(path, content.encode("utf-8") if isinstance(content, str) else content, replace=replace)
    except FileExistsError:
        raise problem(
            Code.FILE_EXISTS,
            "file exists",
            f"`{path}` was left as it is",
            "give another path, or `--yes` to replace it",
            exit_code=Exit.USAGE,
        ) from None
    except OSError as error:
        raise _unwritable(path, str(error.strerror)) from None


def _unwritable(path: Path, reason: str) -> Problem:
    return problem(Code.FILE_UNWRITABLE, "file cannot be written", f"`{path}`: {reason}")
