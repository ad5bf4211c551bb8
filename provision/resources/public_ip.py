"""The public IP: static, so that it stays the same while the machine is off."""

from collections.abc import Iterator
from typing import Any

from gpuinfra.models.plan import Difference, Kind, Resource
from gpuinfra.provision import tags
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.resources.common import PlanInput, missing_tags, place, resource, whole_update, with_others

# An unusual value. Unlike a tag, setting it requires the right to write the public IP. So it distinguishes one that
# `up` created from a reserved one of others that was tagged.
IDLE_MINUTES = 27


def desired(plan_input: PlanInput) -> Resource:
    """Return the desired public IP, with the ready tag if the machine was ready. Azure no longer creates Basic ones."""
    properties = {
        "publicIPAllocationMethod": "Static",
        "publicIPAddressVersion": "IPv4",
        "idleTimeoutInMinutes": IDLE_MINUTES,
    }
    wanted = resource(plan_input, Kind.PUBLIC_IP, properties, sku={"name": "Standard"})
    if plan_input.ready:
        wanted.body["tags"][tags.READY] = plan_input.ready
    return wanted


def update(wanted: Resource, part: ObservedResource) -> Resource:
    """Return the update: only tags, because Azure refuses some other fields, or everything if the creation failed."""
    if part.state == "Failed":
        return whole_update(wanted, part)
    return Resource(wanted.ref, {"tags": with_others(part, wanted.body["tags"])})


def is_as_created(part: ObservedResource) -> bool:
    """Return whether it is a Standard static IP with our idle timeout and without a DNS name."""
    found = part.properties
    is_static = str(found.get("publicIPAllocationMethod") or "").casefold() == "static"
    is_ours = found.get("idleTimeoutInMinutes") == IDLE_MINUTES and not found.get("dnsSettings")
    return part.sku.casefold() == "standard" and is_static and is_ours


def users(part: ObservedResource) -> list[dict[str, Any]]:
    """Return the resources that use it."""
    used = [part.properties.get(name) for name in ("ipConfiguration", "natGateway")]
    return [each for each in used if each]


def differences(wanted: Resource, part: ObservedResource) -> Iterator[Difference]:
    """Yield differences in region and tags. SKU and allocation are fixed at creation."""
    yield from place(wanted, part)
    yield from missing_tags(wanted, part)
