"""Make Azure match the spec, from any state, at the first candidate that is available."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

from gpuinfra.diagnostics import Exit, Problem
from gpuinfra.models.plan import Action, Candidate, Change, Plan, Price, RejectedCandidate, RejectionReason
from gpuinfra.models.receipt import stamp
from gpuinfra.models.resource import Kind, Ref, Resource
from gpuinfra.models.spec import Spec
from gpuinfra.provision import tags
from gpuinfra.provision.adopt import adopted
from gpuinfra.provision.apply import PlanExecution
from gpuinfra.provision.cloud import Cloud, Observed, ObservedResource
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.journal import Journal
from gpuinfra.provision.lifecycle import lease
from gpuinfra.provision.lifecycle.agent_role import AgentRole
from gpuinfra.provision.lifecycle.terms import terms_of
from gpuinfra.provision.login.host_key import new_host_key
from gpuinfra.provision.market import price_list
from gpuinfra.provision.market.port import Market, Prices
from gpuinfra.provision.market.preflight import Preflight, no_candidate, preflight
from gpuinfra.provision.market.residue import address_per_month, disk_per_month
from gpuinfra.provision.names import ref_of
from gpuinfra.provision.observe import observe_settled
from gpuinfra.provision.place import actual_place, present_place
from gpuinfra.provision.plan import creation_failed, make_plan
from gpuinfra.provision.plan_input import HostKey, PlanInput
from gpuinfra.provision.problems import explain
from gpuinfra.provision.remove import UNREACHABLE_SECONDS, remove_unused, strangers
from gpuinfra.provision.role_grant import RoleGrant
from gpuinfra.provision.vm_identity import vm_id_of
from gpuinfra.provision.waiting.deadline import Deadline
from gpuinfra.provision.waiting.progress import Progress
from gpuinfra.provision.waiting.retry import retry

# Resources that are created and deleted together with the VM.
_PLACED = (Kind.VM, Kind.DISK, Kind.NIC, Kind.PUBLIC_IP)

CLEAR_UP_SECONDS = 1800.0
ROLLED_BACK = "what this run had created was deleted again"


@dataclass(frozen=True)
class Up:
    """The result of `up`."""

    plan: Plan
    """The changes, where they were made, and the candidates that were rejected."""
    observed: Observed | None
    """The current state; None if there is no machine because the spec keeps it off."""
    lease_until: datetime | None = None
    agent: AgentRole | None = None
    """Whether the guest agent can deallocate the VM; None if the machine is to be off."""


@dataclass(frozen=True)
class FoundMachine:
    """A machine that exists before this run."""

    host_key: str
    created: str
    """Azure's creation time; empty if Azure does not show it."""


@dataclass
class Provisioner:
    """The provisioning of one machine."""

    spec: Spec
    cloud: Cloud
    market: Market
    sources: tuple[str, ...]
    public_key: str
    progress: Progress
    journal: Journal
    deadline: Deadline
    repository: str = ""
    """The git repository that contains the spec; empty if unknown."""
    host_key: HostKey = field(default_factory=new_host_key)
    adopt: Callable[[Sequence[Ref]], None] | None = None
    """Called before a machine without tags is adopted; raises if the user refuses. None: never adopt."""
    check_found: Callable[[FoundMachine], None] | None = None
    """Called with an existing machine before any change; raises if it must not be used."""
    before_creation: Callable[[str], None] | None = None
    """Called with a new machine's public host key before its creation, because this run may be killed right after."""
    known_host_key: str = ""
    """The public host key by which an untagged machine is known."""
    _made: list[Ref] = field(default_factory=list)
    """What this run has created, for all candidates so far."""
    _rolled_back: str = ROLLED_BACK
    """The result of the last rollback, for the error message."""

    def __post_init__(self) -> None:
        self._allowing = RoleGrant(self.cloud, self.progress)

    # Plan

    def plan(self) -> Plan:
        """Return what `up` would do at its first candidate. Nothing is changed."""
        try:
            observed = self.cloud.observe(self.spec.name, self.spec.group_name, thorough=True)
            place, checked = self._places(observed)
            return self._plan(place[0], observed, checked)
        except CloudError as error:
            raise explain(error, f"planning {self.spec.name}") from error

    def _places(self, observed: Observed) -> tuple[tuple[Candidate, ...], Preflight | None]:
        """Return the candidates in order. A machine that may stay as it is needs no preflight."""
        present, machine = present_place(self.spec, observed), observed.part(Kind.VM)
        held = actual_place(machine) if machine else None
        if self.spec.power == "deallocated":
            return (held or Candidate(self.spec.regions[0], self.spec.candidate_sizes[0]),), None
        anew = present is None or _replaces_machine(make_plan(self._setting(present, observed, None), observed))
        if present and held and not anew and present.size.casefold() == held.size.casefold():
            return (present,), None
        checked = preflight(self.market, self.spec, self.deadline, self.progress, held)
        if present is None:
            return checked.viable, checked
        if anew:
            # If the current place is still viable, try it first.
            return tuple(sorted(checked.viable, key=lambda each: each != present)), checked
        if present not in checked.viable:
            raise no_candidate(self.spec, checked.passed, f"{self.spec.name} was not changed")
        return (present,), checked

    def _plan(self, candidate: Candidate, observed: Observed, checked: Preflight | None) -> Plan:
        price = self._price(candidate, checked)
        setting = self._setting(candidate, observed, checked, price.per_hour)
        plan = make_plan(setting, observed, price)
        if _replaces_machine(plan) or plan.restarts:
            # The machine is switched on again, so its lease and cost cap start from zero.
            ready = "" if _replaces_machine(plan) else setting.ready
            fresh = replace(setting, kept_terms=None, ready=ready)
            fresh = replace(fresh, lease=lease.decide(self.spec, None, self.cloud.now(), fresh.terms))
            plan = make_plan(fresh, observed, price)
        return replace(plan, passed=checked.passed if checked else ())

    def _setting(
        self, candidate: Candidate, observed: Observed, checked: Preflight | None, price_per_hour: float | None = None
    ) -> PlanInput:
        image, machine = checked.image.get(candidate.region) if checked else None, observed.part(Kind.VM)
        kept = lease.kept_terms(self.spec, machine)
        terms = kept or terms_of(self.spec.lifecycle, price_per_hour)
        return PlanInput(
            spec=self.spec,
            candidate=candidate,
            subscription=self.cloud.subscription,
            sources=self.sources,
            public_key=self.public_key,
            host_key=self.host_key,
            lease=lease.decide(self.spec, machine, self.cloud.now(), terms),
            image_plan=image.plan if image else None,
            ready=self._ready(observed),
            price_per_hour=price_per_hour,
            repository=self.repository or self._known_repository(observed),
            has_schedule=self._offers_schedule(candidate.region, observed, checked),
            kept_terms=kept,
        )

    def _offers_schedule(self, region: str, observed: Observed, checked: Preflight | None) -> bool:
        """Return whether a region offers Azure's daily schedule; True if Azure does not say."""
        if observed.part(Kind.SHUTDOWN_SCHEDULE) or self.spec.power == "deallocated":
            return True
        regions = checked.schedule_regions if checked else None
        if checked is None:
            with contextlib.suppress(CloudError):  # then try to create one
                regions = self.market.schedule_regions()
        return regions is None or region in regions

    def _known_repository(self, observed: Observed) -> str:
        """Return the repository in the machine's tags, so that a replacement keeps it."""
        return tags.get(observed.machine.tags, tags.REPOSITORY) if observed.machine else ""

    def _ready(self, observed: Observed) -> str:
        """Return since when the machine may hold data, or an empty string.

        A failed start looks like a failed creation. So a missing mark is set before anything that may fail, also on a
        public IP that replaces a lost one.
        """
        machine, address = observed.part(Kind.VM), observed.part(Kind.PUBLIC_IP)
        mark = tags.get(address.tags, tags.READY) if address else ""
        if mark or machine is None or not machine.is_settled or creation_failed(observed):
            return mark
        return stamp(self.cloud.now()) or ""

    def _price(self, candidate: Candidate, checked: Preflight | None) -> Price:
        spec = self.spec
        prices = checked.prices if checked else Prices()
        per_hour = prices.price(candidate.size, candidate.region, spot=spec.priority == "spot")
        if per_hour is None and checked is None:
            per_hour = self.market.price(candidate.size, candidate.region, spot=spec.priority == "spot")
        price = Price(per_hour, disk_per_month(spec.disk.size_gib, spec.disk.sku), address_per_month())
        return price if per_hour is not None else self._listed(candidate, price)

    def _listed(self, candidate: Candidate, price: Price) -> Price:
        """Return the price from the shipped list. For a cost cap, a price some months old is better than none."""
        spot = self.spec.priority == "spot"
        per_hour = price_list.shipped_prices().price(candidate.size, candidate.region, spot=spot)
        return price if per_hour is None else replace(price, per_hour=per_hour, list_of=price_list.DATE)

    # Apply

    def up(self, consent: Callable[[Plan], None]) -> Up:
        """Apply the plan. `consent` gets the plan before any change and raises if the user refuses."""
        try:
            observed = self._observe()
            if self.adopt:
                observed = adopted(observed, self.adopt, self.known_host_key, self.cloud, self.journal, self.deadline)
            places, checked = self._places(observed)
        except CloudError as error:
            raise explain(error, f"looking at {self.spec.name}") from error
        passed = list(checked.passed) if checked else []
        lost = ""
        for number, candidate in enumerate(places):
            plan = self._plan(candidate, observed, checked)
            self._check_found(observed)
            if number > 0:
                self.progress.note(f"next: {candidate}, {_price_of(plan)}")
            # Between two candidates another client may have created the machine, which was not in a plan so far.
            if not plan.is_empty and (number == 0 or plan.loses or observed.part(Kind.VM)):
                consent(plan)
            if number == 0 and plan.loses:
                lost = f"{plan.name}, which was to be replaced, is gone with what was on its disk; "
            if plan.is_empty:
                self._allow(plan, observed)
            else:
                self._check_unchanged(plan, observed)
                self._prepare(checked)
                self._announce(plan)
                failure = self._try(plan, observed, places[number + 1 :])
                if failure:
                    reason = RejectionReason(failure.code, failure.message)
                    passed.append(RejectedCandidate(candidate, (reason,)))
                    self.progress.note(f"{candidate} is passed over: {failure.code}")
                    observed = self._observe()
                    continue
            return self._outcome(plan, passed)
        raise no_candidate(self.spec, passed, f"{lost}{self._rolled_back}")

    def _check_found(self, observed: Observed) -> None:
        machine = observed.part(Kind.VM)
        if machine and self.check_found:
            created = str(machine.properties.get("timeCreated") or "")
            self.check_found(FoundMachine(tags.get(machine.tags, tags.HOST_KEY), created))

    def _check_unchanged(self, plan: Plan, observed: Observed) -> None:
        """Raise Problem if the VM to delete was replaced by another with its name, perhaps during the confirmation."""
        if not plan.loses and not _replaces_machine(plan):
            return
        try:
            found = self.cloud.look(ref_of(Kind.VM, self.spec.group_name, self.spec.name))
        except CloudError as error:
            raise explain(error, f"looking at {plan.name}", "nothing was changed") from error
        if found and _identity(found) != _identity(observed.part(Kind.VM)):
            taken = CloudError(Fault.TAKEN, "Conflict", "another has just created it", subject=str(found.ref))
            raise explain(taken, str(found.ref), "nothing was changed")

    def _announce(self, plan: Plan) -> None:
        if self.before_creation and any(_creates(change) for change in plan.changes if change.ref.kind is Kind.VM):
            self.before_creation(self.host_key.public)

    def _observe(self) -> Observed:
        """Return the current state. If there is a disk without a VM, observe again.

        Resources are read one by one, so another run may have created the VM between the reads of VM and disk.
        """
        look = partial(observe_settled, self.cloud, self.spec.name, self.spec.group_name, self.progress, self.deadline)
        observed = look()
        is_alone = observed.part(Kind.DISK) is not None and observed.part(Kind.VM) is None
        return look() if is_alone else observed

    def _prepare(self, checked: Preflight | None) -> None:
        if checked is None:
            return
        try:
            for namespace in checked.unregistered:
                self.progress.begin(f"provider {namespace}", "registering")
                self.market.register(namespace, self.deadline)
                self.progress.end(f"provider {namespace}", "registered")
            for image in checked.image.values():
                if image.plan and image.terms_accepted is False and self.spec.accept_image_terms:
                    self.market.accept_terms(image.plan)
        except CloudError as error:
            raise explain(error, "preparing the subscription", "nothing was created") from error

    def _try(self, plan: Plan, before: Observed, rest: Sequence[Candidate]) -> CloudError | None:
        """Execute the plan. Return None, or an error that another candidate may avoid; raise Problem for others."""
        applying = PlanExecution(self.cloud, self.progress, self.journal, self.deadline, self._allowing)
        try:
            applying.apply(plan)
        except CloudError as error:
            self._made += applying.created
            doing = error.subject or plan.name
            if before.part(Kind.VM) and not _replaces_machine(plan):
                raise explain(error, doing, f"{plan.name} is kept; `gpuinfra status` shows its state") from error
            moves_on = error.moves_on and bool(rest)
            same_region = moves_on and plan.candidate is not None and rest[0].region == plan.candidate.region
            self._undo(error, moves_on=moves_on, same_region=same_region)
            if error.moves_on:
                return error
            is_gone = plan.loses and self._rolled_back == ROLLED_BACK
            gone = [f"{plan.name}, which was to be replaced, is gone"] if is_gone else []
            raise explain(error, doing, *gone, self._rolled_back) from error
        return None

    def _undo(self, cause: CloudError, *, moves_on: bool, same_region: bool) -> None:
        """Delete what a failed attempt created, and verify that it is gone."""
        self.progress.note(f"{cause.code}: deleting what was created")
        deadline = self.cloud.grant(CLEAR_UP_SECONDS)
        self._allowing.drop(deadline)
        try:
            gone = self._to_undo(deadline, moves_on=moves_on, same_region=same_region)
            # Keep what another `up` uses by now.
            for ref in remove_unused(self.cloud, gone, self.progress, self.journal, deadline):
                self.progress.note(f"{ref} was left: another resource uses it")
            self._made = [ref for ref in self._made if ref not in gone]
        except CloudError as error:
            what = error.subject or "what was created"
            problem = explain(error, f"deleting {what} after {cause.code}", "it may be billed")
            raise Problem(
                *explain(cause, cause.subject or self.spec.name).diagnostics,
                *problem.diagnostics,
                exit_code=Exit.LEFT_BEHIND,
            ) from error

    def _to_undo(self, deadline: Deadline, *, moves_on: bool, same_region: bool) -> list[Ref]:
        """Return what a failed attempt left. Retry as long as for a deletion, because a VM may be among it."""
        observed = retry(
            lambda: self.cloud.observe(self.spec.name, self.spec.group_name),
            deadline,
            self.cloud.interrupt.sleep,
            unreachable_seconds=UNREACHABLE_SECONDS,
        )
        gone = list(dict.fromkeys(self._made))
        machine = observed.part(Kind.VM)
        self._rolled_back = ROLLED_BACK
        if machine and not self._is_of_this_run(machine):
            # Everything with these names belongs, or will belong, to that machine.
            self._rolled_back = f"nothing was deleted: {machine.ref} is there, and this run did not create it"
            return []
        if machine:
            gone += [ref for kind in _PLACED if (part := observed.part(kind)) and (ref := part.ref) not in gone]
        if same_region:
            # The next attempt can use the network. What belongs to a VM is deleted with it.
            gone = [ref for ref in gone if machine and ref.kind in _PLACED]
        if moves_on or self._holds_others(gone, observed):
            gone = [ref for ref in gone if ref.kind is not Kind.RESOURCE_GROUP]
        return gone

    def _is_of_this_run(self, machine: ObservedResource) -> bool:
        """Return whether the VM has this run's host key, or has none and this run created a VM with this name."""
        found = tags.get(machine.tags, tags.HOST_KEY)
        return found == self.host_key.public or (not found and machine.ref in self._made)

    def _holds_others(self, gone: Sequence[Ref], observed: Observed) -> bool:
        """Return whether the group contains resources that are not about to be deleted."""
        if not any(ref.kind is Kind.RESOURCE_GROUP for ref in gone):
            return False
        ours = [*gone, *(part.ref for part in observed.ours())]
        return bool(strangers(self.cloud.contents(self.spec.group_name), ours, self.cloud.subscription))

    def _outcome(self, plan: Plan, passed: Sequence[RejectedCandidate]) -> Up:
        plan = replace(plan, passed=tuple(passed))
        observed = self.cloud.observe(self.spec.name, self.spec.group_name)
        machine = observed.part(Kind.VM)
        if machine is None:
            return Up(plan, None)
        with contextlib.suppress(CloudError):  # the next run does it
            self._mark_ready(observed)
        right = self._allowing.end(machine, self.deadline) if plan.wants_running else None
        schedule = observed.part(Kind.SHUTDOWN_SCHEDULE)
        if right and not right.is_held and (schedule is None or schedule.properties.get("status") != "Enabled"):
            self.progress.note("warning: nothing in Azure switches this machine off: only `gpuinfra reap` does")
        return Up(plan, observed, tags.moment(machine.tags, tags.LEASE_UNTIL), right)

    def _allow(self, plan: Plan, observed: Observed) -> None:
        """Check the role of a machine that needs no change, because the role may be missing."""
        machine = observed.part(Kind.VM)
        if machine and plan.wants_running:
            self._allowing.begin(machine)

    def _mark_ready(self, observed: Observed) -> None:
        """Mark the machine as ready: it may hold data from now on, so a failure must not cause its recreation."""
        address, ready = observed.part(Kind.PUBLIC_IP), self._ready(observed)
        if address is None or not ready or tags.get(address.tags, tags.READY) or not observed.is_ours(address):
            return
        marked = {**address.tags, tags.READY: ready}
        self.cloud.wait(self.cloud.patch(Resource(address.ref, {"tags": marked})), self.deadline)


def _identity(machine: ObservedResource | None) -> tuple[str, str]:
    """Return values that differ between any two VMs with the same name."""
    if machine is None:
        return "", ""
    return vm_id_of(machine), tags.get(machine.tags, tags.HOST_KEY)


def _price_of(plan: Plan) -> str:
    price = plan.price.per_hour
    return "no price is known" if price is None else f"${price:.3f} an hour"


def _creates(change: Change) -> bool:
    return change.action in {Action.ADD, Action.REPLACE}


def _replaces_machine(plan: Plan) -> bool:
    return any(change.ref.kind is Kind.VM and change.action is Action.REPLACE for change in plan.changes)
