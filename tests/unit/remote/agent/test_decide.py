"""When the guest agent decides that the machine goes off, and why."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from gpuinfra.remote.agent.decide import FINISHED, Facts, Memory, Run, decide
from gpuinfra.remote.agent.terms import Terms
from gpuinfra.remote.run_folder import COST_CAP, EVICTED, IDLE, LEASE_OVER
from tests.unit.remote.agent.world import HOUR, MINUTE, ON

TERMS = Terms(lease=4 * HOUR, idle=20 * MINUTE)


def facts(after: float = 0.0, **changes: Any) -> Facts:
    """Facts this many seconds after power-on, with a login unless other activity is given."""
    return Facts(**{"now": ON + after, "power_on": ON, "terms": TERMS, "sessions": 1, **changes})


def finished_run(**changes: Any) -> Run:
    values = {"id": "r1", "after_run": "deallocate", "heartbeat_age": 46.0, "ended_age": 60.0}
    return Run(**{**values, **changes})


@pytest.mark.parametrize(
    ("given", "until", "limit"),
    [
        ({}, ON + 4 * HOUR, LEASE_OVER),
        ({"lease_until": ON + HOUR}, ON + HOUR, LEASE_OVER),
        ({"lease_until": ON + 9 * HOUR}, ON + 9 * HOUR, LEASE_OVER),
        # From an earlier power-on: a machine started in the portal gets a lease too.
        ({"lease_until": ON}, ON + 4 * HOUR, LEASE_OVER),
        ({"lease_until": ON - 1, "on_since": ON - 50 * HOUR}, ON + 4 * HOUR, LEASE_OVER),
        ({"terms": Terms(4 * HOUR, HOUR, cap=2 * HOUR)}, ON + 2 * HOUR, COST_CAP),
        ({"terms": Terms(4 * HOUR, HOUR, cap=4 * HOUR)}, ON + 4 * HOUR, COST_CAP),
        ({"terms": Terms(4 * HOUR, HOUR, cap=4 * HOUR), "lease_until": ON + 3 * HOUR}, ON + 3 * HOUR, LEASE_OVER),
        # The tag has whole minutes: a cap that ends within the tag's minute decided it.
        (
            {"terms": Terms(4 * HOUR, HOUR, 2 * HOUR + 59), "lease_until": ON + 2 * HOUR, "on_since": ON},
            ON + 2 * HOUR,
            COST_CAP,
        ),
        # The cap counts from the start of billing, also over a reboot, but not from an earlier power-on.
        (
            {"terms": Terms(4 * HOUR, HOUR, 2 * HOUR), "lease_until": ON + 3 * HOUR, "on_since": ON - HOUR},
            ON + HOUR,
            COST_CAP,
        ),
        (
            {"terms": Terms(4 * HOUR, HOUR, 2 * HOUR), "lease_until": ON - HOUR, "on_since": ON - 50 * HOUR},
            ON + 2 * HOUR,
            COST_CAP,
        ),
        # Any user can write a tag: one from the future does not extend the time.
        (
            {"terms": Terms(4 * HOUR, HOUR, 2 * HOUR), "lease_until": ON + 9 * HOUR, "on_since": ON + 8 * HOUR},
            ON + 2 * HOUR,
            COST_CAP,
        ),
    ],
)
def test_earliest_limit_ends_the_machine(given: Mapping[str, Any], until: float, limit: str) -> None:
    for after, cause in ((0.0, None), (until - ON - 0.5, None), (until - ON, limit), (until - ON + 9 * HOUR, limit)):
        decision = decide(facts(after, **given), Memory())
        assert (decision.until, decision.limit, decision.cause) == (until, limit, cause)


def test_jobs_are_stopped_before_the_shutdown_schedule_fires() -> None:
    job = {"runs": (Run("r1", alive=True),), "lease_until": ON + HOUR}
    assert decide(facts(HOUR - 31, **job), Memory()).cause is None
    begun = decide(facts(HOUR - 30, **job), Memory())
    assert begun.cause == LEASE_OVER
    # The deallocation continues after the job has ended, unless the lease was extended.
    assert decide(facts(HOUR - 29, lease_until=ON + HOUR), begun.memory).cause == LEASE_OVER
    assert decide(facts(HOUR - 29, lease_until=ON + 2 * HOUR), begun.memory).cause is None
    assert decide(facts(HOUR - 29, lease_until=ON + HOUR), Memory()).cause is None


@pytest.mark.parametrize(
    ("given", "is_idle"),
    [
        ({"sessions": 0}, True),
        ({"sessions": 1}, False),
        ({"sessions": 0, "gpu": 4}, True),
        ({"sessions": 0, "gpu": 5}, False),
        ({"sessions": 0, "gpu": None}, True),
        ({"sessions": 0, "runs": (Run("r1", alive=True),)}, False),
        ({"sessions": 0, "runs": (Run("r1"), Run("r2", ended_age=9.0))}, True),
    ],
)
def test_idle_machine_goes_off_after_its_window(given: Mapping[str, Any], is_idle: bool) -> None:
    memory = Memory()
    for second in range(0, 21 * 60, 5):
        decision = decide(facts(second, **given), memory)
        memory = decision.memory
        assert decision.cause == (IDLE if is_idle and second >= 20 * MINUTE else None), second
    assert (decision.memory.idle_since == ON) == is_idle


def test_activity_restarts_the_idle_window() -> None:
    memory = Memory(idle_since=ON)
    assert decide(facts(20 * MINUTE, sessions=0), memory).cause == IDLE
    decision = decide(facts(20 * MINUTE, sessions=0, gpu=80), memory)
    assert decision.cause is None
    assert decision.memory.idle_since is None
    after = decide(facts(20 * MINUTE + 5, sessions=0), decision.memory)
    assert (after.cause, after.idle_until) == (None, ON + 40 * MINUTE + 5)


def test_clock_change_neither_ends_nor_prolongs_the_idle_window() -> None:
    # Nothing is known about an unobserved window: the first look begins it.
    assert decide(facts(3 * HOUR, sessions=0), Memory()).cause is None
    back = decide(facts(5.0, sessions=0), Memory(idle_since=ON + 2 * HOUR))
    assert back.idle_until == ON + 5.0 + 20 * MINUTE
    # Nor does it count from before power-on.
    assert decide(facts(5.0, sessions=0), Memory(idle_since=ON - HOUR)).idle_until == ON + 20 * MINUTE


def test_heartbeat_of_a_preparing_client_is_activity() -> None:
    idle = Memory(idle_since=ON)
    for run in (Run("r1", heartbeat_age=3.0), Run("r1", heartbeat_age=3.0, detached=True)):
        assert decide(facts(HOUR, sessions=0, runs=(run,)), idle).cause is None
    assert decide(facts(HOUR, sessions=0, runs=(Run("r1", heartbeat_age=46.0),)), idle).cause == IDLE


FINISHED_RUNS: list[tuple[tuple[Run, ...], bool]] = [
    ((finished_run(),), True),
    ((finished_run(after_run="delete"),), True),
    ((finished_run(after_run="keep"),), False),
    ((finished_run(after_run=None),), False),
    ((finished_run(heartbeat_age=44.0),), False),
    # Its client was lost before the job began.
    ((finished_run(ended_age=None),), True),
    ((finished_run(ended_age=None, heartbeat_age=10.0),), False),
    ((finished_run(alive=True, ended_age=None),), False),
    ((finished_run(of_this_boot=False),), False),
    # A detached client is not waited for; the job's end counts.
    ((finished_run(detached=True, heartbeat_age=9000.0, ended_age=44.0),), False),
    ((finished_run(detached=True, heartbeat_age=46.0, ended_age=45.0),), True),
    # A client followed it after the detach and left, so it no longer counts as detached.
    ((finished_run(heartbeat_age=9000.0, ended_age=44.0),), False),
    ((finished_run(heartbeat_age=9000.0, ended_age=45.0),), True),
    # A client has returned, and fetches its outputs.
    ((finished_run(detached=True, heartbeat_age=1.0, ended_age=900.0),), False),
    ((finished_run(detached=True, heartbeat_age=9000.0, ended_age=None, alive=True),), False),
    # Other runs are active.
    ((finished_run(), Run("r2", alive=True)), False),
    ((finished_run(), Run("r2", heartbeat_age=3.0)), False),
    # A detached job has just ended. An older finished run does not shorten the wait for its client.
    ((finished_run(), Run("r2", heartbeat_age=3.0, detached=True, ended_age=3.0)), False),
    ((finished_run(), Run("r2", heartbeat_age=9000.0, detached=True, ended_age=3.0)), False),
    ((finished_run(), finished_run(id="r2", heartbeat_age=9000.0, detached=True, ended_age=3.0)), False),
    ((finished_run(), finished_run(id="r2", heartbeat_age=9000.0, detached=True, ended_age=45.0)), True),
    ((finished_run(), Run("r2", heartbeat_age=9000.0, ended_age=3.0)), False),
    # A client that will detach is active while it prepares the job: it sends files and builds an environment.
    ((finished_run(), Run("r2", heartbeat_age=3.0, detached=True)), False),
    ((finished_run(), Run("r2", heartbeat_age=300.0, detached=True)), True),
    ((finished_run(), Run("r2", heartbeat_age=300.0)), True),
    # A clock that was set back leaves a heartbeat in the future: its client would have sent another since.
    ((finished_run(heartbeat_age=-3600.0),), True),
    ((finished_run(heartbeat_age=-3.0),), False),
]


@pytest.mark.parametrize(("runs", "goes_off"), FINISHED_RUNS)
def test_forecast_after_a_finished_run_holds(runs: tuple[Run, ...], goes_off: bool) -> None:
    decision = decide(facts(HOUR, runs=runs), Memory())
    if any(run.needs_machine for run in runs):
        assert decision.finished_until is None
        assert set(decision.ends_with) <= {run.id for run in runs if run.needs_machine}
        return
    assert goes_off == (decision.finished_until is not None and decision.finished_until <= ON + HOUR)
    if decision.finished_until is not None and not goes_off:
        later = decision.finished_until - (ON + HOUR)
        aged = tuple(
            replace(
                run,
                heartbeat_age=None if run.heartbeat_age is None else run.heartbeat_age + later,
                ended_age=None if run.ended_age is None else run.ended_age + later,
            )
            for run in runs
        )
        assert decide(facts(HOUR + later, runs=aged), Memory()).cause == FINISHED


@pytest.mark.parametrize(("runs", "goes_off"), FINISHED_RUNS)
def test_machine_goes_off_after_its_finished_run(runs: tuple[Run, ...], goes_off: bool) -> None:
    assert decide(facts(HOUR, runs=runs), Memory()).cause == (FINISHED if goes_off else None)


def test_eviction_takes_precedence() -> None:
    decision = decide(facts(9 * HOUR, runs=(finished_run(),), notice="E1"), Memory())
    assert decision.cause == EVICTED


def test_warning_is_sent_once_and_again_after_a_change() -> None:
    lease = {"lease_until": ON + HOUR}
    early = decide(facts(HOUR - 301, **lease), Memory())
    assert (early.warnings, early.is_warning) == ((), False)
    first = decide(facts(HOUR - 300, **lease), early.memory)
    assert (first.warnings, first.is_warning) == (((LEASE_OVER, ON + HOUR),), True)
    second = decide(facts(HOUR - 295, **lease), first.memory)
    assert (second.warnings, second.is_warning) == ((), True)
    moved = {"lease_until": ON + HOUR + 60}
    assert decide(facts(HOUR - 200, **moved), second.memory).warnings == ((LEASE_OVER, ON + HOUR + 60),)
    # A change away and back also warns again.
    remote = decide(facts(HOUR - 290, lease_until=ON + 3 * HOUR), second.memory)
    assert not remote.is_warning
    assert decide(facts(HOUR - 285, **lease), remote.memory).warnings == ((LEASE_OVER, ON + HOUR),)


def test_short_window_warns_from_its_half() -> None:
    terms = Terms(4 * HOUR, idle=4 * MINUTE)
    memory = Memory(idle_since=ON)
    assert not decide(facts(MINUTE, sessions=0, terms=terms), memory).is_warning
    assert decide(facts(2 * MINUTE, sessions=0, terms=terms), memory).warnings == ((IDLE, ON + 4 * MINUTE),)
