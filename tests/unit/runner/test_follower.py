"""How the follower records a run that its machine stopped or whose machine went off, and the exit code."""

import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gpuinfra.app.access import power_of
from gpuinfra.app.submit import exit_code_of, problems_of
from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem
from gpuinfra.models.plan import Kind
from gpuinfra.models.run import JobRef, Outputs, Run, RunState
from gpuinfra.provision.tags import ref_of
from gpuinfra.runner.errors import SwitchedOff, problem_of
from gpuinfra.runner.follower import JobFollower
from gpuinfra.runner.job import JobEnd, StopReason
from gpuinfra.runner.link import Link
from gpuinfra.runner.log import LogFile
from gpuinfra.runner.record import Record
from gpuinfra.views.job import render_result
from tests.progress import SilentProgress
from tests.runs import make_run
from tests.unit.provision_help import DENIED, made, spec
from tests.unit.runner.test_link import TARGET, Wire

STARTED = datetime(2026, 11, 16, 8, tzinfo=UTC)
RUN = make_run(target="lab", created=STARTED, machine="my-dsvm", started=STARTED, job=JobRef("process", "r1"))
OFF = SwitchedOff("my-dsvm is deallocated")


class Followed(JobFollower):
    """A follower whose job and outputs the test sets."""

    def __init__(self, folder: Path, job: JobEnd | Exception, run: Run = RUN, outputs: Exception | None = None) -> None:
        record = Record(run, folder, None)
        super().__init__(Link(TARGET, Wire), record, LogFile(folder / "log"), SilentProgress(), lambda _: None)
        self._job, self._outputs_error = job, outputs

    def follow(self) -> JobEnd:
        if isinstance(self._job, Exception):
            raise self._job
        return self._job

    def _fetch_final_outputs(self) -> None:
        if self._outputs_error:
            raise self._outputs_error
        self.record.note(outputs=Outputs(1, 1, complete=True))

    def _warn_of_lost_output(self) -> None: ...

    def _forget(self) -> None: ...


def receive_heartbeat_reply(following: JobFollower, **answer: Any) -> None:
    following.heartbeat._read_reply(
        {"now": 0.0, "gpuBusy": None, "state": {"kind": "process", "started": 1.0}, **answer}
    )


@pytest.mark.parametrize(
    ("how", "state", "reason"),
    [
        (StopReason.EVICTED, RunState.EVICTED, "evicted: why"),
        (StopReason.LEASE_OVER, RunState.CANCELLED, "lease over: why"),
        (StopReason.IDLE, RunState.CANCELLED, "idle: why"),
        (StopReason.COST_CAP, RunState.CANCELLED, "cost cap: why"),
        (StopReason.TIMED_OUT, RunState.TIMED_OUT, "why"),
    ],
)
def test_stop_reason_sets_state_and_reason(tmp_path: Path, how: StopReason, state: RunState, reason: str) -> None:
    run = Followed(tmp_path, JobEnd(143, how, STARTED, "why")).follow_to_end()
    assert (run.state, run.reason, run.exit_code, run.outputs.complete) == (state, reason, 143, True)
    assert run.state.is_over


def test_interrupt_while_the_fetch_thread_starts_ends_that_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    following = Followed(tmp_path, OFF)
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt), following._fetching():
        pass
    assert following._fetch_thread
    following._fetch_thread.join(10)
    assert not following._fetch_thread.is_alive()


def test_last_heartbeat_has_the_reason_why_the_machine_went_off(tmp_path: Path) -> None:
    following = Followed(tmp_path, OFF)
    receive_heartbeat_reply(following, ending={"how": "evicted", "detail": ""})
    run = following.follow_to_end()
    assert (run.state, run.reason, run.exit_code) == (RunState.EVICTED, "evicted", None)
    assert not run.outputs.complete
    assert run.warnings == ("my-dsvm is deallocated: not all that the job wrote was fetched before",)


def test_last_heartbeat_has_the_end_of_the_job_on_a_machine_that_went_off(tmp_path: Path) -> None:
    following = Followed(tmp_path, OFF)
    receive_heartbeat_reply(
        following, state={"kind": "process", "ended": STARTED.timestamp() + 60, "exitCode": 0, "how": "exited"}
    )
    run = following.follow_to_end()
    assert (run.state, run.reason, run.exit_code, run.timings["job"]) == (RunState.COMPLETED, "", 0, 60.0)
    assert not run.outputs.complete


def test_machine_that_goes_off_during_the_fetch_leaves_outputs_incomplete(tmp_path: Path) -> None:
    run = Followed(tmp_path, JobEnd(3, StopReason.EXITED, STARTED), outputs=OFF).follow_to_end()
    assert (run.state, run.exit_code, run.outputs.complete) == (RunState.FAILED, 3, False)
    (problem,) = problems_of(run, require_gpu_use=False)
    assert problem.code is Code.OUTPUTS_INCOMPLETE
    assert "my-dsvm is deallocated" in (problem.note or "")
    assert "`gpuinfra outputs r1`" in (problem.help or "")
    assert "`gpuinfra up SPEC`" in (problem.help or "")


def test_unknown_end_of_a_job_is_reported_with_the_next_commands(tmp_path: Path) -> None:
    following = Followed(tmp_path, OFF)
    receive_heartbeat_reply(following)
    with pytest.raises(SwitchedOff) as caught:
        following.follow_to_end()
    run = following.record.run
    commands = "`gpuinfra up SPEC`, then `gpuinfra outputs r1` fetches what it wrote"
    assert (run.state, run.reason) == (RunState.RUNNING, "")  # Azure's log says when it ended: `runner.settle`
    problem = problem_of(caught.value, "lab")
    assert (problem.diagnostics[0].code, problem.exit_code) == (Code.MACHINE_IS_OFF, Exit.LOST)
    assert problem.diagnostics[0].help == commands


def test_later_information_replaces_the_recorded_reason(tmp_path: Path) -> None:
    before = replace(RUN, reason="the machine is off; …")
    run = Followed(tmp_path, JobEnd(143, StopReason.EVICTED, STARTED), before).follow_to_end()
    assert (run.state, run.reason, run.exit_code) == (RunState.EVICTED, "evicted", 143)


@pytest.mark.parametrize("code", [143, 0, None])
def test_evicted_run_exits_1_as_documented(code: int | None, tmp_path: Path) -> None:
    run = Followed(tmp_path, JobEnd(0, StopReason.EVICTED, STARTED)).follow_to_end()
    assert exit_code_of(replace(run, exit_code=code), []) == 1
    assert "r1 was evicted" in render_result(run, tmp_path).plain


# Power checks
@pytest.mark.parametrize(
    ("power", "expected"),
    [
        ("running", None),
        ("starting", None),
        ("deallocated", "my-dsvm is deallocated"),
        ("stopped", "my-dsvm is stopped, and billed until `gpuinfra down my-dsvm`"),
    ],
)
def test_power_check_uses_the_state_in_azure(power: str, expected: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = made()
    cloud.set_power(power)
    monkeypatch.setattr("gpuinfra.app.access.open_cloud", lambda *_, **__: cloud)
    check_power = power_of(None, spec())  # type: ignore[arg-type]
    assert check_power is not None
    assert check_power() == expected


def test_machine_is_not_off_if_azure_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = made()
    cloud.fail("look", DENIED)
    monkeypatch.setattr("gpuinfra.app.access.open_cloud", lambda *_, **__: cloud)
    check_power = power_of(None, spec())  # type: ignore[arg-type]
    assert check_power is not None
    assert check_power() is None

    def no_login(*_: Any, **__: Any) -> None:
        raise Problem(Diagnostic(Code.INTERNAL, "no login"))

    monkeypatch.setattr("gpuinfra.app.access.open_cloud", no_login)
    assert check_power() is None


@pytest.mark.parametrize(
    ("is_there", "subscription", "expected"),
    [
        (True, "", "my-dsvm is gone"),
        (False, "", None),
        (False, "the same", "my-dsvm is gone"),
        (False, "another", None),
    ],
)
def test_unknown_machine_is_gone_only_if_it_existed(
    is_there: bool, subscription: str, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = made()
    cloud.remove(Kind.VM)
    monkeypatch.setattr("gpuinfra.app.access.open_cloud", lambda *_, **__: cloud)
    where = cloud.subscription if subscription == "the same" else subscription
    found = ref_of(Kind.VM, spec().group_name, spec().name).id(where) if where else ""
    check_power = power_of(None, spec(), is_there=is_there, resource_id=found)  # type: ignore[arg-type]
    assert check_power is not None
    assert check_power() == expected


def test_other_targets_have_no_power_check() -> None:
    assert power_of(None, None) is None  # type: ignore[arg-type]
