"""Renew a machine's lease while a client follows a job on it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timedelta
from shlex import quote
from types import TracebackType
from typing import TYPE_CHECKING, Self

from gpuinfra.app.settings import Settings
from gpuinfra.diagnostics import Problem
from gpuinfra.models.plan import MachineId

if TYPE_CHECKING:
    from gpuinfra.app.frontend import Frontend
    from gpuinfra.models.spec import Spec
    from gpuinfra.models.stay import Purpose
    from gpuinfra.provision.cloud import Cloud
    from gpuinfra.provision.lease import Terms
    from gpuinfra.provision.observed_resource import ObservedResource
    from gpuinfra.provision.renew import Renewed

# A child of the program's logger, so that `--verbose` shows it.
logger = logging.getLogger(__name__)

# Most jobs end before the first look, so Azure's SDK is not loaded for them.
FIRST_SECONDS, LONGEST_SECONDS, SHORTEST_SECONDS = 20.0, 60.0, 1.0
LOOKS_A_LEASE = 8
# Longer than any idle time limit.
LONG_AGO = 30 * 24 * 3600.0
CLOUD_SECONDS = 60.0
# Wait this long for a renewal in progress, so that the next client does not stop the machine in the middle of it.
LEAVE_SECONDS = 10.0
# A released lease ends with a whole minute, because Azure's schedule has no seconds.
RELEASED = timedelta(minutes=2)
# The most that a lease gets if only Azure's schedule can stop the machine, roughly.
SCHEDULE_LENGTH = timedelta(days=1)
# Time to fetch the outputs after a detached job has used its whole time limit.
AFTERWARDS = timedelta(minutes=10)


def renewing(
    settings: Settings, machine: Spec | MachineId | None, frontend: Frontend, without_work: Callable[[], float]
) -> AbstractContextManager[object]:
    """Return a context that renews the lease. `without_work` returns for how many seconds the job has done nothing.

    A machine without a spec here has its terms in its tags.
    """
    if machine is None:
        return nullcontext()
    return LeaseRenewal(machine, lambda: _open(settings, machine), frontend.note, without_work)


def renew_for(
    settings: Settings, machine: Spec | MachineId, run: str, seconds: float | None, frontend: Frontend
) -> None:
    """Renew the lease once for a detached run, until its time limit if it has one. A failure only causes a note."""
    from gpuinfra.models.stay import Purpose, Reason

    try:
        cloud = _open(settings, machine)
        vm = _look(cloud, machine)
        if vm is None:
            return
        longest = AFTERWARDS + timedelta(seconds=seconds) if seconds else timedelta()
        to = cloud.now() + max(_terms(vm, machine).lease, longest)
        renewed = _renew(cloud, machine, to, Purpose(Reason.JOB, run))
        if renewed.needs_schedule:
            frontend.note(only_schedule(machine.name, renewed.until))
    except Problem as problem:
        frontend.note(_trouble(machine, problem))


class LeaseRenewal:
    """A background thread that looks at the lease from time to time and renews it if needed."""

    def __init__(
        self,
        machine: Spec | MachineId,
        opener: Callable[[], Cloud],
        note: Callable[[str], None],
        without_work: Callable[[], float],
        wall: Callable[[], float] = time.monotonic,
    ) -> None:
        self._machine, self._opener, self._note, self._without_work = machine, opener, note, without_work
        self._cloud: Cloud | None = None
        self._wall = wall
        self._seen: tuple[datetime, float] | None = None
        self._worked: datetime | None = None
        """When the job last worked, by the cloud's clock."""
        self._said: set[str] = set()
        self._capped_at: datetime | None = None
        self._needs_schedule = False
        self._until: datetime | None = None
        self._is_released = False
        self._over = threading.Event()
        self._changing = threading.Lock()

    def __enter__(self) -> Self:
        threading.Thread(target=self._watch, name="lease", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._changing.acquire(timeout=LEAVE_SECONDS):
            self._changing.release()

    def _watch(self) -> None:
        pause = FIRST_SECONDS
        while not self._over.wait(pause):
            try:
                pause = self.look()
            except Problem as problem:
                pause = LONGEST_SECONDS
                self._say(_trouble(self._machine, problem))
            except Exception as error:  # the job continues: other layers also stop the machine
                pause = LONGEST_SECONDS
                logger.debug("the lease was not looked at", exc_info=True)
                self._say(f"the lease of {self._machine.name} cannot be looked at: {error}")

    def look(self) -> float:
        """Renew the lease if needed, and return the seconds until the next look."""
        cloud = self._cloud = self._cloud or self._opener()
        cloud.grant(CLOUD_SECONDS)
        vm = _look(cloud, self._machine)
        if vm is None:
            return LONGEST_SECONDS
        terms, now = _terms(vm, self._machine), cloud.now()
        pace = self._pace(now)
        self._note_work(now, pace)
        self._keep(cloud, vm, terms, now)
        pause = min(LONGEST_SECONDS, terms.lease.total_seconds() / LOOKS_A_LEASE / pace)
        return max(SHORTEST_SECONDS, pause)

    def _pace(self, now: datetime) -> float:
        """Return how much faster Azure's time passes than local time: the sandbox can accelerate it."""
        before, wall = self._seen, self._wall()
        self._seen = now, wall
        if before is None or wall <= before[1]:
            return 1.0
        # Azure's time has whole seconds.
        pace = (now - before[0]).total_seconds() / (wall - before[1])
        return pace if pace > 1.5 else 1.0

    def _note_work(self, now: datetime, pace: float) -> None:
        worked = now - timedelta(seconds=min(self._without_work(), LONG_AGO) * pace)
        self._worked = max(self._worked or worked, worked)

    def _note_release(self, until: datetime | None, now: datetime) -> None:
        """Note a release, and do not renew after it: a user did that on purpose. A later extension cancels it."""
        before, self._until = self._until, until
        if until and before and until != before:
            self._is_released = until < before and until - now <= RELEASED

    def _keep(self, cloud: Cloud, vm: ObservedResource, terms: Terms, now: datetime) -> None:
        from gpuinfra.provision import tags

        until = tags.moment(vm.tags, tags.LEASE_UNTIL)
        self._note_release(until, now)
        length = min(terms.lease, SCHEDULE_LENGTH) if self._needs_schedule else terms.lease
        if until is None or until - now >= length / 2 or until == self._capped_at:
            return
        if self._is_released:
            self._say(f"someone released the lease of {self._machine.name}: it ends at {until:%H:%M} UTC")
            return
        if self._worked is None or now - self._worked > terms.idle:
            self._say(
                f"the job prints nothing and its GPU is idle: the lease of {self._machine.name} is not renewed, "
                f"and ends at {until:%H:%M} UTC"
            )
            return
        with self._changing:
            if self._over.is_set():
                return
            renewed = _renew(cloud, self._machine)
        logger.debug("the lease of %s now ends at %s", self._machine.name, renewed.until)
        if renewed.old_stop:
            self._say(
                f"Azure's daily schedule may still stop {self._machine.name} at {renewed.old_stop:%H:%M} UTC: "
                "its lease was renewed less than 31 minutes before"
            )
        self._needs_schedule = renewed.needs_schedule
        if renewed.needs_schedule:
            self._say(only_schedule(self._machine.name, renewed.until))
        if renewed.capped:
            self._capped_at = renewed.until
            self._say(
                f"{self._machine.name} is deallocated at {renewed.until:%H:%M} UTC even if a job runs: its cost cap"
            )

    def _say(self, text: str) -> None:
        """Report a text once, because retries may repeat it."""
        if text not in self._said and not self._over.is_set():
            self._said.add(text)
            self._note(text)


def _open(settings: Settings, machine: Spec | MachineId) -> Cloud:
    from gpuinfra.app.access import open_cloud

    return open_cloud(settings, machine.subscription, CLOUD_SECONDS, writes=True)


def _look(cloud: Cloud, machine: Spec | MachineId) -> ObservedResource | None:
    from gpuinfra.app.access import cloud_errors, look_at_vm
    from gpuinfra.provision import tags

    with cloud_errors(f"looking at the lease of {machine.name}"):
        vm = look_at_vm(cloud, machine)
    # Others may have written the target file: it must not keep a machine on that the job does not run on.
    if vm and isinstance(machine, MachineId) and tags.get(vm.tags, tags.HOST_KEY) != machine.host_key:
        return None
    return vm


def _terms(vm: ObservedResource, machine: Spec | MachineId) -> Terms:
    from gpuinfra.models.spec import Lifecycle
    from gpuinfra.provision import tags
    from gpuinfra.provision.lease import terms_from_tag, terms_of

    lifecycle = Lifecycle() if isinstance(machine, MachineId) else machine.lifecycle
    return terms_from_tag(tags.get(vm.tags, tags.TERMS)) or terms_of(lifecycle, None)


def _renew(
    cloud: Cloud, machine: Spec | MachineId, to: datetime | None = None, purpose: Purpose | None = None
) -> Renewed:
    from gpuinfra.provision.renew import renew
    from gpuinfra.provision.waiting import Deadline

    hours = None if isinstance(machine, MachineId) else machine.lifecycle.hours
    deadline = Deadline.after(CLOUD_SECONDS)
    return renew(cloud, machine.name, machine.group_name, to=to, hours=hours, purpose=purpose, deadline=deadline)


def only_schedule(name: str, until: datetime) -> str:
    """Return a sentence that says why a lease ends earlier than requested."""
    return (
        f"the guest agent cannot switch {name} off, and Azure's schedule can do so only within a day: the lease ends "
        f"at {until:%Y-%m-%d %H:%M} UTC; `gpuinfra doctor {quote(name)}` shows what the agent lacks"
    )


def _trouble(machine: Spec | MachineId, problem: Problem) -> str:
    found = problem.diagnostics[0]
    return f"the lease of {machine.name} cannot be renewed: {found.summary}{f', {found.note}' if found.note else ''}"
