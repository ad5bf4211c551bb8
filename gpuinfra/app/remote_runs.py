"""Query a machine for its runs, because other workspaces have their own histories."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpuinfra.diagnostics import Problem
from gpuinfra.models.consent import Contact, MachineAnswer, MachineRun

if TYPE_CHECKING:
    from gpuinfra.app.access import CloudSession
    from gpuinfra.models.spec import Spec
    from gpuinfra.models.target import Target
    from gpuinfra.provision.observed import Observed

# A machine that does not answer must not delay its teardown for long.
CONNECT_SECONDS = 10.0
_OFF = frozenset({"deallocated", "deallocating", "stopped"})


def ask_machine(session: CloudSession, name: str, group: str | None, spec: Spec | None) -> MachineAnswer:
    """Return all runs that the machine knows, from any workspace."""
    from gpuinfra.models.resource import Kind
    from gpuinfra.provision.attachments import attached_by_others
    from gpuinfra.provision.errors import CloudError, Fault
    from gpuinfra.provision.vm_identity import vm_id_of, vm_id_without_older_disk

    try:
        observed = session.cloud.observe(name, group, thorough=True)
    except CloudError as error:
        if error.fault is Fault.INTERRUPTED:
            raise
        return MachineAnswer(Contact.SILENT)
    contact, machine = _contact(observed), observed.machine
    is_billed = machine is not None and machine.power != "deallocated"
    answer = MachineAnswer(contact, is_billed=is_billed) if contact else _ask(session, observed, spec)
    if machine is None:
        is_deleted = contact is Contact.OFF and observed.part(Kind.VM) is None and observed.untagged is None
        return replace(answer, is_deleted=is_deleted)
    vm_id = vm_id_without_older_disk(machine, observed.part(Kind.DISK))
    attached = attached_by_others(machine, observed.part(Kind.NIC))
    return replace(answer, vm=vm_id_of(machine), vm_id=vm_id, attached=attached)


def _contact(observed: Observed) -> Contact | None:
    """Return what is known without querying the machine, or None if it can be queried."""
    from gpuinfra.models.resource import Kind
    from gpuinfra.provision.plan import creation_failed, has_disk

    if creation_failed(observed) and not has_disk(observed):
        return Contact.NOTHING_THERE
    if observed.machine is None:
        return Contact.OFF if any(part.ref.kind is Kind.DISK for part in observed.ours()) else Contact.NOTHING_THERE
    return Contact.OFF if observed.machine.power in _OFF else None


def _ask(session: CloudSession, observed: Observed, spec: Spec | None) -> MachineAnswer:
    from gpuinfra.runner.errors import ConnectError, JobError, LoginRefused, RemoteError
    from gpuinfra.runner.jobs.remote_runs import runs_there
    from gpuinfra.runner.link import link_to

    try:
        link = link_to(_target(session, observed, spec), seconds=CONNECT_SECONDS)
        try:
            found = runs_there(link.remote)
        finally:
            link.drop()
    except LoginRefused:
        return MachineAnswer(Contact.REFUSED)
    except (Problem, ConnectError, RemoteError, JobError):
        return MachineAnswer(Contact.SILENT)
    runs = (MachineRun(each.run, each.is_over, each.has_outputs) for each in found)
    return MachineAnswer(Contact.ANSWERED, tuple(runs))


def _target(session: CloudSession, observed: Observed, spec: Spec | None) -> Target:
    from gpuinfra.app.machine_names import with_known_key
    from gpuinfra.app.specs import spec_of_machine
    from gpuinfra.provision.find import target_of
    from gpuinfra.runner.connection.private_keys import identity_of, with_own_key

    workspace = session.settings.workspace
    spec = spec or spec_of_machine(workspace, observed.name, observed.group)
    identity = identity_of(spec.admin.key(), workspace) if spec else None
    port = session.cloud.ssh_port
    found = target_of(observed, ssh_port=port, identity=identity, simulated=session.cloud.simulated)
    return with_own_key(with_known_key(workspace, found))
