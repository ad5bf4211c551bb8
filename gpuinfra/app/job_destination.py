"""A job goes to the machine that the user named, and to no other place that a file of the project names."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from gpuinfra.models.spec import Spec
    from gpuinfra.models.target import Target
    from gpuinfra.runner.assignment import Assignment


def check_job_destination(workspace: Path, assigned: Assignment, spec: Spec | None = None) -> None:
    """Raise a Problem if the run configuration has a machine's name, and its jobs would go elsewhere.

    The machine is that of the spec, or of a spec of the workspace, or one that this computer has used. Different specs
    of one machine are a Problem, too.
    """
    from gpuinfra.app.machines import check_specs_agree, spec_named
    from gpuinfra.workbench.project import load_project
    from gpuinfra.workbench.targets import BUILT_IN, check_destination

    name, target = assigned.configuration, assigned.target
    if target.address and spec is None:
        check_specs_agree(workspace, target.name)
    if name in BUILT_IN or (target.address and target.name == name):
        return  # the connection checks the host key
    spec = spec or spec_named(workspace, name)
    if (spec and spec.target_name == name) or _is_other_machine(target, name):
        check_destination(load_project(workspace), name)


def _is_other_machine(target: Target, name: str) -> bool:
    """Whether this computer knows a machine of this name, and the target is not that machine."""
    from gpuinfra.runner.machine.connection import HostKeyInvalid
    from gpuinfra.runner.machine.host_key import HostKey
    from gpuinfra.runner.machine.known_keys import recorded_keys

    named = (replace(target, machine=name, simulated=simulated) for simulated in (False, True))
    recorded = [known.key for each in named for known in recorded_keys(each)]
    try:
        return bool(recorded) and HostKey.parse(target.host_key) not in recorded
    except HostKeyInvalid:  # this computer has none
        return True
