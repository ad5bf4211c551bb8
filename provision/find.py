"""Finding a machine again by nothing but its name."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from gpuinfra.diagnostics import Code, Diagnostic, Problem
from gpuinfra.models.resource import Kind
from gpuinfra.models.spec import Spec
from gpuinfra.models.target import Target
from provision import tags
from provision.cloud import Cloud, Observed
from provision.errors import CloudError
from provision.problems import explain


def find_target(cloud: Cloud, name: str, *, ssh_port: int = 22, identity: str | None = None) -> Target:
    """The machine of this name as a target, by what Azure says of it."""
    try:
        observed = cloud.observe(name)
    except CloudError as error:
        raise explain(error, f"looking for {name}") from error
    return target_of(observed, ssh_port=ssh_port, identity=identity)


def target_from_spec(observed: Observed, spec: Spec, *, ssh_port: int, identity: str | None) -> Target:
    """A machine that was just brought up: what Azure says of it, and what its spec says of jobs."""
    options = spec.target
    return replace(
        target_of(observed, ssh_port=ssh_port, identity=identity),
        name=spec.target_name,
        type=options.type,
        base_docker_image=options.base_docker_image,
        nvidia_docker=options.nvidia_docker,
        framework=options.framework,
        conda_dependencies=options.conda_dependencies,
        said=frozenset(options.model_fields_set),
    )


def target_of(observed: Observed, *, ssh_port: int = 22, identity: str | None = None) -> Target:
    """A machine that is on, as a target."""
    machine, address = observed.part(Kind.MACHINE), observed.part(Kind.ADDRESS)
    if machine is None or not observed.is_ours(machine):
        raise Problem(
            Diagnostic(
                Code.NO_SUCH_MACHINE,
                "no such machine",
                note=f"no machine `{observed.name}` of gpuinfra's is in this subscription",
                help="`gpuinfra status` lists them; `gpuinfra up SPEC` makes one",
            )
        )
    if machine.power != "running":
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
                note=f"`{observed.name}` runs, but its public address is gone, so nobody can reach it",
                help="`gpuinfra up SPEC` makes it again",
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
    )


def stops_at(observed: Observed) -> datetime | None:
    """When Azure's own schedule stops the machine; None where there is no machine, or no such schedule."""
    machine, schedule = observed.part(Kind.MACHINE), observed.part(Kind.SCHEDULE)
    if machine is None or schedule is None or schedule.properties.get("status") != "Enabled":
        return None
    return tags.moment(machine.tags, tags.LEASE_UNTIL)
