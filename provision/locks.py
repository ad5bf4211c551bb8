"""Management locks in Azure. All pure.

A `ReadOnly` lock on a VM, its group or its subscription forbids deallocating the VM: to us, to its guest agent, to
Azure's daily schedule and to `reap`. So a machine must not be on under one.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem
from gpuinfra.models.plan import Ref
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.power import DEALLOCATED

PROVIDER = "/providers/Microsoft.Authorization/locks"
_READ_ONLY = "readonly"


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock, by its ID in Azure, and its level."""

    id: str
    level: str

    @property
    def scope(self) -> str:
        """The ID of the subscription, group or resource that it locks."""
        return self.id[: self.id.casefold().rindex(PROVIDER.casefold())]

    @property
    def is_read_only(self) -> bool:
        """Whether it forbids every change, and not only deletion."""
        return self.level.casefold() == _READ_ONLY

    def __str__(self) -> str:
        return f"the {self.level} lock `{self.id.rpartition('/')[2]}` on {place_of(self.scope)}"


def place_of(scope: str) -> str:
    """Describe a scope: the subscription, a group, or a resource in a group."""
    parts = scope.strip("/").split("/")
    if len(parts) < 4:
        return "the subscription"
    group = f"resource group {parts[3]}"
    return group if len(parts) == 4 else f"{parts[-2]}/{parts[-1]} in {group}"


def locks_on(locks: Iterable[Lock], resource_id: str) -> tuple[Lock, ...]:
    """Return the locks of a resource: its own, and those of its group and subscription."""
    own = f"{resource_id}/".casefold()
    return tuple(lock for lock in locks if own.startswith(f"{lock.scope}/".casefold()))


def removal(locks: Iterable[Lock]) -> str:
    """Return the command that removes these locks."""
    return f"`az lock delete --ids {' '.join(lock.id for lock in locks)}`"


def check_can_switch_off(
    locks: Iterable[Lock], ref: Ref, machine: ObservedResource | None, subscription: str, *, wants_on: bool
) -> None:
    """Raise Problem if the machine is on, or is to be on, and a lock prevents that it is ever switched off."""
    found = tuple(lock for lock in locks_on(locks, ref.id(subscription)) if lock.is_read_only)
    is_on = machine is not None and machine.power != DEALLOCATED
    if not found or not (is_on or wants_on):
        return
    named = " and ".join(map(str, found))
    if is_on:
        summary, state = "machine is on and cannot be switched off", f"`{ref.name}` is billed, and "
        then = f"; then `gpuinfra down {ref.name}` switches it off"
    else:
        summary, state, then = "machine could not be switched off", "nothing was created or started: ", ""
    raise Problem(
        Diagnostic(
            Code.LOCKED,
            summary,
            note=f"{state}{named} forbids it to everyone, also to the guest agent, Azure's daily schedule and `reap`",
            help=f"{removal(found)} removes the lock{then}",
        ),
        exit_code=Exit.LEFT_BEHIND if is_on else Exit.FAILED,
    )
