"""What several kinds share: tags, places, and words for differences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpuinfra.models.plan import Difference
from gpuinfra.models.resource import Kind, Resource
from gpuinfra.provision import tags
from gpuinfra.provision.cloud import ObservedResource
from gpuinfra.provision.plan_input import PlanInput


def resource(setting: PlanInput, kind: Kind, properties: dict[str, Any], **more: Any) -> Resource:
    """A resource of the machine, at its place and with its tags."""
    body = {
        "location": setting.candidate.region,
        "tags": {**setting.spec.tags, tags.NAME: setting.spec.name},
        **more,
        "properties": properties,
    }
    return Resource(setting.ref(kind), body)


def place(desired: Resource, part: ObservedResource) -> Iterator[Difference]:
    """Nothing in Azure moves from one region to another."""
    if part.region != desired.body["location"]:
        yield Difference("region", part.region, desired.body["location"], replaces=True)


def missing_tags(desired: Resource, part: ObservedResource) -> Iterator[Difference]:
    """Tags that it should have. Those that others have put on it are theirs."""
    for name, value in desired.body["tags"].items():
        found = tags.get(part.tags, name)
        if found != value:
            yield Difference(f"tag {name}", found or "none", value)


def with_others(part: ObservedResource, ours: Mapping[str, str]) -> dict[str, str]:
    """The tags to send: ours, and those that others have put on it."""
    names = {name.casefold() for name in ours}
    others = {name: value for name, value in part.tags.items() if name.casefold() not in names}
    return {**others, **ours}


def whole_update(wanted: Resource, part: ObservedResource) -> Resource:
    """The body of a change that says everything anew."""
    return Resource(wanted.ref, {**wanted.body, "tags": with_others(part, wanted.body["tags"])})


def same_id(one: Any, other: str) -> bool:
    """Whether a reference is to this id. Azure does not see case in ids."""
    return isinstance(one, Mapping) and str(one.get("id", "")).casefold() == other.casefold()
