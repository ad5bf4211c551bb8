"""The resource group. One that is there and not ours is used, and never changed or deleted."""

from __future__ import annotations

from collections.abc import Iterator

from gpuinfra.models.plan import Difference
from gpuinfra.models.resource import Kind, Resource
from gpuinfra.provision import tags
from gpuinfra.provision.cloud import ObservedResource
from gpuinfra.provision.ownership import is_default_group
from gpuinfra.provision.plan_input import PlanInput
from gpuinfra.provision.resources.common import missing_tags, whole_update


def desired(setting: PlanInput) -> Resource:
    """A group says where its own records are kept; what is in it may be anywhere. One that the spec names outlives
    the machine, and gets no tag of the machine."""
    spec = setting.spec
    own = {tags.NAME: spec.name} if is_default_group(spec.group_name, spec.name) else {}
    body = {"location": setting.candidate.region, "tags": {**spec.tags, **own}}
    return Resource(setting.ref(Kind.RESOURCE_GROUP), body)


def update(wanted: Resource, part: ObservedResource) -> Resource:
    """A group's own place cannot be changed, and matters to nobody."""
    tagged = whole_update(wanted, part)
    return Resource(wanted.ref, {**tagged.body, "location": part.body["location"]})


def differences(wanted: Resource, part: ObservedResource) -> Iterator[Difference]:
    """Only tags. A plan asks this only of a group that is ours."""
    yield from missing_tags(wanted, part)
