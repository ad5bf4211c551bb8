"""The guest agent's right to switch its machine off: given at the side, so that nobody waits for it."""

from __future__ import annotations

import threading

from gpuinfra.provision.cloud import Cloud, ObservedResource
from gpuinfra.provision.lifecycle.agent_role import AgentRole, Holding
from gpuinfra.provision.waiting.deadline import Deadline
from gpuinfra.provision.waiting.progress import Progress

# Once the machine is there nobody waits longer for a right: other layers hold without it.
PATIENCE_SECONDS = 30.0
LATE = AgentRole(Holding.UNKNOWN, "Timeout", "Azure did not answer in time")


class RoleGrant:
    """Gives one machine the right, from the moment that Azure has accepted it."""

    def __init__(self, cloud: Cloud, progress: Progress) -> None:
        self._cloud, self._progress = cloud, progress
        self._asking: _Asking | None = None

    def begin(self, machine: ObservedResource) -> None:
        """Ask for it. A machine that was tried before this one is forgotten."""
        self._asking = _Asking(self._cloud, machine)

    def end(self, machine: ObservedResource, deadline: Deadline) -> AgentRole:
        """What came of it, told to the user. What was too early for Azure is asked for again: the machine is there."""
        end = deadline.within(PATIENCE_SECONDS)
        found = self._asking.wait(end) if self._asking else None
        if found is None or (found.holding is Holding.UNKNOWN and found != LATE):
            found = _Asking(self._cloud, machine).wait(end)
        self._tell(machine.ref.name, found)
        return found

    def drop(self, deadline: Deadline) -> None:
        """The machine came to nothing. What was asked for it is over before it is deleted, or is left to itself."""
        if self._asking:
            self._asking.wait(deadline.within(PATIENCE_SECONDS))
        self._asking = None

    def _tell(self, name: str, right: AgentRole) -> None:
        if right.holding is Holding.GRANTED:
            self._progress.note("agent: may switch the machine off")
        if right.is_held:
            return
        may = "may not" if right.holding is Holding.REFUSED else "perhaps may not"
        self._progress.note(
            f"the guest agent {may} switch the machine off ({right.code}): lease, idleness and finished jobs are then "
            f"ended by Azure's schedule and `gpuinfra reap`; `gpuinfra doctor {name}` says what is missing"
        )


class _Asking:
    """A question to Azure in a thread of its own, which ends with the program if need be."""

    def __init__(self, cloud: Cloud, machine: ObservedResource) -> None:
        self._right: AgentRole | None = None
        self._thread = threading.Thread(target=self._ask, args=(cloud, machine), name="right", daemon=True)
        self._thread.start()

    def _ask(self, cloud: Cloud, machine: ObservedResource) -> None:
        self._right = cloud.allow_self_stop(machine)

    def wait(self, deadline: Deadline) -> AgentRole:
        """The answer, if it comes in time."""
        self._thread.join(deadline.left)
        return self._right or LATE
