"""Decide where a machine can be, in order, and plan it at one of these places."""

import contextlib
from dataclasses import dataclass, replace

from gpuinfra.models.json_values import stamp
from gpuinfra.models.plan import Candidate, Plan, Price
from gpuinfra.models.resource import Kind
from gpuinfra.models.spec import Spec
from gpuinfra.provision import tags
from gpuinfra.provision.errors import CloudError
from gpuinfra.provision.lifecycle import lease
from gpuinfra.provision.lifecycle.terms import terms_of
from gpuinfra.provision.market import price_list
from gpuinfra.provision.market.port import Prices
from gpuinfra.provision.market.preflight import Preflight, no_candidate, preflight
from gpuinfra.provision.market.price_list import address_per_month, disk_per_month
from gpuinfra.provision.observed import Observed
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.plan import creation_failed, make_plan
from gpuinfra.provision.plan_input import HostKey, PlanInput
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
        checked = preflight(task.market, self.spec, task.deadline, task.progress, held)
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
        return replace(plan, rejected=checked.rejected if checked else ())

    def _input(
        self, candidate: Candidate, observed: Observed, checked: Preflight | None, price_per_hour: float | None = None
    ) -> PlanInput:
        image, machine = checked.images.get(candidate.region) if checked else None, observed.part(Kind.VM)
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
        per_hour = price_list.shipped_prices().price(candidate.size, candidate.region, spot=spot)
        return price if per_hour is None else replace(price, per_hour=per_hour, list_of=price_list.DATE)


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
