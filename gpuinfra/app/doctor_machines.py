"""Asks Azure, and the machines themselves, for what `doctor` has to know of each."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuinfra.diagnostics import Exit, Problem

if TYPE_CHECKING:
    from gpuinfra.app.machines import CloudSession
    from gpuinfra.load.spec import Located
    from gpuinfra.models.checks import MachineChecks
    from gpuinfra.models.spec import Spec
    from gpuinfra.provision.cloud import Observed, ObservedResource
    from gpuinfra.provision.health.machine import Facts

AT_ONCE = 4


def machines(reached: CloudSession, names: Sequence[str], specs: Sequence[Located]) -> tuple[MachineChecks, ...]:
    """What is found of the machines with these names, or of all."""
    from gpuinfra.app.machine_names import chosen
    from gpuinfra.app.machines import explained
    from gpuinfra.provision.azure.fleet import list_all_machines
    from gpuinfra.provision.ownership import Owner, machine_of_row, owner_of

    with explained("listing machines"):
        rows = list_all_machines(reached.cloud.clients)
    by_key = {(each.spec.name.casefold(), each.spec.group_name.casefold()): each.spec for each in specs}
    # By name, and then by group: a name that is there twice is shown twice.
    parts = sorted(map(machine_of_row, rows), key=lambda part: (part.ref.name, part.ref.group))
    wanted, absent, problems = chosen(reached.settings, names, rows)
    if problems:
        raise Problem(*problems, exit_code=Exit.USAGE)
    shown = [part for part in parts if not names or (part.ref.name, part.ref.group) in wanted]
    untagged = [_untagged(part) for part in shown if owner_of(part) is Owner.UNTAGGED]
    ours = [part.ref for part in shown if owner_of(part) is Owner.OURS]
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="doctor") as pool:
        asked = [
            pool.submit(_look, reached, ref.name, ref.group, by_key.get((ref.name.casefold(), ref.group.casefold())))
            for ref in ours
        ]
        return (*(each.result() for each in asked), *untagged, *(_absent(name) for name in absent))


def _untagged(machine: ObservedResource) -> MachineChecks:
    from gpuinfra.models.checks import MachineChecks, problem
    from gpuinfra.provision.ownership import untagged_problem

    (found,) = untagged_problem(machine).diagnostics
    return MachineChecks(
        machine.ref.name, machine.ref.group, (problem("tags", f"{found.summary}: {found.note}", found.help),)
    )


def _absent(name: str) -> MachineChecks:
    from gpuinfra.models.checks import MachineChecks, problem

    seen = "Azure has no machine of gpuinfra's with this name in the subscription"
    return MachineChecks(name, "", (problem("state", seen, "`gpuinfra status` lists those that there are"),))


def _look(reached: CloudSession, name: str, group: str, spec: Spec | None) -> MachineChecks:
    from gpuinfra.models.checks import MachineChecks, warning
    from gpuinfra.provision.errors import CloudError
    from gpuinfra.provision.health.machine import examine

    try:
        facts = _facts(reached, name, group, spec)
    except CloudError as error:
        return MachineChecks(name, group, (warning("state", f"not known: {error.code}: {error.message}"),))
    return MachineChecks(name, group, examine(facts)) if facts else _absent(name)


def _facts(reached: CloudSession, name: str, group: str, spec: Spec | None) -> Facts | None:
    from gpuinfra.models.resource import Kind
    from gpuinfra.provision.azure.rights import Rights
    from gpuinfra.provision.health.machine import Facts

    cloud = reached.cloud
    observed = cloud.observe(name, group)
    machine = observed.part(Kind.VM)
    if machine is None:
        return None  # it went meanwhile
    facts = Facts(
        subscription=cloud.subscription,
        machine=machine,
        schedule=observed.part(Kind.SHUTDOWN_SCHEDULE),
        right=Rights(cloud.clients).look(machine),
        permissions=reached.market.actions_allowed(group),
        now=cloud.now(),
    )
    if machine.power != "running":
        return facts
    return replace(_with_agent(reached, facts, observed, spec), now=cloud.now())


def _with_agent(reached: CloudSession, facts: Facts, observed: Observed, spec: Spec | None) -> Facts:
    from gpuinfra.app.agent_state import NoAgentError, read_agent_state
    from gpuinfra.app.machines import with_known_key
    from gpuinfra.provision.find import target_of
    from gpuinfra.runner.machine.identity import identity_of
    from gpuinfra.workspace import find_workspace

    settings = reached.settings
    identity = identity_of(spec.admin.key(), settings.workspace) if spec else None
    try:
        port, simulated = reached.cloud.clients.access.ssh_port, reached.cloud.simulated
        target = target_of(observed, ssh_port=port, identity=identity, simulated=simulated)
        state = read_agent_state(with_known_key(find_workspace(settings.workspace), target))
    except NoAgentError as error:
        return replace(facts, no_agent=str(error), is_reached=error.is_reached)
    except Problem as error:
        return replace(facts, no_agent=str(error.diagnostics[0].note))
    return replace(facts, agent=state, is_reached=True)
