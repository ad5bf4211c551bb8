"""The public address: static, so that it stays the same while the machine is off."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuinfra.models.plan import Difference
from gpuinfra.models.resource import Kind, Resource
from gpuinfra.provision import tags
from gpuinfra.provision.cloud import ObservedResource
from gpuinfra.provision.plan_input import PlanInput
from gpuinfra.provision.resources.common import missing_tags, place, resource, whole_update, with_others


def desired(setting: PlanInput) -> Resource:
    """Standard: the Basic kind can be had no longer. It bears the mark of a machine that has lived."""
    properties = {"publicIPAllocationMethod": "Static", "publicIPAddressVersion": "IPv4"}
    wanted = resource(setting, Kind.PUBLIC_IP, properties, sku={"name": "Standard"})
    if setting.ready:
        wanted.body["tags"][tags.READY] = setting.ready
    return wanted


def update(wanted: Resource, part: ObservedResource) -> Resource:
    """Tags alone: the rest was chosen at its making, and Azure refuses to hear some of it again; unless that failed."""
    if part.state == "Failed":
        return whole_update(wanted, part)
    return Resource(wanted.ref, {"tags": with_others(part, wanted.body["tags"])})


def is_as_created(part: ObservedResource) -> bool:
    """Whether it is a Standard static address without a DNS name."""
    sku = str((part.body.get("sku") or {}).get("name") or "")
    is_static = str(part.properties.get("publicIPAllocationMethod") or "").casefold() == "static"
    return sku.casefold() == "standard" and is_static and not part.properties.get("dnsSettings")


def users(part: ObservedResource) -> list[dict[str, Any]]:
    """What has it, by id."""
    used = [part.properties.get(name) for name in ("ipConfiguration", "natGateway")]
    return [each for each in used if each]


def differences(wanted: Resource, part: ObservedResource) -> Iterator[Difference]:
    """Kind and allocation were chosen at its making; only tags can be changed."""
    yield from place(wanted, part)
    yield from missing_tags(wanted, part)
