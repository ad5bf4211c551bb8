"""What a machine itself knows about runs: other workspaces have their own histories."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpuinfra.diagnostics import Problem
from gpuinfra.models.consent import Contact, MachineAnswer, MachineRun

if TYPE_CHECKING:
    from gpuinfra.app.machines import CloudSession
    from gpuinfra.models.spec import Spec
    from gpuinfra.models.target import Target
    from gpuinfra.provision.cloud import Observed

# A machine that does not answer must not delay its own end for long.
CONNECT_SECONDS = 10.0
_OFF = frozenset({"deallocated", "deallocating", "stopped"})


def ask_machine(reached: CloudSession, name: str, group: str | None, spec: Spec | None) -> MachineAnswer:
    """Ask the machine for all its runs, whichever workspace sent them."""
    from gpuinfra.provision.attachments import attached_by_others
    from gpuinfra.provision.errors import CloudError, Fault

    try:
        observed = reached.cloud.observe(name, group, thorough=True)
    except CloudError as error:
        if error.fault is Fault.INTERRUPTED:
            raise
        return MachineAnswer(Contact.SILENT)
    contact, machine = _contact(observed), observed.machine
    is_billed = machine is not None and machine.power != "deallocated"
    answer = MachineAnswer(contact, is_billed=is_billed) if contact else _ask(reached, observed, spec)
    return replace(answer, attached=attached_by_others(machine) if machine else ())


def _contact(observed: Observed) -> Contact | None:
    """What is known without asking the machine; None where it can be asked."""
    from gpuinfra.models.resource import Kind
    from gpuinfra.provision.plan import creation_failed

    if creation_failed(observed):
        return Contact.NOTHING_THERE
    if observed.machine is None:
        return Contact.OFF if any(part.ref.kind is Kind.DISK for part in observed.ours()) else Contact.NOTHING_THERE
    return Contact.OFF if observed.machine.power in _OFF else None


def _ask(reached: CloudSession, observed: Observed, spec: Spec | None) -> MachineAnswer:
    from gpuinfra.runner.jobs.port import JobError
    from gpuinfra.runner.machine.connection import ConnectError
    from gpuinfra.runner.machine.link import link_to
    from gpuinfra.runner.machine.remote_client import RemoteError
    from gpuinfra.runner.watch import runs_there

    try:
        link = link_to(_target(reached, observed, spec), seconds=CONNECT_SECONDS)
        try:
            found = runs_there(link.remote)
        finally:
            link.drop()
    except (Problem, ConnectError, RemoteError, JobError):
        return MachineAnswer(Contact.SILENT)
    runs = (MachineRun(each.run, each.is_over, each.has_outputs) for each in found)
    return MachineAnswer(Contact.ANSWERED, tuple(runs))


def _target(reached: CloudSession, observed: Observed, spec: Spec | None) -> Target:
    from gpuinfra.app.machines import spec_of_machine, with_known_key
    from gpuinfra.provision.find import target_of
    from gpuinfra.runner.machine.identity import identity_of, with_own_key

    workspace = reached.settings.workspace
    spec = spec or spec_of_machine(workspace, observed.name, observed.group)
    identity = identity_of(spec.admin.key(), workspace) if spec else None
    port = reached.cloud.clients.access.ssh_port
    found = target_of(observed, ssh_port=port, identity=identity, simulated=reached.cloud.simulated)
    return with_own_key(with_known_key(workspace, found))
