"""A machine in Azure as a Target, which jobs and `gpuinfra ssh` use."""

from dataclasses import replace
from datetime import datetime

from gpuinfra.diagnostics import Code, Diagnostic, Problem
from gpuinfra.models.resource import Kind, MachineId, parse_machine_id
from gpuinfra.models.spec import Spec
from gpuinfra.models.target import Target
from gpuinfra.provision import tags
from gpuinfra.provision.cloud import Cloud
from gpuinfra.provision.errors import CloudError
from gpuinfra.provision.lifecycle.lease import BACKSTOP
from gpuinfra.provision.observed import Observed
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.ownership import untagged_problem
from gpuinfra.provision.power import RUNNING
from gpuinfra.provision.problems import explain


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
