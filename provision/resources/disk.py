"""The machine's OS disk. It is created and deleted with the VM; only size and SKU change separately."""

from collections.abc import Iterator

from gpuinfra.models.plan import Difference
from gpuinfra.models.resource import Kind, Resource
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.plan_input import PlanInput
from gpuinfra.provision.resources.common import missing_tags, resource, with_others


def desired(plan_input: PlanInput) -> Resource:
    """Return the desired disk, for updates only: Azure creates the disk with the VM."""
    disk = plan_input.spec.disk
    return resource(plan_input, Kind.DISK, {"diskSizeGB": disk.size_gib}, sku={"name": disk.sku})


def update(wanted: Resource, part: ObservedResource) -> Resource:
    """Return the update: everything except the region."""
    tags = with_others(part, wanted.body["tags"])
    return Resource(wanted.ref, {"tags": tags, "sku": wanted.body["sku"], "properties": wanted.body["properties"]})


def differences(wanted: Resource, part: ObservedResource) -> Iterator[Difference]:
    """Yield differences. A disk can grow and change its SKU while the VM is off, but cannot shrink."""
    old, new = int(part.properties.get("diskSizeGB") or 0), wanted.body["properties"]["diskSizeGB"]
    if old and old != new:
        yield Difference("size", f"{old} GiB", f"{new} GiB", replaces=new < old, needs_off=True)
    old_kind, new_kind = part.sku, wanted.body["sku"]["name"]
    if old_kind != new_kind:
        # Locally and zone-redundant disks cannot be converted into each other.
        replaces = old_kind.rsplit("_", 1)[-1] != new_kind.rsplit("_", 1)[-1]
        yield Difference("kind", old_kind, new_kind, replaces=replaces, needs_off=True)
    yield from missing_tags(wanted, part)
