"""Grant the guest agent the role to deallocate its VM, in the background so that `up` does not wait for it."""

import threading
from shlex import quote

from gpuinfra.provision.cloud import Cloud
from gpuinfra.provision.lifecycle.agent_role import AgentRole, RoleState
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.progress import Progress
from gpuinfra.provision.waiting import Deadline

# The longest wait after the VM exists. Other layers can stop the machine without the role.
WAIT_SECONDS = 30.0
LATE = AgentRole(RoleState.UNKNOWN, "Timeout", "Azure did not answer in time")


class RoleGrant:
    """The grant of the role to one VM, requested as soon as Azure accepts the VM."""

    def __init__(self, cloud: Cloud, progress: Progress) -> None:
        self._cloud, self._progress = cloud, progress
        self._request: _Request | None = None

    def begin(self, machine: ObservedResource) -> None:
        """Request the role. An earlier request for another candidate's VM is forgotten."""
        self._request = _Request(self._cloud, machine)

    def end(self, machine: ObservedResource, deadline: Deadline) -> AgentRole:
        """Return the result after printing a note for the user."""
        found = self.wait(machine, deadline)
        self._tell(machine.ref.name, found)
        return found

    def wait(self, machine: ObservedResource, deadline: Deadline) -> AgentRole:
        """Return the result. If the first request came too early for Azure, repeat it now that the VM exists."""
        end = deadline.within(WAIT_SECONDS)
        found = self._request.wait(end) if self._request else None
        if found is None or (found.state is RoleState.UNKNOWN and found != LATE):
            self._request = _Request(self._cloud, machine)
            found = self._request.wait(end)
        return found

    def drop(self, deadline: Deadline) -> None:
        """Wait for the pending request before the failed VM is deleted. Abandon the request if it takes too long."""
        if self._request:
            self._request.wait(deadline.within(WAIT_SECONDS))
        self._request = None

    def _tell(self, name: str, role: AgentRole) -> None:
        if role.state is RoleState.GRANTED:
            self._progress.note("agent: may switch the machine off")
        if role.is_held:
            return
        may = "may not" if role.state is RoleState.REFUSED else "perhaps may not"
        self._progress.note(
            f"the guest agent {may} switch the machine off ({role.code}): without it, "
            f"Azure's schedule and `gpuinfra reap` end leases; `gpuinfra doctor {quote(name)}` shows what is missing"
        )


class _Request:
    """A request to Azure in a daemon thread, which does not keep the program running."""

    def __init__(self, cloud: Cloud, machine: ObservedResource) -> None:
        self._role: AgentRole | None = None
        self._thread = threading.Thread(target=self._ask, args=(cloud, machine), name="agent-role", daemon=True)
        self._thread.start()

    def _ask(self, cloud: Cloud, machine: ObservedResource) -> None:
        self._role = cloud.allow_self_stop(machine)

    def wait(self, deadline: Deadline) -> AgentRole:
        """Return the result, or LATE if it does not arrive in time."""
        self._thread.join(deadline.left)
        return self._role or LATE
