"""The port: everything that provisioning asks of a cloud, and the values that it answers with."""

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
"""The one power state that is not billed."""
DELETING = "Deleting"
"""The provisioning state in which Azure accepts nothing but another delete."""


class Act(StrEnum):
    """What can be done to a machine."""

    START = "start"
    DEALLOCATE = "deallocate"


@dataclass(frozen=True, slots=True)
class ObservedResource:
    """A resource as it is: a body in ARM's own words."""

    ref: Ref
    body: dict[str, Any] = field(repr=False)

    @property
    def properties(self) -> dict[str, Any]:
        """The body's `properties`."""
        return self.body.get("properties") or {}

    @property
    def tags(self) -> dict[str, str]:
        """Its tags."""
        return self.body.get("tags") or {}

    @property
    def region(self) -> str:
        """Where it is, in the spelling that specs use."""
        return str(self.body.get("location") or "").replace(" ", "").lower()

    @property
    def state(self) -> str:
        """Its provisioning state: Succeeded, Failed, Creating, Updating, Deleting, …."""
        return str(self.properties.get("provisioningState") or "Succeeded")

    @property
    def is_settled(self) -> bool:
        """Nothing goes on with it."""
        return self.state in {"Succeeded", "Failed", "Canceled"}

    @property
    def failure(self) -> str:
        """Azure's code for why a machine failed; empty where it did not, or Azure does not say."""
        view = self.properties.get("instanceView") or {}
        codes = (str(status.get("code", "")).split("/") for status in view.get("statuses") or [])
        return next((code[2] for code in codes if code[:2] == ["ProvisioningState", "failed"] and len(code) > 2), "")

    @property
    def power(self) -> str:
        """A machine's power state: running, deallocated, …; `unknown` where Azure does not say."""
        view = self.properties.get("instanceView") or {}
        codes = (str(status.get("code", "")) for status in view.get("statuses") or [])
        return next((code.removeprefix("PowerState/") for code in codes if code.startswith("PowerState/")), "unknown")


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything in Azure that has to do with one machine."""

    name: str
    group: str
    parts: tuple[ObservedResource, ...] = ()
    unknown: tuple[str, ...] = ()
    """Ids of resources that carry our tag and are of a kind that is never made here."""
    adopts: bool = False
    """Whether what has our names and no machine's tag counts as ours: the user has agreed."""

    def part(self, kind: Kind) -> ObservedResource | None:
        """The one of this kind in the machine's own group, ours or not."""
        from gpuinfra.provision.names import ref_of

        wanted = ref_of(kind, self.group, self.name)
        return next((part for part in self.parts if same(part.ref, wanted)), None)

    def is_ours(self, part: ObservedResource) -> bool:
        """Whether it carries the machine's tag, has the name of one of its parts, and is in its group.

        Others can write tags: outside of the default group it must also be made or used as `up` does it.
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
        """Whether a tagged machine is in its default group, or made as `up` makes machines."""
        from gpuinfra.provision.ownership import Owner, owner_of

        return self.adopts or owner_of(machine) is not Owner.LOOKALIKE

    @property
    def machine(self) -> ObservedResource | None:
        """The machine, where it is ours."""
        found = self.part(Kind.VM)
        return found if found and self.is_ours(found) else None

    @property
    def untagged(self) -> ObservedResource | None:
        """A machine that has our name and group, and not our tag."""
        found = self.part(Kind.VM)
        return found if found and not self.is_ours(found) else None

    def ours(self) -> Iterator[ObservedResource]:
        """All that is part of the machine."""
        return (part for part in self.parts if self.is_ours(part))

    def lookalikes(self) -> tuple[ObservedResource, ...]:
        """What carries the machine's tag and is not part of it: never changed, only reported. Groups do not count."""
        tagged = (part for part in self.parts if tags.belongs_to(part.tags, self.name))
        return tuple(part for part in tagged if part.ref.kind is not Kind.RESOURCE_GROUP and not self.is_ours(part))


def same(one: Ref, other: Ref) -> bool:
    """Whether two references mean one resource: Azure does not see case."""
    return one.kind is other.kind and (one.group.casefold(), one.name.casefold()) == (
        other.group.casefold(),
        other.name.casefold(),
    )


class Operation(Protocol):
    """Something that goes on in Azure."""

    @property
    def ref(self) -> Ref:
        """With what."""


class Cloud(Protocol):
    """What a cloud can do. Every method raises CloudError and nothing else."""

    subscription: str
    simulated: bool
    interrupt: Interrupt
    """Once set, `wait` gives up."""

    def grant(self, seconds: float) -> Deadline:
        """More time, to clear up: a deadline that is over must not be the reason why a machine stays on."""

    def now(self) -> datetime:
        """The cloud's own time, so that a wrong clock on this computer shortens no lease."""

    def observe(self, name: str, group: str | None = None, *, thorough: bool = False) -> Observed:
        """All that belongs to a machine: by name in its group, and by tag. Without a group, the one that is found.

        Thorough misses no machine of this name anywhere, however new.
        """

    def look(self, ref: Ref) -> ObservedResource | None:
        """One resource, or None where there is none."""

    def contents(self, group: str) -> tuple[str, ...]:
        """Ids of all that is in a group. A group that is gone has none."""

    def put(self, resource: Resource, *, new: bool = False) -> Operation:
        """Make it so, and return at once. With `new` it must not exist yet: Fault.EXISTS where it does."""

    def patch(self, resource: Resource) -> Operation:
        """Change only what the body has, and return at once."""

    def act(self, ref: Ref, act: Act) -> Operation:
        """Start or deallocate a machine, and return at once."""

    def delete(self, ref: Ref) -> Operation:
        """Delete it, and return at once. Absent is done."""

    def allow_self_stop(self, machine: ObservedResource) -> AgentRole:
        """See to it that a machine may deallocate itself. Raises nothing: what Azure refuses is in the answer."""

    def disown(self, group: str) -> None:
        """Take our tags off a group, which from then on is somebody else's."""

    def wait(self, operation: Operation, deadline: Deadline) -> None:
        """Until it is done. Fault.TIMEOUT where it is not by then."""
