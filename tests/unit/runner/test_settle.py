"""How a run without a client is settled from what its machine and Azure answer."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpuinfra.models.run import JobRef, Outputs, RunState
from gpuinfra.runner.job import JobEnd, StopReason
from gpuinfra.runner.remote_runs import UNKNOWN_EXIT_CODE
from gpuinfra.runner.settle import MachinePower, Power, RunAnswer, fetch_help, settle, went_off
from tests.runs import make_run

START = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
OFF_AT = START + timedelta(minutes=30)
NOW = START + timedelta(hours=5)
RUN = make_run(created=START, started=START, machine="my-dsvm", job=JobRef("process", "r1"))
OFF = MachinePower(Power.OFF, (START - timedelta(hours=1), OFF_AT, NOW), NOW)
ON_AGAIN = replace(OFF, power=Power.ON)
EXITED = JobEnd(0, StopReason.EXITED, START + timedelta(minutes=2))
LOST = JobEnd(UNKNOWN_EXIT_CODE, StopReason.LOST, NOW, "its watcher is gone")


@pytest.mark.parametrize(
    ("answer", "machine", "state", "ended", "reason"),
    [
        # The machine answers.
        (RunAnswer(True), None, None, None, ""),
        (RunAnswer(True), OFF, None, None, ""),
        (RunAnswer(True, EXITED), ON_AGAIN, RunState.COMPLETED, EXITED.at, ""),
        (RunAnswer(True, replace(EXITED, exit_code=3)), None, RunState.FAILED, EXITED.at, ""),
        (
            RunAnswer(True, JobEnd(143, StopReason.IDLE, OFF_AT, "no job")),
            None,
            RunState.CANCELLED,
            OFF_AT,
            "idle: no job",
        ),
        (RunAnswer(True, LOST), None, RunState.LOST, NOW, "its watcher is gone"),
        (RunAnswer(True, LOST), ON_AGAIN, RunState.LOST, OFF_AT, "my-dsvm was restarted"),
        (
            RunAnswer(True, replace(LOST, exit_code=143, at=START)),
            ON_AGAIN,
            RunState.LOST,
            START,
            "my-dsvm was restarted",
        ),
        (
            RunAnswer(False),
            ON_AGAIN,
            RunState.LOST,
            OFF_AT,
            "my-dsvm knows nothing of it: it was replaced, or its files were removed",
        ),
        # Only Azure answers.
        (None, None, None, None, ""),
        (None, ON_AGAIN, None, None, ""),
        (None, OFF, RunState.LOST, OFF_AT, "my-dsvm was deallocated at 2026-11-16 12:30Z"),
        (None, MachinePower(Power.OFF), RunState.LOST, None, "my-dsvm was deallocated"),
        (None, MachinePower(Power.OFF, (), NOW), RunState.LOST, NOW, "my-dsvm was deallocated"),
        (None, MachinePower(Power.STOPPED, (), NOW), RunState.LOST, NOW, "my-dsvm was stopped, and is still billed"),
        (
            None,
            replace(OFF, power=Power.DELETED),
            RunState.LOST,
            OFF_AT,
            "my-dsvm was deleted at 2026-11-16 12:30Z; its disk still exists",
        ),
        (None, replace(OFF, power=Power.GONE), RunState.LOST, OFF_AT, "my-dsvm was deleted"),
        (
            None,
            replace(OFF, power=Power.REPLACED),
            RunState.LOST,
            OFF_AT,
            "my-dsvm was deleted, and another VM has its name",
        ),
    ],
)
def test_run_is_settled_from_the_answers(
    answer: RunAnswer | None, machine: MachinePower | None, state: RunState | None, ended: datetime | None, reason: str
) -> None:
    fields = settle(RUN, answer, machine)
    settled = replace(RUN, **fields)
    assert (settled.state, settled.ended, settled.reason) == (state or RunState.RUNNING, ended, reason)
    assert settle(settled, None, OFF) == {} or not settled.state.is_over


@pytest.mark.parametrize("power", [Power.OFF, Power.GONE])
@pytest.mark.parametrize(("offs", "is_latest"), [((OFF_AT,), False), ((), True)])
def test_end_that_the_log_does_not_have_is_an_upper_limit(
    power: Power, offs: tuple[datetime, ...], is_latest: bool
) -> None:
    settled = replace(RUN, **settle(RUN, None, MachinePower(power, offs, NOW)))
    assert settled.is_end_latest is is_latest


def test_settled_run_has_the_time_of_its_job() -> None:
    assert settle(RUN, RunAnswer(True, EXITED), None)["timings"] == {"job": 120.0}


@pytest.mark.parametrize("state", [state for state in RunState if state.is_over])
def test_ended_run_is_not_changed(state: RunState) -> None:
    assert settle(replace(RUN, state=state), RunAnswer(True, EXITED), OFF) == {}


@pytest.mark.parametrize(
    ("changes", "answer", "state"),
    [
        ({"job": None}, None, RunState.LOST),
        ({"job": None, "reason": "cancelled"}, None, RunState.CANCELLED),
        ({}, RunAnswer(False), RunState.LOST),
    ],
)
def test_run_whose_job_never_started_is_lost_or_cancelled(
    changes: dict[str, Any], answer: RunAnswer | None, state: RunState
) -> None:
    run = replace(RUN, state=RunState.PREPARING, started=None, **changes)
    settled = replace(run, **settle(run, answer, None))
    assert (settled.state, settled.job, settled.ended) == (state, None, None)


def test_cancelled_run_is_cancelled_however_its_job_ended() -> None:
    found = settle(replace(RUN, reason="cancelled"), RunAnswer(True, replace(EXITED, exit_code=143)), None)
    assert (found["state"], found["exit_code"]) == (RunState.CANCELLED, 143)


@pytest.mark.parametrize("power", [Power.GONE, Power.REPLACED])
def test_outputs_of_a_deleted_machine_are_not_fetched(power: Power) -> None:
    gone = replace(RUN, **settle(RUN, None, MachinePower(power)))
    assert (gone.machine, gone.is_unfetched) == ("", False)
    assert "not fetched" in gone.warnings[0]


@pytest.mark.parametrize(
    ("changes", "is_off"),
    [
        ({"state": RunState.LOST}, True),
        ({"state": RunState.EVICTED}, True),
        ({"state": RunState.CANCELLED, "reason": "lease over: at noon"}, True),
        ({"state": RunState.CANCELLED, "reason": "cancelled"}, False),
        ({"state": RunState.COMPLETED}, False),
        ({"state": RunState.LOST, "machine": ""}, False),
    ],
)
def test_next_command_after_a_machine_went_off_is_up(changes: dict[str, Any], is_off: bool) -> None:
    run = replace(RUN, **changes)
    assert went_off(run) == is_off
    up = "`gpuinfra up gpu.yaml`, then " if is_off else ""
    assert fetch_help(run, "gpu.yaml") == f"{up}`gpuinfra outputs r1` fetches what it wrote"
    assert run.is_unfetched
    assert not replace(run, outputs=Outputs(complete=True)).is_unfetched


def test_times_of_a_run_are_from_its_machines_clock() -> None:
    """This computer's clock is three minutes ahead, and the job took one minute."""
    began = START - timedelta(minutes=3)
    ended = JobEnd(0, StopReason.EXITED, began + timedelta(minutes=1), started=began)
    found = settle(RUN, RunAnswer(True, ended), None)
    assert (found["started"], found["ended"], found["timings"]["job"]) == (began, ended.at, 60.0)


def test_run_does_not_end_before_it_started() -> None:
    ended = JobEnd(0, StopReason.EXITED, START - timedelta(seconds=1))
    found = settle(RUN, RunAnswer(True, ended), None)
    assert (found["started"], found["ended"], found["timings"]["job"]) == (START, START, 0.0)
