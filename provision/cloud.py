"""The port to a cloud: every operation that provisioning needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from gpuinfra.models.plan import Kind, Power, Ref, Resource
from gpuinfra.provision.agent_role import AgentRole
from gpuinfra.provision.locks import Lock
from gpuinfra.provision.observed import Observed
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.waiting import Deadline, Interrupt


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

    def locks(self) -> tuple[Lock, ...]:
        """Return all management locks in the subscription, or an empty tuple if they cannot be listed."""

    def put(self, resource: Resource, *, new: bool = False) -> Operation:
        """Create or update a resource and return at once. With `new`, raise Fault.EXISTS if it exists already."""

    def patch(self, resource: Resource) -> Operation:
        """Change only the fields in the body, and return at once."""

    def act(self, ref: Ref, power: Power) -> Operation:
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

    def network(self) -> dict[Kind, list[dict[str, Any]]]:
        """Return the bodies of all NICs and NSGs. Sends one request per page and kind."""

    def activity_log(self, since: datetime, until: datetime, resource: str | None = None) -> list[dict[str, Any]]:
        """Return events, newest first: of one resource by its ID, or of all VMs and disks, then without the caller."""

    def records(self) -> list[dict[str, Any]]:
        """Return the ledger entries of all machines that `add_record` stored, as JSON objects."""

    def add_record(self, group: str, name: str, region: str, entries: list[dict[str, Any]]) -> None:
        """Add a machine's ledger entries to those that the team shares. Entries that are stored already are not."""

    def has_agent_role(self) -> bool:
        """Return whether the subscription has the role for guest agents, and it allows the action."""

    def ask_off(self, ref: Ref) -> None:
        """Request the deallocation of a VM. Returns once Azure accepts the request; the operation is not polled."""

    def ask_delete(self, ref: Ref) -> None:
        """Request the deletion of a VM whose deletion is unfinished. Returns once Azure accepts the request."""
