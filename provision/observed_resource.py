"""A resource as Azure shows it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from gpuinfra.models.names import OUR_PREFIX
from gpuinfra.models.plan import Kind, Ref
from gpuinfra.models.sizes import SIZES
from gpuinfra.provision import tags

DELETING = "Deleting"
"""The provisioning state in which Azure accepts only another delete."""
_SIZES = {name.casefold(): name for name in SIZES}


@dataclass(frozen=True, slots=True)
class ObservedResource:
    """A resource as Azure shows it, with its body in ARM's format."""

    ref: Ref
    body: dict[str, Any] = field(repr=False)

    @property
    def properties(self) -> dict[str, Any]:
        """The body's `properties`, or an empty dict."""
        return self.body.get("properties") or {}

    @property
    def tags(self) -> dict[str, str]:
        """The resource's tags, or an empty dict."""
        return self.body.get("tags") or {}

    @property
    def other_tags(self) -> dict[str, str]:
        """The tags except ours: those from the spec, and those that others added."""
        return {name: value for name, value in self.tags.items() if not name.casefold().startswith(OUR_PREFIX)}

    @property
    def region(self) -> str:
        """The region in the spelling that specs use."""
        return str(self.body.get("location") or "").replace(" ", "").lower()

    @property
    def sku(self) -> str:
        """The name of the SKU of a disk or a public IP, or an empty string."""
        return str((self.body.get("sku") or {}).get("name") or "")

    @property
    def state(self) -> str:
        """The provisioning state: Succeeded, Failed, Creating, Updating, Deleting, …."""
        return str(self.properties.get("provisioningState") or "Succeeded")

    @property
    def is_settled(self) -> bool:
        """Whether no operation on the resource is in progress."""
        return self.state in {"Succeeded", "Failed", "Canceled"}

    @property
    def created(self) -> datetime | None:
        """When Azure created a VM or a disk."""
        return tags.parse_moment(str(self.properties.get("timeCreated") or ""))

    # VMs

    @property
    def size(self) -> str:
        """The VM's size in the spelling of Azure's price list, or an empty string. Azure keeps the request's case."""
        name = str((self.properties.get("hardwareProfile") or {}).get("vmSize") or "")
        return standard_size(name)

    @property
    def zone(self) -> str | None:
        """The VM's availability zone."""
        return next(iter(self.body.get("zones") or []), None)

    @property
    def is_spot(self) -> bool:
        """Whether the VM is billed at the spot price."""
        return str(self.properties.get("priority") or "").casefold() == "spot"

    @property
    def os_disk(self) -> dict[str, Any]:
        """The VM's OS disk in its storage profile, or an empty dict."""
        return (self.properties.get("storageProfile") or {}).get("osDisk") or {}

    @property
    def os_disk_id(self) -> str:
        """The ID of the VM's OS disk, or an empty string while Azure creates the disk."""
        return str((self.os_disk.get("managedDisk") or {}).get("id") or "")

    @property
    def nics(self) -> list[dict[str, Any]]:
        """The NICs in the VM's network profile."""
        return (self.properties.get("networkProfile") or {}).get("networkInterfaces") or []

    @property
    def vm_id(self) -> str:
        """Azure's `vmId`. A VM that is created again gets another one."""
        return str(self.properties.get("vmId") or "")

    @property
    def identity(self) -> str:
        """A value that a resource created again under the same name does not have; empty if Azure shows none."""
        names = ("vmId", "resourceGuid", "uniqueId", "uniqueIdentifier")
        return next((str(found) for name in names if (found := self.properties.get(name))), "")

    @property
    def power(self) -> str:
        """The VM's power state, see `power.py`, or `unknown` if Azure does not show it."""
        codes = (str(status.get("code", "")) for status in self._statuses)
        return next((code.removeprefix("PowerState/") for code in codes if code.startswith("PowerState/")), "unknown")

    @property
    def failure(self) -> str:
        """Azure's code for the failure of a VM, or an empty string if it did not fail or Azure shows no code."""
        codes = (str(status.get("code", "")).split("/") for status in self._statuses)
        return next((code[2] for code in codes if code[:2] == ["ProvisioningState", "failed"] and len(code) > 2), "")

    @property
    def changed(self) -> datetime | None:
        """When the VM's last operation ended, or None if Azure does not show it."""
        statuses = (each for each in self._statuses if str(each.get("code", "")).startswith("ProvisioningState/"))
        found = tags.parse_moment(str(next(statuses, {}).get("time") or ""))
        return found.astimezone(UTC) if found else None

    @property
    def _statuses(self) -> list[dict[str, Any]]:
        return (self.properties.get("instanceView") or {}).get("statuses") or []


def resource_of_row(kind: Kind, row: Mapping[str, Any]) -> ObservedResource:
    """Return a resource from its body in a listing."""
    # /subscriptions/S/resourceGroups/G/providers/…/NAME
    words = str(row.get("id") or "").split("/")
    group = words[4] if len(words) > 4 else ""
    return ObservedResource(Ref(kind, group, str(row.get("name") or words[-1])), dict(row))


def standard_size(size: str) -> str:
    """Return a VM size in the spelling of Azure's price list."""
    return _SIZES.get(size.casefold(), size)


def same(one: Ref, other: Ref) -> bool:
    """Return whether two references mean the same resource. Azure ignores case."""
    return one.kind is other.kind and (one.group.casefold(), one.name.casefold()) == (
        other.group.casefold(),
        other.name.casefold(),
    )


def refers_to(resource_id: Any, ref: Ref) -> bool:
    """Return whether an ID is that of this resource or of a child of it. The subscription is not compared."""
    own = ref.id("").casefold().removeprefix("/subscriptions/")
    return f"{own}/" in f"{str(resource_id or '').casefold()}/"


def vm_id_without_older_disk(machine: ObservedResource, disk: ObservedResource | None) -> str:
    """Return the `vmId` of a VM whose disk was created with it, else an empty string.

    An older disk may hold data of an earlier VM with this name. It may be attached to this VM, or exist in addition to
    the VM's own disk.
    """
    is_new = str(machine.os_disk.get("createOption") or "").casefold() == "fromimage"
    is_attached = disk is None or refers_to(machine.os_disk_id, disk.ref)
    return machine.vm_id if is_new and is_attached else ""
