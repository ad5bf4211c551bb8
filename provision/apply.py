"""Execute a plan, and grant the guest agent its role. The plan decides what; the resource kinds decide the order."""

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from shlex import quote

from gpuinfra.models.plan import Action, Change, Kind, Plan, Power, Ref, Resource
from gpuinfra.provision import tags
from gpuinfra.provision.agent_role import AgentRole, RoleState
from gpuinfra.provision.cloud import Cloud, Operation
from gpuinfra.provision.errors import CloudError, Fault, fault_of
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.ownership import Owner, owner_of
from gpuinfra.provision.remove import remove
from gpuinfra.provision.resources import NEEDS
from gpuinfra.provision.tags import ref_of
from gpuinfra.provision.task import Task
from gpuinfra.provision.waiting import Deadline, Progress, run_steps

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


# The longest waits, in seconds. They are twice the slowest times recorded in Azure.
MACHINE_SECONDS = 2400.0
RESOURCE_SECONDS = 600.0
UNREACHABLE_SECONDS = 30.0
# Changes to these kinds are sent as a PATCH with only the changed fields; all other kinds need a full PUT.
PATCHED = frozenset({Kind.PUBLIC_IP, Kind.VM, Kind.DISK})
# Created only if absent (`If-None-Match`): another client may have created one since the plan.
ONLY_NEW = frozenset({Kind.NSG, Kind.VNET, Kind.PUBLIC_IP, Kind.NIC, Kind.VM})


@dataclass
class PlanExecution:
    """The execution of one plan, with the resources that this run has created so far."""

    task: Task
    role_grant: RoleGrant | None = None
    """Grants a new machine the role to deallocate itself. If None, the machine gets no role."""
    created: list[Ref] = field(default_factory=list)
    _schedule: Change | None = None
    _follows: bool = False
    """Whether another client creates the machine."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def apply(self, plan: Plan) -> None:
        """Execute the whole plan. `created` lists the new resources, even after a failure."""
        changes = {change.ref.kind: change for change in plan.changes}
        self._schedule = changes.get(Kind.SHUTDOWN_SCHEDULE)
        machine = ref_of(Kind.VM, plan.group, plan.name)
        if _must_be_off_first(plan):
            self.act(machine, Power.DEALLOCATE)
        gone = [change.ref for change in plan.changes if change.action in {Action.REPLACE, Action.DESTROY}]
        if gone:
            remove(self.task, gone)
        steps: dict[Kind, Callable[[], None]] = {
            kind: self._step(change, machine) for kind, change in changes.items() if change.resource is not None
        }
        run_steps(steps, NEEDS, self.task.cloud.interrupt)
        if plan.needs_agent:
            self._require_agent(machine)
        if _starts(plan):
            self.act(machine, Power.START)

    def _step(self, change: Change, machine: Ref) -> Callable[[], None]:
        def step() -> None:
            assert change.resource is not None  # noqa: S101 for the type checker
            if change.ref.kind is Kind.SHUTDOWN_SCHEDULE and self._has_schedule(change):
                return
            try:
                self.make(change.resource, in_place=change.action is Action.CHANGE)
            except CloudError as error:
                if not self._can_do_without(change, machine, error):
                    raise
                self.task.progress.note(
                    f"warning: Azure's daily schedule is refused ({error.code}): the guest agent and `gpuinfra reap` "
                    "end this machine"
                )

        return step

    def _has_schedule(self, change: Change) -> bool:
        """Return whether the schedule exists: set when Azure accepted the VM, or by the client that created the VM.

        The lease of that client applies. It is in the VM's tags and may end at another minute than ours. A schedule
        that was there before the VM belongs to an earlier one, and may be switched off.
        """
        is_new = change.action is Action.ADD
        return self._schedule is None or (self._follows and is_new and self.task.cloud.look(change.ref) is not None)

    def _can_do_without(self, change: Change, machine: Ref, error: CloudError) -> bool:
        """Return whether Azure refused only the schedule and the guest agent can stop the machine without it."""
        is_new_schedule = change.ref.kind is Kind.SHUTDOWN_SCHEDULE and change.action is Action.ADD
        return is_new_schedule and error.is_lasting and self._has_agent(machine)

    def _has_agent(self, machine: Ref) -> bool:
        found = ObservedResource(machine, {})
        return self.role_grant is not None and self.role_grant.wait(found, self.task.deadline).is_held

    def _require_agent(self, machine: Ref) -> None:
        """Raise CloudError if neither the schedule nor the guest agent can stop the machine."""
        if not self._has_agent(machine):
            message = "the region offers no daily schedule, and the guest agent may not switch the machine off"
            raise CloudError(Fault.OTHER, "NothingEndsTheMachine", message, subject=str(machine))

    def make(self, resource: Resource, *, in_place: bool) -> None:
        """Create or change one resource and wait until Azure has finished."""
        doing, done = ("changing", "changed") if in_place else ("creating", "created")
        task = self.task.within(MACHINE_SECONDS if resource.ref.kind is Kind.VM else RESOURCE_SECONDS)

        def attempt() -> None:
            try:
                task.cloud.wait(self._send(resource, in_place=in_place), task.deadline)
            except CloudError as error:
                if error.fault is not Fault.EXISTS:
                    raise
                self._check_own(resource)
                if resource.ref.kind is Kind.VM:
                    self._follow(resource, task)
                elif resource.ref.kind is not Kind.RESOURCE_GROUP:  # the region of a group does not matter
                    task.cloud.wait(self._send(resource, in_place=in_place, new=False), task.deadline)

        with task.step(resource.ref, doing, done):
            task.retry(attempt, UNREACHABLE_SECONDS)

    def _check_own(self, resource: Resource) -> None:
        """Raise CloudError if a resource created since the plan is not managed by gpuinfra."""
        part, name = self.task.cloud.look(resource.ref), tags.get(resource.body["tags"], tags.NAME)
        if part is None or not name:  # a group that the spec names has no tag of a machine
            return
        is_own = owner_of(part) is Owner.OURS if part.ref.kind is Kind.VM else tags.belongs_to(part.tags, name)
        if not is_own:
            message = "another client just created it, and it is not managed by gpuinfra; it was not changed"
            raise CloudError(Fault.TAKEN, "PreconditionFailed", message, subject=str(part.ref))

    def _send(self, resource: Resource, *, in_place: bool, new: bool = True) -> Operation:
        kind = resource.ref.kind
        if in_place and kind in PATCHED:
            return self.task.cloud.patch(resource)
        operation = self.task.cloud.put(resource, new=new and not in_place and kind in ONLY_NEW)
        if not in_place:
            with self._lock:
                self.created.append(resource.ref)
        if kind is Kind.VM:
            self._arm(resource.ref)
        return operation

    def _arm(self, machine: Ref) -> None:
        """Set the schedule and request the role once Azure accepts the VM, before the wait: it will be billed."""
        self._set_schedule()
        if self.role_grant:
            self.role_grant.begin(ObservedResource(machine, {}))

    def _set_schedule(self) -> None:
        schedule = self._schedule
        if schedule is None or schedule.resource is None:
            return
        self.task.journal.intend("arming", schedule.ref)
        with contextlib.suppress(CloudError):  # `_step` sets it later, once the VM exists
            self.task.cloud.wait(self.task.cloud.put(schedule.resource), self.task.deadline.within(RESOURCE_SECONDS))
            self.task.journal.did("arming", schedule.ref)
            self._schedule = None
            if schedule.action is not Action.CHANGE:
                with self._lock:
                    self.created.append(schedule.ref)

    def act(self, ref: Ref, power: Power) -> None:
        """Start or deallocate the machine, and wait until Azure has finished."""
        doing, done = ("starting", "started") if power is Power.START else ("deallocating", "deallocated")
        task = self.task.within(MACHINE_SECONDS)
        with task.step(ref, doing, done):
            task.retry(lambda: task.cloud.wait(task.cloud.act(ref, power), task.deadline), UNREACHABLE_SECONDS)

    def _follow(self, resource: Resource, task: Task) -> None:
        """Use the VM that exists: another client created it first, or we missed Azure's response to our own request."""
        ref = resource.ref
        if self._is_of_this_run(resource):
            with self._lock:
                self.created.append(ref)
            self._arm(ref)
        else:
            self._follows = True
            task.progress.note(f"{ref} is already being created; waiting for it")
        if not task.wait_until_settled(ref):
            message = "another client creates it, and does not finish"
            raise CloudError(Fault.TIMEOUT, "Timeout", message, subject=str(ref))
        part = task.cloud.look(ref)
        if part is None or part.state != "Succeeded":
            code = part.failure if part else "ResourceNotFound"
            message = "the creation by another client failed"
            raise CloudError(fault_of(code), code, message, subject=str(ref))

    def _is_of_this_run(self, resource: Resource) -> bool:
        """Return whether the VM has the host key generated for this run, which no other client has."""
        part = self.task.cloud.look(resource.ref)
        return part is not None and tags.get(part.tags, tags.HOST_KEY) == resource.body["tags"][tags.HOST_KEY]


def _must_be_off_first(plan: Plan) -> bool:
    return any(
        change.power is Power.DEALLOCATE or any(each.needs_off for each in change.differences)
        for change in plan.changes
        if change.action is Action.CHANGE
    )


def _starts(plan: Plan) -> bool:
    is_off = _must_be_off_first(plan) or any(change.power is Power.START for change in plan.changes)
    return plan.wants_running and is_off
