"""Shared functions for commands on jobs: the connection to a target, and the history of runs."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuinfra.app.access import check_target
from gpuinfra.app.settings import Settings
from gpuinfra.diagnostics import Code, problem
from gpuinfra.models.resource import MachineId, parse_machine_id

if TYPE_CHECKING:
    from gpuinfra.app.frontend import Frontend
    from gpuinfra.models.run import Run
    from gpuinfra.models.spec import Spec
    from gpuinfra.models.target import Target
    from gpuinfra.runner.job_spec import JobSpec
    from gpuinfra.runner.jobs.log import LogFile
    from gpuinfra.runner.link import Link
    from gpuinfra.runner.record import Record
    from gpuinfra.store.history import History

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
        from gpuinfra.store.history import run_folder

        return run_folder(self.state, run_id)

    def log_of(self, run_id: str) -> LogFile:
        """Return the log of a run on this computer."""
        from gpuinfra.runner.jobs.log import LogFile

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
    from gpuinfra.store.history import History

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
    from gpuinfra.app.passwords import secret_of
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
