"""Start machines, or stop many in parallel: request each deallocation, then look until Azure shows the VM as off.

No worker waits for an operation. So a slow machine does not delay the others, and a few workers suffice for hundreds.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime

from gpuinfra.models.json_values import stamp
from gpuinfra.models.plan import Kind, Power, Resource
from gpuinfra.models.reap import EndedMachine, ReapAction, ReapDecision, ReapFailure
from gpuinfra.models.receipt import OffProof, Receipt, Residue, next_morning
from gpuinfra.provision import tags
from gpuinfra.provision.cloud import Cloud
from gpuinfra.provision.errors import CloudError, Fault, reason_of
from gpuinfra.provision.market import Prices, address_per_month, disk_per_month
from gpuinfra.provision.observed_resource import DELETING, ObservedResource
from gpuinfra.provision.power import BILLED, DEALLOCATED, RUNNING
from gpuinfra.provision.reaping.decide import Rules, decide
from gpuinfra.provision.resources.common import with_others
from gpuinfra.provision.resources.shutdown_schedule import schedule_update
from gpuinfra.provision.tags import name_of, ref_of
from gpuinfra.provision.task import Journal, Task
from gpuinfra.provision.waiting import Deadline, Progress

WORKERS = 8
DEALLOCATING = "deallocating"
# Temporary errors are retried for this long. The next run of the reaper tries again anyway.
TROUBLE_SECONDS = 60.0
OFF_SECONDS = 900.0
# An operation that Azure accepted and that failed is requested again.
MAX_ATTEMPTS = 4
_PASSES = frozenset({Fault.BUSY, Fault.UNREACHABLE, Fault.THROTTLED})
FIRST_PAUSE, GROWTH = 0.5, 1.4
# Azure allows 25 requests per second, so many machines are looked at less often.
MAX_PAUSE, LOOKS_A_SECOND = 3.0, 8.0


@dataclass
class Stop:
    """The stop of one machine."""

    verdict: ReapDecision
    deadline: Deadline
    asked_at: datetime | None = None
    """When Azure accepted the request, in Azure's time: billing ends then."""
    machine: ObservedResource | None = None
    """The VM at the time of the request."""
    attempts: int = 0
    trouble: Deadline | None = None

    @property
    def step(self) -> str:
        """The step's name in the progress display."""
        return str(self.verdict.ref)


@dataclass
class Stopper:
    """The stop of all machines that should be off."""

    cloud: Cloud
    rules: Rules
    progress: Progress
    journal: Callable[[str], Journal]
    deadline: Deadline
    addresses: Callable[[], frozenset[str]]
    """Case-folded names of machines that have one of our public IPs."""
    prices: Callable[[], Prices]
    trouble_seconds: float = TROUBLE_SECONDS
    stopped: list[EndedMachine] = field(default_factory=list)
    failed: list[ReapFailure] = field(default_factory=list)
    spared: list[ReapDecision] = field(default_factory=list)
    """Machines that may stay on after a second look."""
    pending: list[Stop] = field(default_factory=list)

    def run(self, verdicts: Sequence[ReapDecision]) -> None:
        """Run until each machine is off, spared, or given up."""
        self.pending = [Stop(verdict, self.deadline.within(OFF_SECONDS)) for verdict in verdicts]
        pause = FIRST_PAUSE
        pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="stop")
        try:
            while self.pending:
                asked = sum(stop.attempts for stop in self.pending)
                self._round(pool)
                if sum(stop.attempts for stop in self.pending) > asked:
                    pause = FIRST_PAUSE  # a new request may succeed quickly
                if self.pending:
                    self.cloud.interrupt.sleep(pause)
                pause = min(max(MAX_PAUSE, len(self.pending) / LOOKS_A_SECOND), pause * GROWTH)
        finally:
            # Do not wait: after Ctrl-C a missing response must not block the user.
            pool.shutdown(wait=False, cancel_futures=True)

    def _round(self, pool: ThreadPoolExecutor) -> None:
        going: list[tuple[Stop, Future[bool]]] = [(stop, pool.submit(self._over, stop)) for stop in self.pending]
        for stop, future in going:
            if future.result():
                self.pending.remove(stop)

    def _over(self, stop: Stop) -> bool:
        """Do one step, and return whether the machine needs no further step."""
        try:
            over = self._look(stop) if stop.asked_at else self._ask(stop)
            stop.trouble = None
        except CloudError as error:
            if error.fault is Fault.INTERRUPTED:
                raise
            return self._troubled(stop, error)
        except Exception as error:  # noqa: BLE001, RUF100 one unexpected error must not keep the others on
            return self._give_up(stop, type(error).__name__, str(error))
        if not over and stop.deadline.is_over:
            return self._give_up(stop, "Timeout", "it was not confirmed off in time")
        return over

    def _troubled(self, stop: Stop, error: CloudError) -> bool:
        if error.fault is Fault.ABSENT and stop.asked_at is None:
            return self._off(stop, OffProof.ABSENT)
        stop.trouble = stop.trouble or stop.deadline.within(self.trouble_seconds)
        if error.fault in _PASSES and not stop.trouble.is_over:
            return False
        return self._give_up(stop, error.code, reason_of(error).removeprefix(f"{error.code}: "))

    def _ask(self, stop: Stop) -> bool:
        """Look again, because the lease may have been renewed since the listing, and request the deallocation."""
        ref = stop.verdict.ref
        machine = self.cloud.look(ref)
        if machine is None:
            return self._off(stop, OffProof.ABSENT)
        found = decide(machine, self.rules, self.cloud.now())
        if found is None or found.action is not ReapAction.STOP:
            self.spared.append(stop.verdict)
            return True
        stop.machine = machine
        if not stop.attempts:
            self.progress.begin(stop.step, DEALLOCATING)
            self.journal(stop.verdict.name).intend(DEALLOCATING, ref)
        if machine.state == DELETING:
            self.cloud.fleet.ask_delete(ref)
        else:
            self.cloud.fleet.ask_off(ref)
        stop.asked_at, stop.attempts = self.cloud.now(), stop.attempts + 1
        return False

    def _look(self, stop: Stop) -> bool:
        machine = self.cloud.look(stop.verdict.ref)
        if machine is None:
            return self._off(stop, OffProof.ABSENT)
        if machine.power == DEALLOCATED:
            return self._off(stop, OffProof.DEALLOCATED)
        has_failed = machine.state == "Failed" and machine.power in BILLED
        if has_failed and stop.machine and machine.changed != stop.machine.changed:
            if stop.attempts >= MAX_ATTEMPTS:
                return self._give_up(stop, machine.failure or "Failed", "Azure took it, and failed")
            stop.asked_at = None
        return False

    def _off(self, stop: Stop, how: OffProof) -> bool:
        self.progress.end(stop.step, "deallocated" if how is OffProof.DEALLOCATED else "gone")
        self.journal(stop.verdict.name).did(DEALLOCATING, stop.verdict.ref)
        self.stopped.append(EndedMachine(stop.verdict, self._receipt(stop, how)))
        return True

    def _give_up(self, stop: Stop, code: str, message: str) -> bool:
        verdict = stop.verdict
        self.progress.fail(stop.step, code)
        self.journal(verdict.name).failed(DEALLOCATING, verdict.ref, code)
        action = "delete" if stop.machine and stop.machine.state == DELETING else "stop"
        self.failed.append(ReapFailure(verdict.name, action, code, message, verdict.cause, verdict.ref.group))
        return True

    def _receipt(self, stop: Stop, how: OffProof) -> Receipt:
        now, machine, verdict = self.cloud.now(), stop.machine, stop.verdict
        gone = Receipt(
            name=verdict.name,
            verified=how,
            at=now,
            group=verdict.ref.group,
            simulated=self.cloud.simulated,
            cause=f"reap: {verdict.cause}",
        )
        if machine is None:
            return gone
        residue = self._residue(verdict.name, machine)
        monthly = {each.kind: each.per_month for each in residue}
        return replace(
            gone,
            created=machine.created,
            disk_per_month=monthly.get("disk"),
            address_per_month=monthly.get(Kind.PUBLIC_IP),
            tags=machine.other_tags,
            region=machine.region,
            size=machine.size,
            spot=machine.is_spot,
            billed_from=tags.moment(machine.tags, tags.ON_SINCE),
            billed_to=(stop.asked_at or now).replace(microsecond=0),
            price_per_hour=self.prices().price(machine.size, machine.region, spot=machine.is_spot),
            residue=tuple(residue) if how is OffProof.DEALLOCATED else (),
            left_on_until=next_morning(now),
        )

    def _residue(self, name: str, machine: ObservedResource) -> list[Residue]:
        """Return what costs money while the machine is off, from its body and the listing, without further requests."""
        disk = machine.os_disk
        sku = str((disk.get("managedDisk") or {}).get("storageAccountType") or "")
        own = str(disk.get("name") or name_of(Kind.DISK, name))
        found = [Residue("disk", own, disk_per_month(int(disk.get("diskSizeGB") or 0), sku))]
        if name.casefold() in self.addresses():
            found.append(Residue(Kind.PUBLIC_IP, name_of(Kind.PUBLIC_IP, name), address_per_month()))
        return found


STARTING = "starting"
START_SECONDS = 600.0
SEEN_SECONDS = 60.0
UNREACHABLE_SECONDS = 60.0


def start(task: Task, machine: ObservedResource, until: datetime) -> None:
    """Set Azure's shutdown schedule, then the tag, then start the VM, and wait until Azure shows it as running."""
    ref, task = machine.ref, task.within(START_SECONDS)
    cloud = task.cloud
    with task.step(ref, STARTING, "started"):
        task.retry(lambda: _set_end(task, machine, until), UNREACHABLE_SECONDS)
        task.retry(lambda: cloud.wait(cloud.act(ref, Power.START), task.deadline), UNREACHABLE_SECONDS)
        if not task.within(SEEN_SECONDS).wait_until(lambda: _is_running(cloud.look(ref))):
            raise CloudError(Fault.TIMEOUT, "Timeout", "started, and Azure does not show it running", subject=str(ref))


def arm(task: Task, machine: ObservedResource, until: datetime) -> bool:
    """Set Azure's shutdown schedule to a lease that ends at `until`, and return whether that changed it."""
    cloud = task.cloud
    schedule = cloud.look(ref_of(Kind.SHUTDOWN_SCHEDULE, machine.ref.group, machine.ref.name))
    wanted = schedule_update(machine, schedule, until, cloud.now(), cloud.subscription)
    if wanted:
        try:
            cloud.wait(cloud.put(wanted), task.deadline)
        except CloudError as error:
            # Without a schedule, only the guest agent stops the machine.
            if schedule or not error.is_lasting or not cloud.allow_self_stop(machine).is_held:
                raise
            return False
    return wanted is not None


def _set_end(task: Task, machine: ObservedResource, until: datetime) -> None:
    cloud = task.cloud
    arm(task, machine, until)
    marks = {tags.ON_SINCE: stamp(cloud.now()) or "", tags.LEASE_UNTIL: stamp(until) or ""}
    cloud.wait(cloud.patch(Resource(machine.ref, {"tags": with_others(machine, marks)})), task.deadline)


def _is_running(machine: ObservedResource | None) -> bool:
    return machine is not None and machine.power == RUNNING
