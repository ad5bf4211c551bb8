"""The machine's disk. It comes and goes with the machine; only its size and kind are changed by themselves."""

from __future__ import annotations

from collections.abc import Iterator

from gpuinfra.models.plan import Difference
from gpuinfra.models.resource import Kind, Resource
from gpuinfra.provision.cloud import ObservedResource
from gpuinfra.provision.plan_input import PlanInput
from gpuinfra.provision.resources.common import missing_tags, resource, with_others


def desired(setting: PlanInput) -> Resource:
    """What a change of the disk sends; the machine's own body makes it."""
    disk = setting.spec.disk
    return resource(setting, Kind.DISK, {"diskSizeGB": disk.size_gib}, sku={"name": disk.sku})


def update(wanted: Resource, part: ObservedResource) -> Resource:
    """What a disk may be told while it exists: all but its place."""
    tags = with_others(part, wanted.body["tags"])
    return Resource(wanted.ref, {"tags": tags, "sku": wanted.body["sku"], "properties": wanted.body["properties"]})


def differences(wanted: Resource, part: ObservedResource) -> Iterator[Difference]:
    """A disk can grow, and change its kind, while the machine is off. It cannot shrink."""
    old, new = int(part.properties.get("diskSizeGB") or 0), wanted.body["properties"]["diskSizeGB"]
    if old and old != new:
        yield Difference("size", f"{old} GiB", f"{new} GiB", replaces=new < old, needs_off=True)
    old_kind, new_kind = (part.body.get("sku") or {}).get("name", ""), wanted.body["sku"]["name"]
    if old_kind != new_kind:
        # A disk in one zone and one in all are made differently.
        replaces = old_kind.rsplit("_", 1)[-1] != new_kind.rsplit("_", 1)[-1]
        yield Difference("kind", old_kind, new_kind, replaces=replaces, needs_off=True)
    yield from missing_tags(wanted, part)
