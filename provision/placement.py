"""Decide where a machine can be, in order, and try to create it at one place after the other."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gpuinfra.diagnostics import Exit, Problem
from gpuinfra.models.json_values import stamp
from gpuinfra.models.plan import Candidate, Kind, Plan, Price, Ref
from gpuinfra.models.spec import Spec
from gpuinfra.provision import lease, market, tags
from gpuinfra.provision.apply import PlanExecution, RoleGrant
from gpuinfra.provision.down import switch_off
from gpuinfra.provision.errors import CloudError, Fault, explain
from gpuinfra.provision.lease import terms_of
from gpuinfra.provision.login import HostKey
from gpuinfra.provision.market import Prices, address_per_month, disk_per_month
from gpuinfra.provision.observed import Observed
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.ownership import is_default_group
from gpuinfra.provision.plan import creation_failed, make_plan
from gpuinfra.provision.power_log import with_power_on
from gpuinfra.provision.preflight import Preflight, no_candidate, preflight
from gpuinfra.provision.remove import UNREACHABLE_SECONDS, remove_unused, strangers
from gpuinfra.provision.resources.common import PlanInput
from gpuinfra.provision.tags import ref_of
from gpuinfra.provision.task import Task


@dataclass(frozen=True)
class Placement:
    """The places for one machine, and its plan at each of them."""

    spec: Spec
    task: Task
    sources: tuple[str, ...]
    public_key: str
    repository: str
    host_key: HostKey
    checked: Preflight | None = None
    """The result of an earlier preflight, which is then not repeated."""

    def candidates(self, observed: Observed) -> tuple[tuple[Candidate, ...], Preflight | None]:
        """Return the candidates in order. A machine that may stay as it is needs no preflight."""
        task = self.task
        present, machine = present_place(self.spec, observed), observed.part(Kind.VM)
        held = actual_place(machine) if machine else None
        if self.spec.power == "deallocated":
            return (held or Candidate(self.spec.regions[0], self.spec.candidate_sizes[0]),), None
        is_new = present is None or make_plan(self._input(present, observed, None), observed).replaces_vm
        if present and held and not is_new and present.size.casefold() == held.size.casefold():
            return (present,), None
        checked = self.checked or preflight(task.market, self.spec, task.deadline, task.progress, held)
        if present is None:
            return checked.viable, checked
        if is_new:
            # If the current place is still viable, try it first.
            return tuple(sorted(checked.viable, key=lambda each: each != present)), checked
        if present not in checked.viable:
            raise no_candidate(self.spec, checked.rejected, f"{self.spec.name} was not changed")
        return (present,), checked

    def plan(self, candidate: Candidate, observed: Observed, checked: Preflight | None) -> Plan:
        """Return the changes that create the machine at this candidate, or make it match the spec there."""
        price = self._price(candidate, checked)
        plan_input = self._input(candidate, observed, checked, price.per_hour)
        plan = make_plan(plan_input, observed, price)
        if plan.replaces_vm or plan.restarts:
            # The machine is switched on again, so its lease and cost cap start from zero.
            ready = "" if plan.replaces_vm else plan_input.ready
            fresh = replace(plan_input, kept_terms=None, ready=ready)
            fresh = replace(fresh, lease=lease.decide(self.spec, None, self.task.cloud.now(), fresh.terms))
            plan = make_plan(fresh, observed, price)
        return replace(plan, rejected=checked.rejected if checked else (), simulated=self.task.cloud.simulated)

    def _input(
        self, candidate: Candidate, observed: Observed, checked: Preflight | None, price_per_hour: float | None = None
    ) -> PlanInput:
        image, machine = checked.images.get(candidate.region) if checked else None, self._machine(observed)
        kept = lease.kept_terms(self.spec, machine)
        terms = kept or terms_of(self.spec.lifecycle, price_per_hour)
        return PlanInput(
            spec=self.spec,
            candidate=candidate,
            subscription=self.task.cloud.subscription,
            sources=self.sources,
            public_key=self.public_key,
            host_key=self.host_key,
            lease=lease.decide(self.spec, machine, self.task.cloud.now(), terms),
            image_plan=image.plan if image else None,
            ready=self.ready_since(observed),
            price_per_hour=price_per_hour,
            repository=self.repository or self._known_repository(observed),
            has_schedule=self._offers_schedule(candidate.region, observed, checked),
            kept_terms=kept,
        )

    def _machine(self, observed: Observed) -> ObservedResource | None:
        """Return the VM with its power-on time, even if it lost that tag: lease and cost cap count from then on."""
        machine = observed.part(Kind.VM)
        return with_power_on(self.task.cloud, machine) if machine else None

    def _offers_schedule(self, region: str, observed: Observed, checked: Preflight | None) -> bool:
        """Return whether a region offers Azure's daily schedule; True if Azure does not say."""
        if observed.part(Kind.SHUTDOWN_SCHEDULE) or self.spec.power == "deallocated":
            return True
        regions = checked.schedule_regions if checked else None
        if checked is None:
            with contextlib.suppress(CloudError):  # then try to create one
                regions = self.task.market.schedule_regions()
        return regions is None or region in regions

    def _known_repository(self, observed: Observed) -> str:
        """Return the repository in the machine's tags, so that a replacement keeps it."""
        return tags.get(observed.machine.tags, tags.REPOSITORY) if observed.machine else ""

    def ready_since(self, observed: Observed) -> str:
        """Return since when the machine may hold data, or an empty string.

        A failed start looks like a failed creation. So a missing mark is set before anything that may fail, also on a
        public IP that replaces a lost one.
        """
        machine, address = observed.part(Kind.VM), observed.part(Kind.PUBLIC_IP)
        mark = tags.get(address.tags, tags.READY) if address else ""
        if mark or machine is None or not machine.is_settled or creation_failed(observed):
            return mark
        return stamp(self.task.cloud.now()) or ""

    def _price(self, candidate: Candidate, checked: Preflight | None) -> Price:
        spec = self.spec
        prices = checked.prices if checked else Prices()
        per_hour = prices.price(candidate.size, candidate.region, spot=spec.priority == "spot")
        if per_hour is None and checked is None:
            per_hour = self.task.market.price(candidate.size, candidate.region, spot=spec.priority == "spot")
        price = Price(per_hour, disk_per_month(spec.disk.size_gib, spec.disk.sku), address_per_month())
        return price if per_hour is not None else self._listed(candidate, price)

    def _listed(self, candidate: Candidate, price: Price) -> Price:
        """Return the price from the shipped list. For a cost cap, a price some months old is better than none."""
        spot = self.spec.priority == "spot"
        per_hour = market.shipped_prices().price(candidate.size, candidate.region, spot=spot)
        return price if per_hour is None else replace(price, per_hour=per_hour, list_of=market.DATE)


def actual_place(machine: ObservedResource) -> Candidate:
    """Return where the VM is, regardless of the spec."""
    return Candidate(machine.region, machine.size, machine.zone)


def present_place(spec: Spec, observed: Observed) -> Candidate | None:
    """Return the candidate for the VM's current place, or None without a VM or if the spec does not allow its place."""
    machine = observed.part(Kind.VM)
    if machine is None or not observed.is_ours(machine) or creation_failed(observed):
        return None
    actual = actual_place(machine)
    if actual.region not in spec.regions or (spec.zones and actual.zone not in spec.zones):
        return None
    return Candidate(actual.region, _present_size(spec, actual.size), actual.zone if spec.zones else None)


def _present_size(spec: Spec, size: str) -> str:
    """Return the current size if the spec names it, else the spec's first size, to which the VM is resized."""
    named = {each.casefold(): each for each in spec.candidate_sizes}
    return named.get(size.casefold(), spec.candidate_sizes[0])


# Resources that are created and deleted together with the VM.
PLACED = (Kind.VM, Kind.DISK, Kind.NIC, Kind.PUBLIC_IP)
ROLLBACK_SECONDS = 1800.0
ROLLED_BACK = "what this run had created was deleted again"


@dataclass
class Attempts:
    """The attempts of one run, one candidate after the other."""

    spec: Spec
    task: Task
    role_grant: RoleGrant
    host_key: str
    """The public host key that was generated for this run."""
    created: list[Ref] = field(default_factory=list)
    """What this run has created and not deleted, for all candidates so far."""
    rollback: str = ROLLED_BACK
    """The result of the last rollback, for the error message."""

    def check_unchanged(self, plan: Plan, observed: Observed) -> None:
        """Raise Problem if the VM to delete was replaced by another with its name, perhaps during the confirmation."""
        if not plan.loses and not plan.replaces_vm:
            return
        try:
            found = self.task.cloud.look(ref_of(Kind.VM, self.spec.group_name, self.spec.name))
        except CloudError as error:
            raise explain(error, f"looking at {plan.name}", "nothing was changed") from error
        if found and _identity(found) != _identity(observed.part(Kind.VM)):
            taken = CloudError(Fault.TAKEN, "Conflict", "another client just created it", subject=str(found.ref))
            raise explain(taken, str(found.ref), "nothing was changed")

    def prepare(self, checked: Preflight | None) -> None:
        """Register resource providers and accept image terms where the preflight found that missing."""
        if checked is None:
            return
        market, progress = self.task.market, self.task.progress
        try:
            for namespace in checked.unregistered:
                progress.begin(f"provider {namespace}", "registering")
                market.register(namespace, self.task.deadline)
                progress.end(f"provider {namespace}", "registered")
            for image in checked.images.values():
                if image.plan and image.terms_accepted is False and self.spec.accept_image_terms:
                    market.accept_terms(image.plan)
        except CloudError as error:
            raise explain(error, "preparing the subscription", "nothing was created") from error

    def run(self, plan: Plan, before: Observed, rest: Sequence[Candidate]) -> CloudError | None:
        """Execute the plan. Return None, or an error that another candidate may avoid; raise Problem for others."""
        execution = PlanExecution(self.task, self.role_grant)
        try:
            execution.apply(plan)
        except CloudError as error:
            self.created += execution.created
            doing = error.subject or plan.name
            if error.fault is Fault.INTERRUPTED:
                raise explain(error, doing, "nothing was deleted") from error
            if before.part(Kind.VM) and not plan.replaces_vm:
                raise explain(error, doing, f"{plan.name} is kept; `gpuinfra status` shows its state") from error
            moves_on = error.moves_on and bool(rest)
            same_region = moves_on and plan.candidate is not None and rest[0].region == plan.candidate.region
            self._roll_back(error, moves_on=moves_on, same_region=same_region)
            if error.moves_on:
                return error
            is_gone = plan.loses and self.rollback == ROLLED_BACK
            gone = [f"{plan.name}, which was to be replaced, is gone"] if is_gone else []
            raise explain(error, doing, *gone, self.rollback) from error
        return None

    # Roll back

    def _roll_back(self, cause: CloudError, *, moves_on: bool, same_region: bool) -> None:
        """Delete what a failed attempt created, and verify that it is gone."""
        progress = self.task.progress
        progress.note(f"{cause.code}: deleting what was created")
        task = replace(self.task, deadline=self.task.cloud.grant(ROLLBACK_SECONDS))
        self.role_grant.drop(task.deadline)
        try:
            gone = self._leftovers(task, moves_on=moves_on, same_region=same_region)
            # Keep what another `up` uses by now.
            for ref in remove_unused(task, gone, self._is_of_this_run):
                progress.note(f"{ref} was left: another resource uses it")
            self.created = [ref for ref in self.created if ref not in gone]
        except CloudError as error:
            what = error.subject or "what was created"
            problem = explain(error, f"deleting {what} after {cause.code}", self._switch_off(task))
            raise Problem(
                *explain(cause, cause.subject or self.spec.name).diagnostics,
                *problem.diagnostics,
                exit_code=Exit.LEFT_BEHIND,
            ) from error

    def _switch_off(self, task: Task) -> str:
        """Switch off a machine of this run that could not be deleted, and describe what may be billed."""
        ref = ref_of(Kind.VM, self.spec.group_name, self.spec.name)
        with contextlib.suppress(CloudError):
            if (found := task.cloud.look(ref)) and self._is_of_this_run(found):
                return switch_off(task, ref) or f"{ref} is off; what remains may be billed"
        return "it may be billed"

    def _leftovers(self, task: Task, *, moves_on: bool, same_region: bool) -> list[Ref]:
        """Return what a failed attempt left. Retry as long as for a deletion, because a VM may be among it."""
        spec = self.spec
        observed = task.retry(lambda: task.cloud.observe(spec.name, spec.group_name), UNREACHABLE_SECONDS)
        gone = list(dict.fromkeys(self.created))
        machine = observed.part(Kind.VM)
        self.rollback = ROLLED_BACK
        if machine and not self._is_of_this_run(machine):
            # Everything with these names belongs, or will belong, to that machine.
            self.rollback = f"nothing was deleted: {machine.ref} exists, and this run did not create it"
            return []
        if machine:
            gone += [ref for kind in PLACED if (part := observed.part(kind)) and (ref := part.ref) not in gone]
        if same_region:
            # The next attempt can use the network. What belongs to a VM is deleted with it.
            gone = [ref for ref in gone if machine and ref.kind in PLACED]
        groups = [ref for ref in gone if ref.kind is Kind.RESOURCE_GROUP]
        if groups and not is_default_group(spec.group_name, spec.name):
            task.progress.note(f"the group {spec.group_name} is kept: other machines may be about to use it")
        elif not moves_on and not self._holds_others(gone, observed):
            return gone
        return [ref for ref in gone if ref not in groups]

    def _is_of_this_run(self, machine: ObservedResource) -> bool:
        """Return whether the VM has this run's host key, or has none and this run created a VM with this name."""
        found = tags.get(machine.tags, tags.HOST_KEY)
        return found == self.host_key or (not found and machine.ref in self.created)

    def _holds_others(self, gone: Sequence[Ref], observed: Observed) -> bool:
        """Return whether the group contains resources that are not about to be deleted."""
        if not any(ref.kind is Kind.RESOURCE_GROUP for ref in gone):
            return False
        ours, cloud = [*gone, *(part.ref for part in observed.ours())], self.task.cloud
        return bool(strangers(cloud.contents(self.spec.group_name), ours, cloud.subscription))


def _identity(machine: ObservedResource | None) -> tuple[str, str]:
    """Return values that differ between any two VMs with the same name."""
    return (machine.vm_id, tags.get(machine.tags, tags.HOST_KEY)) if machine else ("", "")
