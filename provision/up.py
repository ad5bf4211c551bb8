"""Make Azure match the spec, from any state, at the first candidate that is available; adopt a machine without tags."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

from gpuinfra.models.plan import Action, Kind, Plan, Ref, RejectedCandidate, RejectionReason, Resource
from gpuinfra.models.spec import Spec
from gpuinfra.provision import tags
from gpuinfra.provision.agent_role import AgentRole
from gpuinfra.provision.apply import RoleGrant
from gpuinfra.provision.errors import CloudError, Fault, explain
from gpuinfra.provision.locks import check_can_switch_off
from gpuinfra.provision.login import HostKey, new_host_key
from gpuinfra.provision.observed import Observed
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.ownership import is_made_by_us
from gpuinfra.provision.placement import PLACED, Attempts, Placement, actual_place
from gpuinfra.provision.plan import check_elsewhere, check_names
from gpuinfra.provision.preflight import Demand, Preflight, no_candidate
from gpuinfra.provision.resources.common import with_others
from gpuinfra.provision.tags import ref_of
from gpuinfra.provision.task import Task

DOING = "adopting"


def adoptable(observed: Observed) -> list[ObservedResource]:
    """Return resources with our names and without a machine tag, if the VM among them was created by `up`."""
    machine = observed.part(Kind.VM)
    if machine is None or not is_made_by_us(machine):
        return []
    return [part for part in replace(observed, adopts=True).ours() if not tags.get(part.tags, tags.NAME)]


def adopted(task: Task, observed: Observed, consent: Callable[[Sequence[Ref]], None], host_key: str) -> Observed:
    """Return the observed state, in which untagged resources count as ours. `consent` raises if the user refuses.

    The VM gets its name tag immediately, so that it can be found even after a crash. The plan restores the other tags.
    """
    parts = adoptable(observed)
    if not parts:
        return observed
    # What the plan would refuse must be refused before anything is written.
    check_names(replace(observed, adopts=True))
    check_elsewhere(observed)
    consent([part.ref for part in parts])
    for machine in (part for part in parts if part.ref.kind is Kind.VM):
        task.journal.intend(DOING, machine.ref)
        marks = {tags.NAME: observed.name, **({tags.HOST_KEY: host_key} if host_key else {})}
        body = {"tags": with_others(machine, marks)}
        task.cloud.wait(task.cloud.patch(Resource(machine.ref, body)), task.deadline)
        task.journal.did(DOING, machine.ref)
        parts = [ObservedResource(machine.ref, {**machine.body, **body}) if part is machine else part for part in parts]
    others = [part for part in observed.parts if part.ref not in {each.ref for each in parts}]
    return replace(observed, parts=(*others, *parts), adopts=True)


@dataclass(frozen=True)
class UpOutcome:
    """The result of `up`."""

    plan: Plan
    """The changes, where they were made, and the candidates that were rejected."""
    observed: Observed | None
    """The current state; None if there is no machine because the spec keeps it off."""
    lease_until: datetime | None = None
    agent: AgentRole | None = None
    """Whether the guest agent can deallocate the VM; None if the machine is to be off."""


@dataclass(frozen=True)
class Survey:
    """A machine before a plan is made."""

    observed: Observed
    demand: Demand | None = None
    """What a machine needs that is created, replaced or resized; None if it may stay as it is."""


@dataclass(frozen=True)
class FoundMachine:
    """A machine that exists before this run."""

    host_key: str
    created: str
    """Azure's creation time; empty if Azure does not show it."""


@dataclass(frozen=True)
class UpHooks:
    """Functions that `up` calls before it changes Azure. Each raises to prevent the change."""

    adopt: Callable[[Sequence[Ref]], None] | None = None
    """Called before a machine without tags is adopted. None: never adopt."""
    known_host_key: str = ""
    """The public host key by which an untagged machine is known."""
    check_found: Callable[[FoundMachine], None] | None = None
    """Called with an existing machine."""
    before_creation: Callable[[str], None] | None = None
    """Called with a new machine's public host key, because this run may be killed right after the creation."""


NO_HOOKS = UpHooks()


@dataclass
class Provisioner:
    """The provisioning of one machine."""

    spec: Spec
    task: Task
    sources: tuple[str, ...]
    public_key: str
    repository: str = ""
    """The git repository that contains the spec; empty if unknown."""
    host_key: HostKey = field(default_factory=new_host_key)

    def __post_init__(self) -> None:
        self._role_grant = RoleGrant(self.task.cloud, self.task.progress)
        self._attempts = Attempts(self.spec, self.task, self._role_grant, self.host_key.public)
        self._placement = Placement(self.spec, self.task, self.sources, self.public_key, self.repository, self.host_key)

    def survey(self) -> Survey:
        """Return the current state, and what the machine needs. Nothing is changed."""
        try:
            observed = self.task.cloud.observe(self.spec.name, self.spec.group_name, thorough=True)
            self._check_locks(observed)
            places, checked = self._placement.candidates(observed)
        except CloudError as error:
            raise explain(error, f"planning {self.spec.name}") from error
        if checked is None:
            return Survey(observed)
        self.limit(checked)
        machine = observed.part(Kind.VM)
        held = actual_place(machine) if machine else None
        return Survey(observed, Demand(self.spec, self.task.market.subscription, places, checked, held))

    def limit(self, checked: Preflight) -> None:
        """Use this result of a preflight instead of asking again."""
        self._placement = replace(self._placement, checked=checked)

    def plan(self, survey: Survey | None = None) -> Plan:
        """Return what `up` would do at its first candidate. Nothing is changed."""
        observed = (survey or self.survey()).observed
        try:
            places, checked = self._placement.candidates(observed)
            return self._placement.plan(places[0], observed, checked)
        except CloudError as error:
            raise explain(error, f"planning {self.spec.name}") from error

    def up(self, consent: Callable[[Plan], None], hooks: UpHooks = NO_HOOKS) -> UpOutcome:
        """Apply the plan. `consent` gets the plan before any change and raises if the user refuses."""
        try:
            observed = self._observe()
            self._check_locks(observed)
            if hooks.adopt:
                observed = adopted(self.task, observed, hooks.adopt, hooks.known_host_key)
            places, checked = self._placement.candidates(observed)
        except CloudError as error:
            raise explain(error, f"looking at {self.spec.name}") from error
        rejected = list(checked.rejected) if checked else []
        lost = ""
        for number, candidate in enumerate(places):
            plan = self._placement.plan(candidate, observed, checked)
            _check_found(observed, hooks)
            if number > 0:
                self.task.progress.note(f"next: {candidate}, {_price_of(plan)}")
            # Between two candidates another client may have created the machine, which was not in a plan so far.
            if not plan.is_empty and (number == 0 or plan.loses or observed.part(Kind.VM)):
                consent(plan)
            if number == 0 and plan.loses:
                lost = f"{plan.name}, which was to be replaced, is gone with what was on its disk; "
            if plan.is_empty:
                self._request_role(plan, observed)
            else:
                self._attempts.check_unchanged(plan, observed)
                self._attempts.prepare(checked)
                if hooks.before_creation and _creates_vm(plan):
                    hooks.before_creation(self.host_key.public)
                failure = self._attempts.run(plan, observed, places[number + 1 :])
                if failure:
                    reason = RejectionReason(failure.code, failure.message)
                    rejected.append(RejectedCandidate(candidate, (reason,)))
                    self.task.progress.note(f"{candidate} is passed over: {failure.code}")
                    observed = self._observe()
                    continue
            return self._outcome(plan, rejected)
        raise no_candidate(self.spec, rejected, f"{lost}{self._attempts.rollback}")

    def _check_locks(self, observed: Observed) -> None:
        cloud, ref = self.task.cloud, ref_of(Kind.VM, observed.group, observed.name)
        wants_on = self.spec.power == "running"
        check_can_switch_off(cloud.locks(), ref, observed.part(Kind.VM), cloud.subscription, wants_on=wants_on)

    def _observe(self) -> Observed:
        """Return the current state. While there are parts of a machine without its VM, observe until they stay.

        Resources are read one by one: between two reads, another run may have created the VM, or Azure may have
        deleted it with its NIC, public IP and disk.
        """
        look = partial(observe_settled, self.task, self.spec.name, self.spec.group_name)
        observed = look()
        for _ in PLACED:
            before = _parts_without_vm(observed)
            if not before:
                break
            observed = look()
            if _parts_without_vm(observed) == before:
                break
        return observed

    def _outcome(self, plan: Plan, rejected: Sequence[RejectedCandidate]) -> UpOutcome:
        plan = replace(plan, rejected=tuple(rejected))
        observed = self.task.cloud.observe(self.spec.name, self.spec.group_name)
        machine = observed.part(Kind.VM)
        if machine is None:
            return UpOutcome(plan, None)
        with contextlib.suppress(CloudError):  # the next run does it
            self._mark_ready(observed)
        role = self._role_grant.end(machine, self.task.deadline) if plan.wants_running else None
        schedule = observed.part(Kind.SHUTDOWN_SCHEDULE)
        if role and not role.is_held and (schedule is None or schedule.properties.get("status") != "Enabled"):
            self.task.progress.note("warning: nothing in Azure switches this machine off: only `gpuinfra reap` does")
        return UpOutcome(plan, observed, tags.moment(machine.tags, tags.LEASE_UNTIL), role)

    def _request_role(self, plan: Plan, observed: Observed) -> None:
        """Request the role of a machine that needs no change, because the role may be missing. This may write."""
        machine = observed.part(Kind.VM)
        if machine and plan.wants_running:
            self._role_grant.begin(machine)

    def _mark_ready(self, observed: Observed) -> None:
        """Mark the machine as ready: it may hold data from now on, so a failure must not cause its recreation."""
        address, ready = observed.part(Kind.PUBLIC_IP), self._placement.ready_since(observed)
        if address is None or not ready or tags.get(address.tags, tags.READY) or not observed.is_ours(address):
            return
        marked = {**address.tags, tags.READY: ready}
        self.task.cloud.wait(self.task.cloud.patch(Resource(address.ref, {"tags": marked})), self.task.deadline)


def _price_of(plan: Plan) -> str:
    price = plan.price.per_hour
    return "no price is known" if price is None else f"${price:.3f} an hour"


def _parts_without_vm(observed: Observed) -> list[Kind]:
    """Return the kinds that exist of a machine that has no VM."""
    return [] if observed.part(Kind.VM) else [kind for kind in PLACED if observed.part(kind)]


def _creates_vm(plan: Plan) -> bool:
    return any(each.ref.kind is Kind.VM and each.action in {Action.ADD, Action.REPLACE} for each in plan.changes)


def _check_found(observed: Observed, hooks: UpHooks) -> None:
    machine = observed.part(Kind.VM)
    if machine and hooks.check_found:
        created = str(machine.properties.get("timeCreated") or "")
        hooks.check_found(FoundMachine(tags.get(machine.tags, tags.HOST_KEY), created))


SETTLE_SECONDS = 2400.0


def observe_settled(task: Task, name: str, group: str | None) -> Observed:
    """Return the current state once no operation is in progress: a killed run, or another client, may have left one."""
    observed = task.cloud.observe(name, group, thorough=True)
    while moving := [part for part in observed.ours() if not part.is_settled]:
        for part in moving:
            _wait(task.within(SETTLE_SECONDS), part.ref, part.state)
        observed = task.cloud.observe(name, observed.group, thorough=True)
    return observed


def _wait(task: Task, ref: Ref, state: str) -> None:
    task.progress.begin(str(ref), f"waiting while it is {state}")
    if not task.wait_until_settled(ref):
        task.progress.fail(str(ref), f"still {state}")
        raise CloudError(Fault.TIMEOUT, "Timeout", f"it stays {state}", subject=str(ref))
    task.progress.end(str(ref), "settled")
