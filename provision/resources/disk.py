"""The machine's OS disk. It is created and deleted with the VM; only size and SKU change separately."""

from collections.abc import Iterator

from gpuinfra.models.plan import Difference, Kind, Resource
from gpuinfra.provision import tags
from gpuinfra.provision.observed_resource import ObservedResource, refers_to
from gpuinfra.provision.power import DEALLOCATED
from gpuinfra.provision.resources.common import PlanInput, missing_tags, resource, with_others


def desired(plan_input: PlanInput) -> Resource:
    """Return the desired disk, for updates only: Azure creates the disk with the VM."""
    disk = plan_input.spec.disk
    return resource(plan_input, Kind.DISK, {"diskSizeGB": disk.size_gib}, sku={"name": disk.sku})


def update(wanted: Resource, part: ObservedResource) -> Resource:
    """Return the update: everything except the region."""
    marks = with_others(part, wanted.body["tags"])
    return Resource(wanted.ref, {"tags": marks, "sku": wanted.body["sku"], "properties": wanted.body["properties"]})


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


# Whether all outputs on a disk were fetched. The tag is valid for one time off only: Azure updates the disk's time at
# every start, deallocation, attachment and detachment, also of a VM that the portal or the guest agent controls.
_RESERVED = "Reserved"
"""The state of a disk whose VM is deallocated."""


def fetched_update(disk: ObservedResource) -> Resource | None:
    """Return the update that records that all outputs were fetched; None unless the disk's VM is deallocated."""
    since = _off_since(disk)
    return Resource(disk.ref, {"tags": with_others(disk, {tags.EMPTY_SINCE: since})}) if since else None


def is_fetched(disk: ObservedResource, machine: ObservedResource) -> bool:
    """Return whether a VM is off and was not on since it confirmed that all outputs on its disk were fetched."""
    since = tags.moment(machine.tags, tags.ON_SINCE)
    off = tags.moment(disk.tags, tags.EMPTY_SINCE)
    return (
        machine.power == DEALLOCATED
        and refers_to(machine.os_disk_id, disk.ref)
        and tags.get(disk.tags, tags.EMPTY_SINCE) == _off_since(disk)
        and off is not None
        and (since is None or since <= off)
    )


def _off_since(disk: ObservedResource) -> str:
    changed = str(disk.properties.get("LastOwnershipUpdateTime") or "")
    return changed if str(disk.properties.get("diskState") or "") == _RESERVED else ""
