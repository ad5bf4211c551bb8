"""List the targets for jobs, and remove those of deleted machines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuinfra.app.frontend import Frontend
    from gpuinfra.app.settings import Settings
    from gpuinfra.models.plan import MachineId
    from gpuinfra.models.target import Reachability, Target
    from gpuinfra.workbench.targets import Targets

SECONDS = 5.0


def list_targets(settings: Settings) -> Targets:
    """Return the workspace's targets, and errors in their files."""
    from gpuinfra.workbench.targets import read_targets

    return read_targets(settings.folder)


def default_configuration(workspace: Path) -> str:
    """Return the run configuration of the workspace's only target. Raise Problem if the user must name one.

    This computer counts only if no machine is a target: a job that needs a GPU must not run here unnoticed.
    """
    from gpuinfra.diagnostics import Code, Exit, Problem, Severity, listed, problem
    from gpuinfra.workbench.compute import CLUSTER
    from gpuinfra.workbench.targets import read_targets

    known = read_targets(workspace)
    if errors := [each for each in known.diagnostics if each.severity is Severity.ERROR]:
        raise Problem(*errors, exit_code=Exit.USAGE)  # the only readable target may be the wrong one
    found = [each for each in known.targets if each.type != CLUSTER]
    named = [each.name for each in found if not each.is_here] or [each.name for each in found]
    if len(named) == 1:
        return named[0]
    if named:
        note, help_line = f"the workspace has the targets {listed(sorted(named), 'and')}", "choose one with `-c NAME`"
    else:
        note = f"`{workspace}` has no target"
        help_line = "`gpuinfra up` and `gpuinfra attach` write one; `-c local` is this computer"
    raise problem(Code.USAGE, "no target named", note, help_line, exit_code=Exit.USAGE)


def remove_targets(settings: Settings, machine: MachineId, frontend: Frontend, *, simulated: bool) -> None:
    """Remove the targets of a deleted machine: their host key would refuse the next machine with this name.

    Errors are only reported, because the machine is gone already.
    """
    from gpuinfra.diagnostics import Problem
    from gpuinfra.models.plan import same_machine
    from gpuinfra.parse.document import EditError
    from gpuinfra.workbench.targets import read_targets, remove_target

    for target in read_targets(settings.folder).targets:
        if target.simulated != simulated or not same_machine(target.resource_id, str(machine)):
            continue
        try:
            removed = remove_target(settings.folder, target)
        except (OSError, EditError, Problem) as error:
            frontend.note(f"the target `{target.name}` of the deleted machine stays: {error}")
            continue
        names = " and ".join(path.relative_to(settings.folder).as_posix() for path in removed)
        frontend.note(f"the target `{target.name}` was removed with its machine: {names}")


def call_targets(targets: Sequence[Target], frontend: Frontend) -> dict[str, Reachability]:
    """Return for each target with an address whether it answers."""
    from gpuinfra.runner.connection.handshake import reachability

    remote = [target for target in targets if target.address and not target.is_here]
    if not remote:
        return {}
    counted = "1 machine" if len(remote) == 1 else f"{len(remote)} machines"
    frontend.begin("targets", f"calling {counted}")
    found = reachability(remote, SECONDS)
    answering = sum(reach.state == "yes" for reach in found)
    frontend.end("targets", f"{answering} of {counted} can be used")
    return {target.name: reach for target, reach in zip(remote, found, strict=True)}
