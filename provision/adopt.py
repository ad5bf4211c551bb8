"""Takes back a machine of ours that has lost its tags."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from gpuinfra.models.resource import Kind, Ref, Resource
from gpuinfra.provision import tags
from gpuinfra.provision.cloud import Cloud, Observed, ObservedResource
from gpuinfra.provision.journal import Journal
from gpuinfra.provision.ownership import is_made_by_us
from gpuinfra.provision.resources.common import with_others
from gpuinfra.provision.waiting.deadline import Deadline

DOING = "adopting"


def adoptable(observed: Observed) -> list[ObservedResource]:
    """Parts that have our names and no machine's tag, where the machine among them was made by `up`."""
    machine = observed.part(Kind.VM)
    if machine is None or not is_made_by_us(machine):
        return []
    return [part for part in replace(observed, adopts=True).ours() if not tags.get(part.tags, tags.NAME)]


def adopted(
    observed: Observed,
    consent: Callable[[Sequence[Ref]], None],
    host_key: str,
    cloud: Cloud,
    journal: Journal,
    deadline: Deadline,
) -> Observed:
    """The current state, with all that has lost its tags counted as ours. `consent` raises where it is not given.

    The machine itself gets its name back at once, so that it is found whatever happens next; the plan does the rest.
    """
    parts = adoptable(observed)
    if not parts:
        return observed
    consent([part.ref for part in parts])
    for machine in (part for part in parts if part.ref.kind is Kind.VM):
        journal.intend(DOING, machine.ref)
        marks = {tags.NAME: observed.name, **({tags.HOST_KEY: host_key} if host_key else {})}
        body = {"tags": with_others(machine, marks)}
        cloud.wait(cloud.patch(Resource(machine.ref, body)), deadline)
        journal.did(DOING, machine.ref)
        parts = [ObservedResource(machine.ref, {**machine.body, **body}) if part is machine else part for part in parts]
    others = [part for part in observed.parts if part.ref not in {each.ref for each in parts}]
    return replace(observed, parts=(*others, *parts), adopts=True)
