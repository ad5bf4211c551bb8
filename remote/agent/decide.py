"""Decide whether the machine goes off now, from the current state alone: no clock, no files, no network.

A missed decision does not matter, because the next one needs only `Memory`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpuinfra.remote.agent.terms import Terms, stamp
from gpuinfra.remote.run_folder import COST_CAP, ENDS, EVICTED, IDLE, LEASE_OVER

# The machine goes off because its run is over; no job is stopped for it.
FINISHED = "job finished"

BUSY_PERCENT = 5
WARN_SECONDS = 300.0
# A connected client sends a heartbeat every ten seconds.
HEARTBEAT_SECONDS = 45.0
# This long before the end, jobs are asked to stop.
STOP_SECONDS = 30.0


@dataclass(frozen=True)
class Run:
    """One run, from its folder. Ages use the guest's clock."""

    id: str
    alive: bool = False
    """Whether its job runs."""
    container: bool = False
    after_run: str | None = None
    heartbeat_age: float | None = None
    """Seconds since the last heartbeat of a client; None if there was none."""
    detached: bool = False
    ended_age: float | None = None
    """Seconds since its job ended; None if it runs or never began."""
    of_this_boot: bool = True
    failed: bool = False
    """Whether its job ended by itself, with an exit code other than 0."""
    keep_on_failure: float | None = None
    """For how many of Azure's seconds the machine stays on after a failed job."""

    @property
    def has_client(self) -> bool:
        """Return whether its client is connected. After a clock change, the last heartbeat may be in the future.

        A client that will detach says so from the beginning, but is connected until the job has begun.
        """
        if self.heartbeat_age is None or abs(self.heartbeat_age) >= HEARTBEAT_SECONDS:
            return False
        return not self.detached or not (self.alive or self.ended_age is not None)

    @property
    def needs_machine(self) -> bool:
        """Return whether its job runs, or a client is connected for it."""
        return self.alive or self.has_client

    @property
    def ends_machine(self) -> bool:
        """Return whether the machine goes off after this run."""
        return self.of_this_boot and self.after_run in ENDS

    def held_until(self, now: float, rate: float) -> float | None:
        """Return the whole minute until which the machine stays on for a look at this run; None if it does not."""
        if self.alive or not (
            self.failed and self.ends_machine and self.keep_on_failure and self.ended_age is not None
        ):
            return None
        # After a clock change, the end may be in the future.
        left = self.keep_on_failure - max(0.0, self.ended_age) * rate
        until = -(-(now + left) // 60) * 60
        return until if until > now else None

    @property
    def seconds_to_finish(self) -> float | None:
        """Return the seconds until the machine may go off, or None while the job runs or other rules decide."""
        return None if self.alive or not self.ends_machine or self.heartbeat_age is None else self.seconds_to_wait

    @property
    def seconds_to_wait(self) -> float:
        """Return how long a client may still reconnect, after its last heartbeat and the end of the job."""
        ages = (self.heartbeat_age, self.ended_age)
        return max(0.0 if age is None else _rest_of_window(age) for age in ages)


def _rest_of_window(age: float) -> float:
    """Return for how many seconds a sign of this age still counts. After a clock change, it may be in the future."""
    return 0.0 if abs(age) >= HEARTBEAT_SECONDS else HEARTBEAT_SECONDS - age


@dataclass(frozen=True)
class Facts:
    """All inputs of a decision."""

    now: float
    power_on: float
    terms: Terms
    lease_until: float | None = None
    on_since: float | None = None
    hold: tuple[str, float] | None = None
    """The failed run for which a client keeps the machine on, and until when, from a tag."""
    runs: tuple[Run, ...] = ()
    sessions: int = 0
    gpu: int | None = None
    """Utilization of the busiest GPU in percent; None if unknown."""
    notice: str | None = None
    """The ID of the event with which Azure announces the eviction of this spot VM."""
    rate: float = 1.0
    """Azure's seconds per second of the guest."""

    @property
    def needed(self) -> bool:
        """Return whether a job runs, or a client is connected for one."""
        return any(run.needs_machine for run in self.runs)

    @property
    def is_held_by_lease(self) -> bool:
        """Return whether a client made the lease the time for a look at a failed job. It ends with the lease alone."""
        return self.hold is not None and self.hold[1] == self.lease_until and self.now < self.hold[1]

    @property
    def held(self) -> tuple[str, float] | None:
        """Return the failed run for which the machine stays on, and until when; None without one."""
        if self.is_held_by_lease:
            return self.hold
        found = [(until, run.id) for run in self.runs if (until := run.held_until(self.now, self.rate)) is not None]
        if not found:
            return None
        until, run = max(found)
        return run, until

    @property
    def shows_life(self) -> bool:
        """Return whether something needs the machine right now."""
        return bool(self.sessions) or (self.gpu or 0) >= BUSY_PERCENT or self.needed


@dataclass(frozen=True)
class Memory:
    """What one decision passes to the next."""

    idle_since: float | None = None
    warned: tuple[tuple[str, float], ...] = ()
    begun: float | None = None
    """The end of the lease or cost cap for which jobs were asked to end. It still applies after they have ended."""


@dataclass(frozen=True)
class Decision:
    """What to do now."""

    until: float
    limit: str
    """What ends the machine at that time: its lease or its cost cap."""
    cause: str | None
    """Why it ends now; None while it stays on."""
    detail: str
    warnings: tuple[tuple[str, float], ...]
    is_warning: bool
    memory: Memory
    idle_until: float | None
    ends_with: tuple[str, ...] = ()
    """Runs that need the machine now, if it goes off after the last of them."""
    finished_until: float | None = None
    """When the machine goes off because these runs have ended; None while something needs it."""
    held: tuple[str, float] | None = None
    """See `Facts.held`."""


def decide(facts: Facts, memory: Memory) -> Decision:
    """Return whether the machine goes off now and why, and until when it may be on."""
    until, limit = end_of(facts)
    idle_since = idle_from(facts, memory)
    idle_until = None if idle_since is None else idle_since + facts.terms.idle
    held = facts.held
    if idle_until is not None and held:
        idle_until = max(idle_until, held[1])
    cause, detail = _cause(facts, until, limit, idle_until, memory.begun)
    near = [] if cause else list(_near(facts, until, limit, idle_until))
    warnings = tuple(each for each in near if each not in memory.warned)
    begun = until if cause in {LEASE_OVER, COST_CAP} else None
    # After an end was moved, warn again when it is near.
    next_memory = Memory(idle_since, tuple(near) if cause is None else memory.warned, begun)
    needing = tuple(run.id for run in facts.runs if run.needs_machine)
    ends_with = needing if any(run.ends_machine for run in facts.runs) else ()
    finish = _finish(facts)
    finished_until = finish[0] if finish else None
    return Decision(
        until, limit, cause, detail, warnings, bool(near), next_memory, idle_until, ends_with, finished_until, held
    )


def end_of(facts: Facts) -> tuple[float, str]:
    """Return when the machine goes off at the latest, and why.

    A tag with an end before this power-on belongs to an earlier one: a machine started in the portal gets a new lease,
    and its cost counts from then. The cap ends with a whole minute, as in the tag.
    """
    until, since = facts.power_on + facts.terms.lease, facts.power_on
    if facts.lease_until is not None and facts.lease_until > facts.power_on:
        until = facts.lease_until
        since = min(since, facts.power_on if facts.on_since is None else facts.on_since)
    spent = None if facts.terms.cap is None else (since + facts.terms.cap) // 60 * 60
    if spent is not None and spent <= until:
        return spent, COST_CAP
    return until, LEASE_OVER


def idle_from(facts: Facts, memory: Memory) -> float | None:
    """Return the time of the last activity, or None while the machine is active."""
    if facts.shows_life:
        return None
    before = facts.now if memory.idle_since is None else memory.idle_since
    # A clock that was set back must not extend the wait beyond the window.
    return min(max(before, facts.power_on), facts.now)


def _cause(
    facts: Facts, until: float, limit: str, idle_until: float | None, begun: float | None
) -> tuple[str | None, str]:
    if facts.notice is not None:
        return EVICTED, "Azure evicts this spot machine"
    # Stop jobs a little earlier, so that the machine is not billed beyond the end.
    ahead = STOP_SECONDS if any(run.alive for run in facts.runs) else 0.0
    if facts.now >= until - ahead or begun == until:
        what = "the lease ends" if limit == LEASE_OVER else "the cost cap is reached"
        return limit, f"{what} at {stamp(until)}"
    finish = _finish(facts)
    if finish and facts.now >= finish[0]:
        return FINISHED, f"run {finish[1]} is over and its client is not connected"
    if idle_until is not None and facts.now >= idle_until:
        return IDLE, f"no job, no login and an idle GPU for {facts.terms.idle / 60:.0f} minutes"
    return None, ""


def _finish(facts: Facts) -> tuple[float, str] | None:
    """Return when the machine goes off because a run has ended, and which; None while something needs it."""
    if facts.needed or facts.is_held_by_lease:
        return None
    over = [run for run in facts.runs if run.seconds_to_finish is not None]
    if not over:
        return None
    # The last run to end gets its whole window, even if that of an older one is over.
    wait = max(run.seconds_to_wait for run in facts.runs)
    end = facts.now + wait * facts.rate
    return max(end, facts.held[1]) if facts.held else end, max(over, key=lambda run: run.seconds_to_wait).id


def _near(facts: Facts, until: float, limit: str, idle_until: float | None) -> Iterator[tuple[str, float]]:
    """Yield the ends that are near enough to warn logged-in users."""
    if until - facts.now <= WARN_SECONDS:
        yield limit, until
    if facts.held and not facts.is_held_by_lease and facts.held[1] - facts.now <= WARN_SECONDS:
        yield FINISHED, facts.held[1]
    # A short window must not warn from its start.
    if idle_until is not None and idle_until - facts.now <= min(WARN_SECONDS, facts.terms.idle / 2):
        yield IDLE, idle_until
