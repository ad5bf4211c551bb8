"""What the commands that deal with jobs share: the connection to a target, and the history of runs."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuinfra.app.settings import Settings
from gpuinfra.app.simulation import check_target
from gpuinfra.diagnostics import Code, Diagnostic, Problem
from gpuinfra.models.resource import MachineId, parse_machine_id

if TYPE_CHECKING:
    from gpuinfra.app.frontend import Frontend
    from gpuinfra.models.run import Run
    from gpuinfra.models.spec import Spec
    from gpuinfra.models.target import Target
    from gpuinfra.runner.assignment import Assignment
    from gpuinfra.runner.machine.link import Link
    from gpuinfra.runner.results.history import History
    from gpuinfra.runner.results.record import Record

PROJECT_FILE = "project"
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,80}")


@dataclass(frozen=True)
class Workspace:
    """A workspace, from where jobs are sent."""

    settings: Settings
    path: Path
    state: Path
    history: History

    def run_folder(self, run_id: str) -> Path:
        """What is kept here of one run."""
        from gpuinfra.runner.results.history import run_folder

        return run_folder(self.state, run_id)

    def is_unfollowed(self, run: Run) -> bool:
        """Whether the job may run while no process here follows it: its client was killed, or detached."""
        from gpuinfra.runner.jobs.log import LogFile

        return not run.state.is_over and not LogFile(self.run_folder(run.id) / "log").is_followed

    def record(self, run: Run, *, tracked: bool = True) -> Record:
        """A run that goes on."""
        from gpuinfra.runner.results.record import Record
        from gpuinfra.workspace import state_folder

        with _writing(self.path):
            state_folder(self.path)
            folder = self.run_folder(run.id)
            folder.mkdir(parents=True, exist_ok=True)
        return Record(run, folder, self.history if tracked else None)

    def project_key(self) -> str:
        """What this project is called on targets: the same wherever its folder is moved to, and nobody else's."""
        from gpuinfra.workspace import write_text

        file = self.state / PROJECT_FILE
        for _ in range(2):
            if file.is_file() and _KEY.fullmatch(key := file.read_text("utf-8", "replace").strip()):
                return key
            plain = re.sub(r"[^A-Za-z0-9]+", "-", self.path.resolve().name).strip("-")[:40] or "project"
            # Of two who do so at once, one is first, and the other reads what it wrote.
            with suppress(FileExistsError):
                write_text(file, f"{plain}-{secrets.token_hex(4)}\n", replace=file.exists())
        return file.read_text("utf-8").strip()


def open_workspace(settings: Settings) -> Workspace:
    """The workspace's own. Its folder `.gpuinfra` is created with the first run."""
    from gpuinfra.runner.results.history import History
    from gpuinfra.workspace import find_workspace

    workspace = find_workspace(settings.workspace)
    state = settings.state
    return Workspace(settings, workspace, state, History(state))


def check_workspace(settings: Settings) -> None:
    """Raise a Problem if no run could be recorded in the workspace."""
    from gpuinfra.workspace import check_state_folder, find_workspace

    workspace = find_workspace(settings.workspace)
    with _writing(workspace):
        check_state_folder(workspace)


@contextmanager
def _writing(workspace: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        note = f"`{workspace}`: {error.strerror}; what is known of runs is kept in its folder `.gpuinfra`"
        diagnostic = Diagnostic(Code.FILE_UNWRITABLE, "file cannot be written", note=note, help="make it writable")
        raise Problem(diagnostic) from error


def with_spec(workspace: Workspace, assigned: Assignment, spec: Spec | None = None) -> tuple[Assignment, Spec | None]:
    """A target that is a machine of ours: its spec, the one that is given or that of the workspace, says which key, and
    that it has a GPU."""
    from gpuinfra.app.machines import spec_named, spec_of_machine

    target = assigned.target
    check_target(workspace.settings, target)
    machine = parse_machine_id(target.resource_id)
    if spec is None and machine:
        spec = spec_of_machine(workspace.path, machine.name, machine.group_name)
    elif spec is None and target.address:
        spec = spec_named(workspace.path, target.name)
    if spec is None or (machine is None and spec.target_name != target.name):
        return assigned, None
    from gpuinfra.runner.assignment import WantsGpu
    from gpuinfra.runner.machine.identity import identity_of

    identity = target.identity or identity_of(spec.admin.key(), workspace.path)
    target = replace(target, machine=spec.name, identity=identity)
    # Only a file that says so itself keeps the GPU of a machine that has one from its jobs.
    needs = spec.target.nvidia_docker and not assigned.says_gpu
    return replace(assigned, target=target, gpu=WantsGpu.REQUIRED if needs else assigned.gpu), spec


@contextmanager
def linked(target: Target, progress: Frontend, *, send_credentials: bool = False) -> Iterator[Link]:
    """The way to a target, for as long as it is needed."""
    from gpuinfra.app.passwords import secret_of
    from gpuinfra.runner.machine.link import link_to

    secret = secret_of(target, progress, can_ask=progress.can_ask) if target.address else None
    link = link_to(target, secret, send_credentials=send_credentials)
    try:
        yield link
    finally:
        link.drop()


def target_of_run(workspace: Workspace, run: Run) -> tuple[Target, Spec | None]:
    """Where a run of the past was, by its configuration's files as they are now; with the spec of a machine of ours."""
    from gpuinfra.runner.assignment import assign

    assigned, spec = with_spec(workspace, assign(workspace.path, run.configuration))
    target = assigned.target
    if target.type != run.type or target.name != run.target:
        was, now = f"`{run.target}`, of type {run.type}", "something else"
    elif run.machine and target.resource_id and not run.is_of(target.machine, target.resource_id):
        was, now = f"the machine `{run.machine}`", f"`{target.machine}`"
    else:
        return target, spec
    note = f"run {run.id} was on {was}; `{run.configuration}` means {now} now"
    help_line = "restore the original configuration first: `gpuinfra up` with the spec of that machine"
    raise Problem(Diagnostic(Code.UNKNOWN_TARGET, "the target has changed", note=note, help=help_line))


def machine_of(target: Target, spec: Spec | None) -> Spec | MachineId | None:
    """Which machine of ours a target is, by its spec or by the target's file; None where it is not one of ours."""
    return spec or parse_machine_id(target.resource_id, target.host_key)
