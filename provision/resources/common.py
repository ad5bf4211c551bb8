"""Shared helpers for resource kinds: tags, regions and differences."""

from collections.abc import Iterator, Mapping
from typing import Any

from gpuinfra.models.plan import Difference
from gpuinfra.models.resource import Kind, Resource
from gpuinfra.provision import tags
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.plan_input import PlanInput


def resource(plan_input: PlanInput, kind: Kind, properties: dict[str, Any], **more: Any) -> Resource:
    """Return a resource of the machine with its region and tags."""
    body = {
        "location": plan_input.candidate.region,
        "tags": {**plan_input.spec.tags, tags.NAME: plan_input.spec.name},
        **more,
        "properties": properties,
    }
    return Resource(plan_input.ref(kind), body)


def place(desired: Resource, part: ObservedResource) -> Iterator[Difference]:
    """Yield a difference if the region differs. Azure cannot move a resource, so it must be replaced."""
    if part.region != desired.body["location"]:
        yield Difference("region", part.region, desired.body["location"], replaces=True)


def missing_tags(desired: Resource, part: ObservedResource) -> Iterator[Difference]:
    """Yield a difference for each missing or different tag. Tags that others added are ignored."""
    for name, value in desired.body["tags"].items():
        found = tags.get(part.tags, name)
        if found != value:
            yield Difference(f"tag {name}", found or "none", value)


def with_others(part: ObservedResource, ours: Mapping[str, str]) -> dict[str, str]:
    """Return the tags to send: ours, and those that others added."""
    names = {name.casefold() for name in ours}
    others = {name: value for name, value in part.tags.items() if name.casefold() not in names}
    return {**others, **ours}


def whole_update(wanted: Resource, part: ObservedResource) -> Resource:
    """Return a full body with the tags of others kept."""
    return Resource(wanted.ref, {**wanted.body, "tags": with_others(part, wanted.body["tags"])})


def same_id(one: Any, other: str) -> bool:
    """Return whether a reference has this ID. Azure ignores case in IDs."""
    return isinstance(one, Mapping) and str(one.get("id", "")).casefold() == other.casefold()
