"""The port to a cloud: every operation that provisioning needs, and the values that these operations return."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from gpuinfra.models.resource import Kind, Ref, Resource
from gpuinfra.provision import tags
from gpuinfra.provision.waiting.deadline import Deadline
from gpuinfra.provision.waiting.interrupt import Interrupt

if TYPE_CHECKING:
    from gpuinfra.provision.lifecycle.agent_role import AgentRole


OFF = "deallocated"
"""The only power state that is not billed."""
DELETING = "Deleting"
"""The provisioning state in which Azure accepts only another delete."""


class Act(StrEnum):
    """A power operation on a VM."""

    START = "start"
    DEALLOCATE = "deallocate"


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
    def region(self) -> str:
        """The region in the spelling that specs use."""
        return str(self.body.get("location") or "").replace(" ", "").lower()

    @property
    def state(self) -> str:
        """The provisioning state: Succeeded, Failed, Creating, Updating, Deleting, …."""
        return str(self.properties.get("provisioningState") or "Succeeded")

    @property
    def is_settled(self) -> bool:
        """Whether no operation on the resource is in progress."""
        return self.state in {"Succeeded", "Failed", "Canceled"}

    @property
    def failure(self) -> str:
        """Azure's code for the failure of a VM, or an empty string if it did not fail or Azure shows no code."""
        view = self.properties.get("instanceView") or {}
        codes = (str(status.get("code", "")).split("/") for status in view.get("statuses") or [])
        return next((code[2] for code in codes if code[:2] == ["ProvisioningState", "failed"] and len(code) > 2), "")

    @property
    def power(self) -> str:
        """The VM's power state: running, deallocated, …; `unknown` if Azure does not show it."""
        view = self.properties.get("instanceView") or {}
        codes = (str(status.get("code", "")) for status in view.get("statuses") or [])
        return next((code.removeprefix("PowerState/") for code in codes if code.startswith("PowerState/")), "unknown")


@dataclass(frozen=True, slots=True)
class Observed:
    """All resources in Azure that concern one machine."""

    name: str
    group: str
    parts: tuple[ObservedResource, ...] = ()
    unknown: tuple[str, ...] = ()
    """IDs of resources that carry our tag but are of a kind that gpuinfra never creates."""
    adopts: bool = False
    """Whether untagged resources with our names count as ours, because the user agreed to adopt them."""

    def part(self, kind: Kind) -> ObservedResource | None:
        """Return the resource of this kind with our name in the machine's group, ours or not, or None."""
        from gpuinfra.provision.names import ref_of

        wanted = ref_of(kind, self.group, self.name)
        return next((part for part in self.parts if same(part.ref, wanted)), None)

    def is_ours(self, part: ObservedResource) -> bool:
        """Return whether a resource has the machine's tag, the expected name and the machine's group.

        Others can write tags. Outside the default group, the resource must also be created or used the way `up` does
        it.
        """
        from gpuinfra.provision.names import ref_of
        from gpuinfra.provision.own_parts import is_own_part
        from gpuinfra.provision.ownership import is_default_group, is_own_group

        if not same(part.ref, ref_of(part.ref.kind, self.group, self.name)):
            return False
        if part.ref.kind is Kind.RESOURCE_GROUP:
            return is_own_group(part, self.name)
        if part.ref.kind is Kind.VM and not self._is_made_by_us(part):
            return False
        adopted = self.adopts and not tags.get(part.tags, tags.NAME)
        if not adopted and not tags.belongs_to(part.tags, self.name):
            return False
        return part.ref.kind is Kind.VM or is_default_group(self.group, self.name) or is_own_part(part, self)

    def _is_made_by_us(self, machine: ObservedResource) -> bool:
        """Return whether a tagged VM is in its default group or has the properties that `up` gives its VMs."""
        from gpuinfra.provision.ownership import Owner, owner_of

        return self.adopts or owner_of(machine) not in {Owner.UNRECOGNISED, Owner.LOOKALIKE}

    @property
    def machine(self) -> ObservedResource | None:
        """The VM, or None if it does not exist or is not ours."""
        found = self.part(Kind.VM)
        return found if found and self.is_ours(found) else None

    @property
    def untagged(self) -> ObservedResource | None:
        """A VM with our name and group that is not ours, usually because it lacks our tag; else None."""
        found = self.part(Kind.VM)
        return found if found and not self.is_ours(found) else None

    def ours(self) -> Iterator[ObservedResource]:
        """Iterate over the resources that belong to the machine."""
        return (part for part in self.parts if self.is_ours(part))

    def lookalikes(self) -> tuple[ObservedResource, ...]:
        """Return tagged resources, except groups, that do not belong to the machine: reported, never changed."""
        tagged = (part for part in self.parts if tags.belongs_to(part.tags, self.name))
        return tuple(part for part in tagged if part.ref.kind is not Kind.RESOURCE_GROUP and not self.is_ours(part))


def same(one: Ref, other: Ref) -> bool:
    """Return whether two references mean the same resource. Azure ignores case."""
    return one.kind is other.kind and (one.group.casefold(), one.name.casefold()) == (
        other.group.casefold(),
        other.name.casefold(),
    )


@dataclass(frozen=True, slots=True)
class Listed:
    """A resource with our tag, from a listing."""

    ref: Ref
    tags: dict[str, str] = field(default_factory=dict)
    since: datetime | None = None
    """When it was created or last changed, whichever is later; None if Azure does not show it."""


class Operation(Protocol):
    """An operation in progress in Azure."""

    @property
    def ref(self) -> Ref:
        """The resource that the operation changes."""


class Cloud(Protocol):
    """The operations of a cloud. Every method raises only CloudError."""

    subscription: str
    simulated: bool
    interrupt: Interrupt
    """Once set, `wait` raises Fault.INTERRUPTED."""
    endpoint: str
    """The address of the cloud's API."""
    ssh_port: int
    """The port on which its machines accept SSH."""
    fleet: Fleet
    """The whole subscription."""

    @property
    def deadline(self) -> Deadline:
        """The deadline of all requests."""

    def grant(self, seconds: float) -> Deadline:
        """Return extra time for cleanup, so that an expired deadline never leaves a machine on."""

    def now(self) -> datetime:
        """Return the cloud's time, so that a wrong local clock never shortens a lease."""

    def observe(self, name: str, group: str | None = None, *, thorough: bool = False) -> Observed:
        """Return all resources of a machine, by name in its group and by tag. Without `group`, search for the group.

        With `thorough`, no machine with this name is missed in any group, however new it is.
        """

    def look(self, ref: Ref) -> ObservedResource | None:
        """Return one resource, or None if it does not exist."""

    def contents(self, group: str) -> tuple[str, ...]:
        """Return the IDs of all resources in a group, or an empty tuple if the group does not exist."""

    def put(self, resource: Resource, *, new: bool = False) -> Operation:
        """Create or update a resource and return at once. With `new`, raise Fault.EXISTS if it exists already."""

    def patch(self, resource: Resource) -> Operation:
        """Change only the fields in the body, and return at once."""

    def act(self, ref: Ref, act: Act) -> Operation:
        """Start or deallocate a VM, and return at once."""

    def delete(self, ref: Ref) -> Operation:
        """Delete a resource and return at once. An absent resource counts as deleted."""

    def allow_self_stop(self, machine: ObservedResource) -> AgentRole:
        """Grant the VM the role to deallocate itself. Never raises: the result contains what Azure refused."""

    def agent_role(self, machine: ObservedResource) -> AgentRole:
        """Return whether the VM has the role to deallocate itself. Changes nothing and never raises."""

    def disown(self, group: str) -> None:
        """Remove our tags from a group, so that gpuinfra no longer owns it."""

    def wait(self, operation: Operation, deadline: Deadline) -> None:
        """Wait until the operation is finished. Raise Fault.TIMEOUT if the deadline passes first."""


class Fleet(Protocol):
    """A whole subscription. Every method raises only CloudError and is thread-safe."""

    def machines(self) -> list[dict[str, Any]]:
        """Return the bodies of all VMs, including others', with instance views. Sends one request per page."""

    def parts(self) -> list[Listed]:
        """Return all resources with our tag, of the kinds that gpuinfra creates. Sends one request per page."""

    def holdings(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the bodies of the VMs, disks and public IPs with our tag, whether they are ours or not."""

    def activity_log(self, since: datetime, until: datetime, resource: str | None = None) -> list[dict[str, Any]]:
        """Return events, newest first: of one resource by its ID, or of all VMs and disks, then without the caller."""

    def has_agent_role(self) -> bool:
        """Return whether the subscription has the role for guest agents, and it allows the action."""

    def ask_off(self, ref: Ref) -> None:
        """Request the deallocation of a VM. Returns once Azure accepts the request; the operation is not polled."""

    def ask_delete(self, ref: Ref) -> None:
        """Request the deletion of a VM whose deletion is unfinished. Returns once Azure accepts the request."""
