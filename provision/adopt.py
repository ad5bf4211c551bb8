"""Adopt a gpuinfra machine that has lost its tags."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from gpuinfra.models.resource import Kind, Ref, Resource
from gpuinfra.provision import tags
from gpuinfra.provision.observed import Observed
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.ownership import is_made_by_us
from gpuinfra.provision.plan import check_elsewhere, check_names
from gpuinfra.provision.resources.common import with_others
from gpuinfra.provision.task import Task

DOING = "adopting"


def adoptable(observed: Observed) -> list[ObservedResource]:
    """Return resources with our names and without a machine tag, if the VM among them was created by `up`."""
    machine = observed.part(Kind.VM)
    if machine is None or not is_made_by_us(machine):
        return []
    return [part for part in replace(observed, adopts=True).ours() if not tags.get(part.tags, tags.NAME)]


def adopted(task: Task, observed: Observed, consent: Callable[[Sequence[Ref]], None], host_key: str) -> Observed:
    """Return the observed state, in which untagged resources count as ours. `consent` raises if the user refuses.

    The VM gets its name tag immediately, so that it can be found even after a crash. The plan restores the other tags.
    """
    parts = adoptable(observed)
    if not parts:
        return observed
    # What the plan would refuse must be refused before anything is written.
    check_names(replace(observed, adopts=True))
    check_elsewhere(observed)
    consent([part.ref for part in parts])
    for machine in (part for part in parts if part.ref.kind is Kind.VM):
        task.journal.intend(DOING, machine.ref)
        marks = {tags.NAME: observed.name, **({tags.HOST_KEY: host_key} if host_key else {})}
        body = {"tags": with_others(machine, marks)}
        task.cloud.wait(task.cloud.patch(Resource(machine.ref, body)), task.deadline)
        task.journal.did(DOING, machine.ref)
        parts = [ObservedResource(machine.ref, {**machine.body, **body}) if part is machine else part for part in parts]
    others = [part for part in observed.parts if part.ref not in {each.ref for each in parts}]
    return replace(observed, parts=(*others, *parts), adopts=True)
