"""Reap a subscription: list, decide and act in parallel. A failure with one machine does not affect the others."""

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from itertools import groupby
from typing import Any

from gpuinfra.models.base import format_duration
from gpuinfra.models.plan import Kind
from gpuinfra.models.reap import (
    EndedMachine,
    Orphan,
    ReapAction,
    ReapDecision,
    ReapFailure,
    ReapResult,
    UnrecognisedMachine,
    UntaggedMachine,
)
from gpuinfra.provision import fleet as listing
from gpuinfra.provision import tags
from gpuinfra.provision.cloud import Cloud, Listed
from gpuinfra.provision.down import Teardown
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.lease import is_last_day
from gpuinfra.provision.market import Market, Prices
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.ownership import Owner, machine_of_row, misfit, owner_of
from gpuinfra.provision.power import STOPPED, STOPPED_BUT_BILLED, USABLE
from gpuinfra.provision.power_log import off_since
from gpuinfra.provision.reaping.decide import (
    STOPPED_FOR,
    Rules,
    changed_while_off,
    decide,
    decide_all,
    disputed,
    last_change,
    lookalikes,
    orphans,
    seen,
)
from gpuinfra.provision.reaping.stopper import TROUBLE_SECONDS, Stopper, arm, start
from gpuinfra.provision.remove import remove
from gpuinfra.provision.tags import machine_key, ref_of
from gpuinfra.provision.task import Journal, Task
from gpuinfra.provision.waiting import Deadline, Progress

# Two pools of this size and eight workers that stop machines: sixteen in all.
WORKERS = 4
ORPHANS = "orphans"


@dataclass
class Reaper:
    """One run of the reaper."""

    cloud: Cloud
    market: Market
    rules: Rules
    progress: Progress
    journal: Callable[[str], Journal]
    deadline: Deadline
    dry_run: bool = False
    has_outputs: Callable[[str, str], bool | None] | None = None
    """Return whether a machine's disk, by name and group, holds unfetched outputs; None if unknown.

    Without this function every disk may be deleted.
    """
    trouble_seconds: float = TROUBLE_SECONDS
    found: ReapResult = field(init=False)
    _stopper: Stopper | None = None
    _others: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.found = ReapResult(self.dry_run, simulated=self.cloud.simulated)

    def reap(self) -> ReapResult:
        """List, decide and act; a dry run only reports. Raise CloudError if the machines cannot be listed."""
        pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="reap")
        try:
            self._reap(pool)
        except BaseException:
            self.cloud.interrupt.set()
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        return self.found

    @property
    def under_way(self) -> list[str]:
        """Names of machines that Azure is still deallocating, although this run no longer waits for them."""
        return [stop.verdict.name for stop in self._pending() if stop.asked_at]

    @property
    def not_begun(self) -> list[str]:
        """Names of machines whose action was not started or not finished."""
        return [*(stop.verdict.name for stop in self._pending() if not stop.asked_at), *self._others]

    def _pending(self) -> Sequence[Any]:
        return self._stopper.pending if self._stopper else ()

    def _task(self, name: str) -> Task:
        return Task(self.cloud, self.market, self.progress, self.journal(name), self.deadline)

    def _reap(self, pool: ThreadPoolExecutor) -> None:
        parts = pool.submit(self._parts)
        rows = self.cloud.fleet.machines()
        if self.rules.deletes:
            # Before `self.rules` is read: if the list fails, nothing may be deleted.
            protected = _protected(rows, parts.result())
            self.rules = replace(self.rules, protected=protected)
        now = self.cloud.now()
        self._find_times_off(pool, rows, now)
        judged = decide_all(rows, self.rules, now)
        if self.rules.deletes and self.has_outputs:
            self._keep_outputs(pool, judged, orphans(parts.result(), rows, self.rules, now), self.has_outputs)
            judged = decide_all(rows, self.rules, now)
        self._report(rows, judged, now)
        if self.dry_run:
            self.found.stopped = [EndedMachine(verdict) for verdict in _those(judged, ReapAction.STOP)]
            self.found.deleted = [EndedMachine(verdict) for verdict in _those(judged, ReapAction.DELETE)]
            self.found.started = _those(judged, ReapAction.START)
            self._sweep(parts, rows, now)
            return
        stops = _those(judged, ReapAction.STOP)
        self._stopper = self._make_stopper(pool.submit(self._prices, stops, rows), parts)
        tasks = [
            pool.submit(self._sweep, parts, rows, now),
            *(pool.submit(self._delete, verdict) for verdict in _those(judged, ReapAction.DELETE)),
            *(pool.submit(self._start, verdict) for verdict in _those(judged, ReapAction.START)),
            *(pool.submit(self._arm, verdict) for verdict in _on_their_last_day(judged, rows, now)),
        ]
        self._stopper.run(stops)
        for task in tasks:
            task.result()
        self._collect(self._stopper)

    def _find_times_off(self, pool: ThreadPoolExecutor, rows: Sequence[dict[str, Any]], now: datetime) -> None:
        """Find out when machines were switched off that Azure has changed since then."""
        machines = changed_while_off(rows, self.rules, now)
        moments = pool.map(lambda each: off_since(self.cloud, each), machines)
        found = {last_change(each): at for each, at in zip(machines, moments, strict=True) if at}
        self.rules = replace(self.rules, off_since=found)

    def _report(self, rows: Sequence[dict[str, Any]], judged: Sequence[ReapDecision], now: datetime) -> None:
        """Report the machines that this run does not change."""
        found, vms = self.found, [machine_of_row(row) for row in rows]
        by_owner = {owner: [vm for vm in vms if owner_of(vm) is owner] for owner in Owner}
        found.machines = len(judged)
        found.untagged = [UntaggedMachine(vm.ref, vm.power) for vm in by_owner[Owner.UNTAGGED]]
        found.unrecognised = [UnrecognisedMachine(vm.ref, vm.power, misfit(vm)) for vm in by_owner[Owner.UNRECOGNISED]]
        option = " --sandbox" if self.cloud.simulated else ""
        others = [vm.body for vm in by_owner[Owner.LOOKALIKE]]
        found.left_alone = [*listing.lookalikes(others), *disputed(rows, self.rules, now, option)]
        found.protected = _those(judged, ReapAction.PROTECTED)
        keeps = _those(judged, ReapAction.KEEP)
        found.kept = [verdict for verdict in keeps if verdict.cause]
        kept = {verdict.ref for verdict in keeps}
        found.notes += [
            f"{vm.ref.name} is {STOPPED_BUT_BILLED}; it is deallocated if this lasts {format_duration(STOPPED_FOR)}"
            for vm in vms
            if vm.power == STOPPED and vm.ref in kept
        ]

    def _keep_outputs(
        self,
        pool: ThreadPoolExecutor,
        judged: Sequence[ReapDecision],
        lost: Sequence[Orphan],
        has_outputs: Callable[[str, str], bool | None],
    ) -> None:
        """Find the disks that must be kept, before any is deleted."""
        all_found: list[ReapDecision | Orphan] = [*judged, *lost]
        going = [each for each in all_found if each.action is ReapAction.DELETE]
        places = sorted({(each.name, each.ref.group) for each in going if each.ref.kind in {Kind.VM, Kind.DISK}})
        found = list(zip(places, pool.map(lambda place: has_outputs(*place), places), strict=True))
        self.rules = replace(
            self.rules,
            unfetched=self.rules.unfetched | {name.casefold() for (name, _), is_there in found if is_there},
            unknown=self.rules.unknown | {name.casefold() for (name, _), is_there in found if is_there is None},
        )

    def _parts(self) -> list[Listed]:
        """Return the resources that may be orphans.

        If they cannot be listed, machines are still stopped, but nothing is deleted, because what is protected is
        unknown.
        """
        try:
            return self.cloud.fleet.parts()
        except CloudError as error:
            if error.fault is Fault.INTERRUPTED:
                raise
            self.found.failed.append(ReapFailure(ORPHANS, "list", error.code, error.message))
            self.rules = replace(self.rules, deletes=False)
            return []

    def _sweep(self, parts: Future[list[Listed]], rows: Sequence[dict[str, Any]], now: datetime) -> None:
        """Find orphans, look at each a second time, and delete them machine by machine."""
        # Machines have their own decisions.
        listed = [part for part in parts.result() if part.ref.kind is not Kind.VM]
        lost = orphans(listed, rows, self.rules, now)
        self.found.left_alone += lookalikes(listed, rows, now)
        pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="sweep")
        try:
            ids = {orphan.ref.id(self.cloud.subscription).casefold() for orphan in lost if _is_interface(orphan)}
            found = [orphan for orphan in pool.map(lambda each: self._second_look(each, ids), lost) if orphan]
            self.found.orphans = found
            if not self.dry_run:
                swept = pool.map(lambda own: self._remove(*own), _by_machine(found))
                self.found.orphans = [orphan for own in swept for orphan in own]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _second_look(self, orphan: Orphan, interfaces: Collection[str]) -> Orphan | None:
        try:
            return seen(orphan, self.cloud.look(orphan.ref), interfaces)
        except CloudError as error:
            if error.fault is Fault.INTERRUPTED:
                raise
            self._fail(orphan.name, "look", error, orphan.cause, orphan.ref.group)
            return replace(orphan, action=ReapAction.KEEP)

    # Act

    def _make_stopper(self, prices: Future[Prices], parts: Future[list[Listed]]) -> Stopper:
        def addresses() -> frozenset[str]:
            listed = (part for part in parts.result() if part.ref.kind is Kind.PUBLIC_IP)
            return frozenset(tags.get(part.tags, tags.NAME).casefold() for part in listed)

        return Stopper(
            cloud=self.cloud,
            rules=self.rules,
            progress=self.progress,
            journal=self.journal,
            deadline=self.deadline,
            addresses=cache(addresses),
            prices=prices.result,
            trouble_seconds=self.trouble_seconds,
        )

    def _collect(self, stopper: Stopper) -> None:
        found = self.found
        found.stopped = sorted(stopper.stopped, key=lambda ended: ended.verdict.name.casefold())
        found.failed = sorted([*found.failed, *stopper.failed], key=lambda failure: failure.name.casefold())
        found.notes += [f"{verdict.name} is left on: it is in order by now" for verdict in stopper.spared]

    def _prices(self, stops: Sequence[ReapDecision], rows: Sequence[dict[str, Any]]) -> Prices:
        """Return prices, requested in parallel so that no machine stays on because of them."""
        if not stops:
            return Prices()
        wanted = {machine_key(stop.ref.group, stop.ref.name) for stop in stops}
        machines = [machine_of_row(row) for row in rows]
        own = [each.size for each in machines if machine_key(each.ref.group, each.ref.name) in wanted]
        return self.market.prices(dict.fromkeys(own))

    def _still(self, verdict: ReapDecision) -> ObservedResource | None:
        """Return the machine if a second look leads to the same decision, else None."""
        machine = self.cloud.look(verdict.ref)
        again = decide(machine, self.rules, self.cloud.now()) if machine else None
        return machine if again and again.action is verdict.action else None

    def _delete(self, verdict: ReapDecision) -> None:
        with self._record_failure(verdict.name, "delete", verdict.cause, verdict.ref.group):
            if self._still(verdict) is None:
                return
            if self.has_outputs and self.has_outputs(verdict.name, verdict.ref.group) is not False:
                raise CloudError(Fault.OTHER, "Changed", "it was used since it was checked; nothing was deleted")
            task, cause = self._task(verdict.name), f"reap: {verdict.cause}"
            receipt = Teardown(verdict.name, verdict.ref.group, task, cause).delete()
            if receipt.is_proof:
                self.found.deleted.append(EndedMachine(verdict, receipt))
            else:
                raise CloudError(Fault.OTHER, "NotAllGone", "; ".join(receipt.left) or "it was not seen gone")

    def _start(self, verdict: ReapDecision) -> None:
        with self._record_failure(verdict.name, "start", verdict.cause, verdict.ref.group):
            machine = self._still(verdict)
            if machine and verdict.until:
                start(self._task(verdict.name), machine, verdict.until)
                self.found.started.append(verdict)

    def _arm(self, verdict: ReapDecision) -> None:
        """Switch Azure's schedule on for the last day of a lease that was too long for it."""
        with self._record_failure(verdict.name, "schedule", verdict.cause, verdict.ref.group):
            machine = self.cloud.look(verdict.ref)
            until = tags.moment(machine.tags, tags.LEASE_UNTIL) if machine else None
            if machine and until and is_last_day(machine.tags, self.cloud.now()):
                task = self._task(verdict.name).within(TROUBLE_SECONDS)
                if task.retry(lambda: arm(task, machine, until), TROUBLE_SECONDS):
                    self.found.notes.append(
                        f"{verdict.name}: Azure's daily schedule is on for the last day of its lease"
                    )

    def _remove(self, name: str, own: Sequence[Orphan]) -> Sequence[Orphan]:
        """Delete the orphans of one machine, NICs before their public IPs, and return all with the result."""
        going = [orphan for orphan in own if orphan.action is ReapAction.DELETE]
        if not going:
            return own
        with self._record_failure(name, "delete", going[0].cause, going[0].ref.group):
            groups = {orphan.ref.group.casefold(): orphan.ref.group for orphan in going}.values()
            if not any(self.cloud.look(ref_of(Kind.VM, group, name)) for group in groups):
                refs = [orphan.ref for orphan in going]
                remove(self._task(name), refs)
                return [replace(orphan, removed=orphan in going) for orphan in own]
        return own

    @contextmanager
    def _record_failure(self, name: str, action: str, cause: str, group: str) -> Iterator[None]:
        """Record a failure in this block in the result instead of raising it, so that the others continue."""
        self._others.append(name)
        try:
            yield
        except CloudError as error:
            if error.fault is Fault.INTERRUPTED:
                raise  # what was interrupted stays in `not_begun`
            self._fail(name, action, error, cause, group)
        except Exception as error:  # noqa: BLE001, RUF100 one unexpected error must not stop the others
            self._fail(name, action, error, cause, group)
        self._others.remove(name)

    def _fail(self, name: str, action: str, error: Exception, cause: str, group: str) -> None:
        code, message = (
            (error.code, error.message) if isinstance(error, CloudError) else (type(error).__name__, str(error))
        )
        self.found.failed.append(ReapFailure(name, action, code, message, cause, group))


def _protected(rows: Sequence[dict[str, Any]], parts: Sequence[Listed]) -> frozenset[str]:
    """Return the case-folded names of machines with a protected resource."""
    marked = (*(row.get("tags") or {} for row in rows), *(part.tags for part in parts))
    return frozenset(tags.get(marks, tags.NAME).casefold() for marks in marked if tags.is_protected(marks)) - {""}


def _those(judged: Sequence[ReapDecision], action: ReapAction) -> list[ReapDecision]:
    return [verdict for verdict in judged if verdict.action is action]


def _on_their_last_day(
    judged: Sequence[ReapDecision], rows: Sequence[dict[str, Any]], now: datetime
) -> Iterator[ReapDecision]:
    kept = {verdict.ref: verdict for verdict in _those(judged, ReapAction.KEEP)}
    for machine in map(machine_of_row, rows):
        if machine.ref in kept and machine.power in USABLE and is_last_day(machine.tags, now):
            yield kept[machine.ref]


def _is_interface(orphan: Orphan) -> bool:
    return orphan.ref.kind is Kind.NIC and orphan.action is ReapAction.DELETE


def _by_machine(lost: Sequence[Orphan]) -> Iterator[tuple[str, list[Orphan]]]:
    for _, own in groupby(lost, key=lambda orphan: orphan.name.casefold()):
        found = list(own)
        yield found[0].name, found
