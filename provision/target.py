"""Find the machine that a name means, and describe it as a Target, which jobs and `gpuinfra ssh` use."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem
from gpuinfra.models.plan import Kind, MachineId, Ref, parse_machine_id
from gpuinfra.models.spec import Spec
from gpuinfra.models.target import Target
from gpuinfra.provision import tags
from gpuinfra.provision.cloud import Cloud
from gpuinfra.provision.errors import CloudError, explain
from gpuinfra.provision.lease import BACKSTOP
from gpuinfra.provision.observed import Observed
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.ownership import Owner, machine_of_row, owner_of, untagged_problem
from gpuinfra.provision.power import RUNNING
from gpuinfra.provision.tags import same_name


def find_target(
    cloud: Cloud, name: str, group: str | None = None, *, ssh_port: int = 22, identity: str | None = None
) -> Target:
    """Return the machine as a Target, from Azure's data alone. Raise Problem if it is not running or not reachable."""
    try:
        observed = cloud.observe(name, group)
    except CloudError as error:
        raise explain(error, f"looking for {name}") from error
    return target_of(observed, ssh_port=ssh_port, identity=identity, simulated=cloud.simulated)


def target_from_spec(
    observed: Observed, spec: Spec, *, ssh_port: int, identity: str | None, simulated: bool = False
) -> Target:
    """Return a machine that `up` just provisioned as a Target, from Azure's data and the spec's job options."""
    options = spec.target
    return replace(
        target_of(observed, ssh_port=ssh_port, identity=identity, simulated=simulated),
        name=spec.target_name,
        type=options.type,
        base_docker_image=options.base_docker_image,
        nvidia_docker=options.nvidia_docker,
        framework=options.framework,
        conda_dependencies=options.conda_dependencies,
        explicit_fields=frozenset(options.model_fields_set),
    )


def target_of(
    observed: Observed, *, ssh_port: int = 22, identity: str | None = None, simulated: bool = False
) -> Target:
    """Return a running machine as a Target. Raise Problem if it is absent, untagged, off or without an address."""
    machine, address = observed.machine, observed.part(Kind.PUBLIC_IP)
    if observed.untagged:
        raise untagged_problem(observed.untagged)
    if machine is None:
        raise Problem(
            Diagnostic(
                Code.NO_SUCH_MACHINE,
                "no such machine",
                note=f"this subscription has no machine `{observed.name}` that gpuinfra manages",
                help="`gpuinfra status` lists them; `gpuinfra up SPEC` creates one",
            )
        )
    if machine.power != RUNNING:
        raise Problem(
            Diagnostic(
                Code.MACHINE_IS_OFF,
                "machine is not running",
                note=f"`{observed.name}` is {machine.power}",
                help="`gpuinfra up SPEC` starts it",
            )
        )
    found = str(address.properties.get("ipAddress") or "") if address else ""
    if not found:
        raise Problem(
            Diagnostic(
                Code.NO_SUCH_MACHINE,
                "machine has no address",
                note=f"`{observed.name}` is running, but has no public IP, so it cannot be reached",
                help="`gpuinfra up SPEC` creates the public IP again",
            )
        )
    return Target(
        name=tags.get(machine.tags, tags.TARGET) or observed.name.replace("-", "_"),
        machine=observed.name,
        type="remotedocker",
        address=found,
        port=ssh_port,
        username=str((machine.properties.get("osProfile") or {}).get("adminUsername") or ""),
        host_key=tags.get(machine.tags, tags.HOST_KEY),
        identity=identity,
        simulated=simulated,
        resource_id=_resource_id(machine),
        vm_id=machine.vm_id,
    )


def _resource_id(machine: ObservedResource) -> str:
    """Return the VM's ID with the spec's upper and lower case, because Azure's responses vary."""
    found = parse_machine_id(str(machine.body.get("id") or ""))
    return str(MachineId(found.subscription, machine.ref.group, machine.ref.name)) if found else ""


def stops_at(observed: Observed) -> datetime | None:
    """Return when Azure's schedule stops the machine, or None without a machine or an enabled schedule."""
    machine, schedule = observed.part(Kind.VM), observed.part(Kind.SHUTDOWN_SCHEDULE)
    if machine is None or schedule is None or schedule.properties.get("status") != "Enabled":
        return None
    until = tags.moment(machine.tags, tags.LEASE_UNTIL)
    return until + BACKSTOP if until else None


def locate(rows: Iterable[Mapping[str, Any]], word: str) -> Ref | None:
    """Return the machine in a listing with this name or, failing that, this target name; None if there is none.

    Raise Problem if more than one matches. A machine that may be ours counts only if no other matches.
    """
    found = matching(rows, word)
    if len(found) > 1:
        raise ambiguous_name(word, [f"`{ref.name}` in group `{ref.group}`" for ref in found])
    return found[0] if found else None


def matching(rows: Iterable[Mapping[str, Any]], word: str) -> list[Ref]:
    """Return all machines in a listing that the word may name."""
    vms = [machine_of_row(row) for row in rows]
    # Not by the tag with the target name, which others can write. To use a custom target name, give the spec.
    targets = [each.ref for each in vms if owner_of(each) is Owner.OURS and same_name(_usual_target(each.ref), word)]
    return _called(vms, word, Owner.OURS) or targets or _called(vms, word, Owner.UNTAGGED, Owner.UNRECOGNISED)


def called(rows: Iterable[Mapping[str, Any]], name: str) -> list[Ref]:
    """Return the machines in a listing with exactly this name: ours, or if there is none, those that may be ours."""
    return _called(list(map(machine_of_row, rows)), name, Owner.OURS, Owner.UNTAGGED, Owner.UNRECOGNISED)


def _called(vms: Sequence[ObservedResource], name: str, *owners: Owner) -> list[Ref]:
    """Return the machines of the first of these owners that has any with this name."""
    named = [vm for vm in vms if same_name(vm.ref.name, name)]
    return next((found for owner in owners if (found := [each.ref for each in named if owner_of(each) is owner])), [])


def _usual_target(ref: Ref) -> str:
    return ref.name.replace("-", "_")


GIVE_FILE = "give the file of the spec: its `resourceGroup` says which machine is meant"


def ambiguous_name(word: str, candidates: Sequence[str], help_line: str = GIVE_FILE) -> Problem:
    """Return the Problem for a name that matches more than one machine."""
    return Problem(
        Diagnostic(
            Code.AMBIGUOUS_NAME,
            "more than one machine of this name",
            note=f"`{word}` is {', or '.join(sorted(candidates))}; nothing was changed",
            help=help_line,
        ),
        exit_code=Exit.USAGE,
    )
