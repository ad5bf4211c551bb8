"""The resource group. An existing group that is not ours is used but never changed or deleted."""

from collections.abc import Iterator

from gpuinfra.models.plan import Difference, Kind, Resource
from gpuinfra.provision import tags
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.ownership import is_default_group
from gpuinfra.provision.resources.common import PlanInput, missing_tags, whole_update


def desired(plan_input: PlanInput) -> Resource:
    """Return the desired group. Its region is only that of its metadata.

    A group that the spec names outlives the machine, so it does not get the machine's tag.
    """
    spec = plan_input.spec
    own = {tags.NAME: spec.name} if is_default_group(spec.group_name, spec.name) else {}
    body = {"location": plan_input.candidate.region, "tags": {**spec.tags, **own}}
    return Resource(plan_input.ref(Kind.RESOURCE_GROUP), body)


def update(wanted: Resource, part: ObservedResource) -> Resource:
    """Return the update with the existing region, which cannot change and does not matter."""
    tagged = whole_update(wanted, part)
    return Resource(wanted.ref, {**tagged.body, "location": part.body["location"]})


def differences(wanted: Resource, part: ObservedResource) -> Iterator[Difference]:
    """Yield differences in tags. Plans call this only for a group that is ours."""
    yield from missing_tags(wanted, part)
