"""How long the machine stays on for a look at a failed job (`keepOnFailure`), and what ends it then."""

from dataclasses import replace
from typing import Any

import pytest

from gpuinfra.remote.agent.decide import FINISHED, Decision, Facts, Memory, Run, decide
from gpuinfra.remote.agent.terms import Terms, read_hold
from gpuinfra.remote.run_folder import COST_CAP, LEASE_OVER
from tests.unit.remote.agent.world import HOUR, MINUTE, ON, World, make_home, make_run

IDLE_SECONDS = 5 * MINUTE
LOOK = 30 * MINUTE


def failed_run(seconds_ago: float, **changes: Any) -> Run:
    """A run whose job failed, and whose client is gone."""
    values = {"heartbeat_age": 9000.0, "ended_age": seconds_ago, "failed": True, "keep_on_failure": LOOK}
    return Run(**{"id": "r1", "after_run": "deallocate", **values, **changes})


def decided(after: float, *runs: Run, **changes: Any) -> Decision:
    """The decision on a machine that is idle for long."""
    values = {"now": ON + after, "power_on": ON, "terms": Terms(4 * HOUR, IDLE_SECONDS), "runs": runs}
    return decide(Facts(**{**values, **changes}), Memory(idle_since=ON))


def test_machine_stays_on_for_a_look_at_a_failed_job_although_it_is_idle() -> None:
    after = HOUR + 10 * MINUTE
    decision = decided(after, failed_run(10 * MINUTE))
    assert (decision.cause, decision.held) == (None, ("r1", ON + HOUR + LOOK))
    assert decision.finished_until == decision.idle_until == ON + HOUR + LOOK
    assert decided(HOUR + LOOK - 1, failed_run(LOOK - 1)).cause is None
    ended = decided(HOUR + LOOK, failed_run(LOOK))
    assert (ended.cause, ended.held) == (FINISHED, None)


@pytest.mark.parametrize(
    "changes",
    [
        {"failed": False},
        {"keep_on_failure": None},
        {"of_this_boot": False},
        {"after_run": "keep"},
        {"ended_age": None},
    ],
    ids=str,
)
def test_no_other_end_keeps_the_machine_on(changes: dict[str, Any]) -> None:
    decision = decided(HOUR, replace(failed_run(60.0), **changes))
    assert decision.held is None
    assert decision.cause is not None


def test_look_never_exceeds_lease_and_cost_cap() -> None:
    run = failed_run(10 * MINUTE)
    assert decided(HOUR, run, lease_until=ON + HOUR).cause == LEASE_OVER
    capped = Terms(4 * HOUR, IDLE_SECONDS, cap=HOUR)
    assert decided(HOUR, run, terms=capped).cause == COST_CAP


def test_end_of_the_look_does_not_move_with_the_clocks() -> None:
    # Azure's clock runs five times as fast as the guest's, by which the age counts.
    assert decided(HOUR, failed_run(2 * MINUTE), rate=5.0).held == ("r1", ON + HOUR + 20 * MINUTE)
    # A guest's clock that was set back makes the look no longer than it was asked for.
    assert decided(HOUR, failed_run(-9000.0)).held == ("r1", ON + HOUR + LOOK)


def test_lease_alone_ends_a_look_that_a_client_wrote_into_the_tags() -> None:
    held = {"lease_until": ON + 2 * HOUR, "hold": ("r1", ON + 2 * HOUR)}
    # Without the client's last word, the folder still says that the machine goes off after the run.
    decision = decided(HOUR + 50 * MINUTE, failed_run(50 * MINUTE), **held)
    assert (decision.cause, decision.finished_until) == (None, None)
    assert decision.held == ("r1", ON + 2 * HOUR)
    assert decided(2 * HOUR, failed_run(HOUR), **held).cause == LEASE_OVER
    # Another command changed the lease, so the look is over and the usual rules apply.
    assert decided(HOUR, **{**held, "lease_until": ON + 3 * HOUR}).cause is not None


def test_users_are_warned_before_the_look_ends() -> None:
    assert not decided(HOUR, failed_run(LOOK - 6 * MINUTE)).is_warning
    assert (FINISHED, ON + HOUR + 4 * MINUTE) in decided(HOUR, failed_run(LOOK - 4 * MINUTE)).warnings


@pytest.mark.parametrize(
    ("tag", "found"),
    [
        ("failed-job r1 2027-01-15T08:00:00Z", ("r1", ON)),
        ("job r1 2027-01-15T08:00:00Z", None),
        ("failed-job r1", None),
        ("failed-job r1 soon", None),
        ("", None),
    ],
)
def test_tag_of_a_look(tag: str, found: tuple[str, float] | None) -> None:
    assert read_hold(tag) == found


@pytest.fixture
def world(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("state", "is_held"),
    [
        ({"how": "exited", "exitCode": 3}, True),
        ({"how": "out of memory", "exitCode": 137}, True),
        ({"how": "exited", "exitCode": 0}, False),
        # A container that was stopped from outside, as `gpuinfra cancel` does it.
        ({"how": "exited", "exitCode": 143, "kind": "container"}, False),
        ({"how": "cancelled", "exitCode": 143}, False),
        ({"how": "timed out", "exitCode": 143}, False),
        ({"how": "lost", "exitCode": None}, False),
    ],
    ids=lambda each: each["how"] if isinstance(each, dict) else "",
)
def test_agent_reads_how_a_job_ended(world: World, state: dict[str, Any], is_held: bool) -> None:
    home = make_home(world.folder / "home")
    now = world.agent._runs._booted + 10.0
    heartbeat = {"afterRun": "deallocate", "detached": True, "keepOnFailure": LOOK}
    make_run(home, "r1", state={"kind": "process", "started": now, "ended": now, **state}, attended=heartbeat)
    shown = world.tick()
    assert (shown.held_for, shown.held_until is not None) == (("r1", True) if is_held else (None, False))
