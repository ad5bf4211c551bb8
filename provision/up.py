"""Makes Azure match the file, from any state, at the first place where it can be had."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

from gpuinfra.diagnostics import Exit, Problem
from gpuinfra.models.candidate import Candidate, Passed, Reason
from gpuinfra.models.plan import Action, Change, Plan, Price
from gpuinfra.models.receipt import stamp
from gpuinfra.models.resource import Kind, Ref, Resource
from gpuinfra.models.spec import Spec
from gpuinfra.provision import tags
from gpuinfra.provision.adopt import adopted
from gpuinfra.provision.apply import PlanExecution
from gpuinfra.provision.cloud import Cloud, Observed
from gpuinfra.provision.errors import CloudError
from gpuinfra.provision.journal import Journal
from gpuinfra.provision.lifecycle import lease
from gpuinfra.provision.lifecycle.agent_role import AgentRole
from gpuinfra.provision.lifecycle.terms import terms_of
from gpuinfra.provision.login.host_key import new_host_key
from gpuinfra.provision.market import price_list
from gpuinfra.provision.market.port import Market, Prices
from gpuinfra.provision.market.preflight import Preflight, no_candidate, preflight
from gpuinfra.provision.market.residue import address_per_month, disk_per_month
from gpuinfra.provision.observe import observe_settled
from gpuinfra.provision.place import actual_place, present_place
from gpuinfra.provision.plan import creation_failed, make_plan
from gpuinfra.provision.plan_input import HostKey, PlanInput
from gpuinfra.provision.problems import explain
from gpuinfra.provision.remove import UNREACHABLE_SECONDS, remove_unused, strangers
from gpuinfra.provision.role_grant import RoleGrant
from gpuinfra.provision.waiting.deadline import Deadline
from gpuinfra.provision.waiting.patience import patiently
from gpuinfra.provision.waiting.progress import Progress

# What goes with a machine.
_PLACED = (Kind.VM, Kind.DISK, Kind.NIC, Kind.PUBLIC_IP)

CLEAR_UP_SECONDS = 1800.0


@dataclass(frozen=True)
class Up:
    """What came of it."""

    plan: Plan
    """What was done, where it was done, and where it could not be."""
    observed: Observed | None
    """What there is now; None where there is no machine, as the spec says."""
    lease_until: datetime | None = None
    agent: AgentRole | None = None
    """Whether its guest agent can switch it off; None where it is not to be on."""


@dataclass(frozen=True)
class FoundMachine:
    """A machine that is there already."""

    host_key: str
    created: str
    """When, by Azure; empty if Azure does not say."""
    is_replaced: bool
    """Whether the plan deletes it."""


@dataclass
class Provisioner:
    """One machine on its way up."""

    spec: Spec
    cloud: Cloud
    market: Market
    sources: tuple[str, ...]
    public_key: str
    progress: Progress
    journal: Journal
    deadline: Deadline
    repository: str = ""
    """Which git repository the spec comes from; empty where that is not known."""
    host_key: HostKey = field(default_factory=new_host_key)
    adopt: Callable[[Sequence[Ref]], None] | None = None
    """Asked before a machine that has lost its tags is taken back, and raises where that is refused. None: never."""
    check_found: Callable[[FoundMachine], None] | None = None
    """Gets a machine that is there, before anything is changed; raises if it must not be used."""
    before_creation: Callable[[str], None] | None = None
    """Gets the public host key of a new machine before it is created: this run may be killed right after that."""
    known_host_key: str = ""
    """The public host key that a machine without tags is known by."""
    _made: list[Ref] = field(default_factory=list)
    """What this run has made, over all candidates that it has tried."""

    def __post_init__(self) -> None:
        self._allowing = RoleGrant(self.cloud, self.progress)

    # Planning

    def plan(self) -> Plan:
        """What `up` would do, at the place where it would begin. Nothing is written."""
        try:
            observed = self.cloud.observe(self.spec.name, self.spec.group_name)
            place, checked = self._places(observed)
            return self._plan(place[0], observed, checked)
        except CloudError as error:
            raise explain(error, f"planning {self.spec.name}") from error

    def _places(self, observed: Observed) -> tuple[tuple[Candidate, ...], Preflight | None]:
        """Where to try, in order. A machine that is there and may stay as it is needs no preflight."""
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
            # Where it was is as good a place as any that the spec names.
            return tuple(sorted(checked.viable, key=lambda each: each != present)), checked
        if present not in checked.viable:
            raise no_candidate(self.spec, checked.passed, f"{self.spec.name} was not changed")
        return (present,), checked

    def _plan(self, candidate: Candidate, observed: Observed, checked: Preflight | None) -> Plan:
        price = self._price(candidate, checked)
        setting = self._setting(candidate, observed, checked, price.per_hour)
        plan = make_plan(setting, observed, price)
        if _replaces_machine(plan) or plan.restarts:
            # The machine is switched on anew: its lease and its cost cap begin then.
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
            kept_terms=kept,
        )

    def _known_repository(self, observed: Observed) -> str:
        """What the machine says already, so that a replacement says it, too."""
        return tags.get(observed.machine.tags, tags.REPOSITORY) if observed.machine else ""

    def _ready(self, observed: Observed) -> str:
        """Since when there is something to lose. A failed start looks like a machine that never was, so the mark is
        set, where it is missing, before anything is tried that may fail."""
        machine, address = observed.part(Kind.VM), observed.part(Kind.PUBLIC_IP)
        if machine is None or machine.state != "Succeeded":
            return tags.get(address.tags, tags.READY) if address else ""
        return (tags.get(address.tags, tags.READY) if address else "") or stamp(self.cloud.now()) or ""

    def _price(self, candidate: Candidate, checked: Preflight | None) -> Price:
        spec = self.spec
        prices = checked.prices if checked else Prices()
        per_hour = prices.price(candidate.size, candidate.region, spot=spec.priority == "spot")
        if per_hour is None and checked is None:
            per_hour = self.market.price(candidate.size, candidate.region, spot=spec.priority == "spot")
        price = Price(per_hour, disk_per_month(spec.disk.size_gib, spec.disk.sku), address_per_month())
        return price if per_hour is not None else self._listed(candidate, price)

    def _listed(self, candidate: Candidate, price: Price) -> Price:
        """A price that is some months old keeps a cost cap better than none."""
        spot = self.spec.priority == "spot"
        per_hour = price_list.shipped_prices().price(candidate.size, candidate.region, spot=spot)
        return price if per_hour is None else replace(price, per_hour=per_hour, list_of=price_list.DATE)

    # Doing

    def up(self, consent: Callable[[Plan], None]) -> Up:
        """Do it. `consent` gets the plan before anything is changed, and raises where it is not given."""
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
            if number == 0:
                self._check_found(plan, observed)
            if number > 0:
                self.progress.note(f"next: {candidate}, {_price_of(plan)}")
            elif not plan.is_empty:
                consent(plan)
            if number == 0 and plan.loses:
                lost = f"{plan.name}, which was to be replaced, is gone with what was on its disk; "
            if plan.is_empty:
                self._allow(plan, observed)
            else:
                self._prepare(checked)
                self._announce(plan)
                failure = self._try(plan, observed, places[number + 1 :])
                if failure:
                    reason = Reason(failure.code, failure.message)
                    passed.append(Passed(candidate, (reason,)))
                    self.progress.note(f"{candidate} is passed over: {failure.code}")
                    observed = self.cloud.observe(self.spec.name, self.spec.group_name)
                    continue
            return self._outcome(plan, passed)
        raise no_candidate(self.spec, passed, f"{lost}what this run had created was deleted again")

    def _check_found(self, plan: Plan, observed: Observed) -> None:
        machine = observed.part(Kind.VM)
        if machine and self.check_found:
            created = str(machine.properties.get("timeCreated") or "")
            self.check_found(FoundMachine(tags.get(machine.tags, tags.HOST_KEY), created, _replaces_machine(plan)))

    def _announce(self, plan: Plan) -> None:
        if self.before_creation and any(_creates(change) for change in plan.changes if change.ref.kind is Kind.VM):
            self.before_creation(self.host_key.public)

    def _observe(self) -> Observed:
        """What there is. A disk without a machine is looked at twice: parts are seen one by one, and another run may
        have made the machine between the look for it and that for its disk."""
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
        """Carry the plan out. None is success; an error that another candidate may not have is given back."""
        applying = PlanExecution(self.cloud, self.progress, self.journal, self.deadline, self._allowing)
        try:
            applying.apply(plan)
        except CloudError as error:
            self._made += applying.created
            doing = error.subject or plan.name
            machine = before.part(Kind.VM)
            if machine and not creation_failed(before) and not _replaces_machine(plan):
                raise explain(error, doing, f"{plan.name} is kept; `gpuinfra status` shows its state") from error
            moves_on = error.moves_on and bool(rest)
            same_region = moves_on and plan.candidate is not None and rest[0].region == plan.candidate.region
            self._undo(error, moves_on=moves_on, same_region=same_region)
            if error.moves_on:
                return error
            gone = [f"{plan.name}, which was to be replaced, is gone"] if plan.loses else []
            raise explain(error, doing, *gone, "what this run had created was deleted again") from error
        return None

    def _undo(self, cause: CloudError, *, moves_on: bool, same_region: bool) -> None:
        """Delete what a failed try made, and see it gone: nothing is left that nobody asked for."""
        self.progress.note(f"{cause.code}: deleting what was created")
        deadline = self.cloud.grant(CLEAR_UP_SECONDS)
        self._allowing.drop(deadline)
        try:
            gone = self._to_undo(deadline, moves_on=moves_on, same_region=same_region)
            # What another `up` uses by now is its own: it stays.
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
        """What a failed try has left. It is looked for as patiently as it is deleted: a machine may be among it."""
        observed = patiently(
            lambda: self.cloud.observe(self.spec.name, self.spec.group_name),
            deadline,
            self.cloud.interrupt.sleep,
            unreachable_seconds=UNREACHABLE_SECONDS,
        )
        gone = list(dict.fromkeys(self._made))
        machine = observed.part(Kind.VM)
        if machine and observed.is_ours(machine) and (creation_failed(observed) or machine.ref in gone):
            gone += [ref for kind in _PLACED if (part := observed.part(kind)) and (ref := part.ref) not in gone]
        if same_region:
            # The next try can have the network; what hangs on a machine goes with it.
            gone = [ref for ref in gone if machine and ref.kind in _PLACED]
        if moves_on or self._holds_others(gone, observed):
            gone = [ref for ref in gone if ref.kind is not Kind.RESOURCE_GROUP]
        return gone

    def _holds_others(self, gone: Sequence[Ref], observed: Observed) -> bool:
        """Whether the group has something in it that is not about to go."""
        if not any(ref.kind is Kind.RESOURCE_GROUP for ref in gone):
            return False
        ours = [*gone, *(part.ref for part in observed.ours())]
        return bool(strangers(self.cloud.contents(self.spec.group_name), ours, self.cloud.subscription))

    def _outcome(self, plan: Plan, passed: Sequence[Passed]) -> Up:
        plan = replace(plan, passed=tuple(passed))
        observed = self.cloud.observe(self.spec.name, self.spec.group_name)
        machine = observed.part(Kind.VM)
        if machine is None:
            return Up(plan, None)
        with contextlib.suppress(CloudError):  # then the next run does it
            self._mark_ready(observed)
        right = self._allowing.end(machine, self.deadline) if plan.wants_running else None
        return Up(plan, observed, tags.moment(machine.tags, tags.LEASE_UNTIL), right)

    def _allow(self, plan: Plan, observed: Observed) -> None:
        """A machine that is as it should be may lack its right: that is looked at while the machine is."""
        machine = observed.part(Kind.VM)
        if machine and plan.wants_running:
            self._allowing.begin(machine)

    def _mark_ready(self, observed: Observed) -> None:
        """From now on there is something to lose, and a failure is no reason to make the machine anew."""
        address, ready = observed.part(Kind.PUBLIC_IP), self._ready(observed)
        if address is None or not ready or tags.get(address.tags, tags.READY) or not observed.is_ours(address):
            return
        marked = {**address.tags, tags.READY: ready}
        self.cloud.wait(self.cloud.patch(Resource(address.ref, {"tags": marked})), self.deadline)


def _price_of(plan: Plan) -> str:
    price = plan.price.per_hour
    return "no price is known" if price is None else f"${price:.3f} an hour"


def _creates(change: Change) -> bool:
    return change.action in {Action.ADD, Action.REPLACE}


def _replaces_machine(plan: Plan) -> bool:
    return any(change.ref.kind is Kind.VM and change.action is Action.REPLACE for change in plan.changes)
