"""The teardown of a machine after its job: it is not left on, whatever is unknown, and nothing is lost."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

import pytest

from gpuinfra.app.interruption import leave_closed_streams
from gpuinfra.app.job_request import OnInterrupt
from gpuinfra.app.run import RunWorkflow
from gpuinfra.app.settings import Settings
from gpuinfra.app.up import up
from gpuinfra.diagnostics import Code, Diagnostic, Problem, Span
from gpuinfra.models.consent import Contact, MachineAnswer, MachineRun
from gpuinfra.models.plan import Action, Change, Kind, Plan, Power
from gpuinfra.models.receipt import OffProof, Receipt
from gpuinfra.models.run import Outputs, Run, RunState, run_from_json
from gpuinfra.models.stay import Purpose, Reason, Stay
from gpuinfra.parse.spec import LocatedSpec
from gpuinfra.provision import tags
from gpuinfra.provision.tags import ref_of
from gpuinfra.runner.errors import JobError
from gpuinfra.runner.readiness import NotReady
from gpuinfra.store import History
from tests.runs import make_run
from tests.unit.provision_help import NAME, NOW, RecordedProgress, made, spec

FULL = JobError("the disk of this computer is full", "`log.lock` cannot be written", None, Code.DISK_FULL)
DONE = make_run(
    target="lab",
    state=RunState.COMPLETED,
    created=NOW,
    started=NOW,
    ended=NOW,
    machine=NAME,
    outputs=Outputs(complete=True),
)


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """How the machine was ended: whether it was deleted."""
    found: list[bool] = []

    def end_machine(*_: Any, delete: bool, **__: Any) -> Receipt:
        found.append(delete)
        return Receipt(NAME, OffProof.DEALLOCATED, NOW)

    monkeypatch.setattr("gpuinfra.app.run.end_machine", end_machine)
    set_answer(monkeypatch, MachineAnswer(Contact.SILENT))
    return found


def set_answer(monkeypatch: pytest.MonkeyPatch, answer: MachineAnswer) -> None:
    """Make the machine answer this when it is asked for its runs."""
    monkeypatch.setattr("gpuinfra.app.consent.open_session", lambda *_, **__: None)
    monkeypatch.setattr("gpuinfra.app.consent.ask_machine", lambda *_: answer)


def make_workflow(workspace: Path, afterwards: str, neighbours: list[MachineRun] | None) -> RunWorkflow:
    settings = Settings(json=False, yes=False, verbose=False, cloud="azure", workspace=workspace, correlation_id="")
    work: Any = SimpleNamespace(
        closed_until=0.0,
        run=DONE,
        is_off=False,
        neighbours=neighbours,
        workspace=SimpleNamespace(history=History(workspace / ".gpuinfra")),
        assigned=SimpleNamespace(tracked=False),
    )
    progress: Any = RecordedProgress()
    options: Any = None
    located = LocatedSpec(spec(), Span("gpu.yaml", 1, 1, 1, 1, ""))
    return RunWorkflow(settings, located, options, afterwards, OnInterrupt.ASK, progress, work=work)


def test_machine_without_other_runs_is_deleted(tmp_path: Path, ends: list[bool]) -> None:
    make_workflow(tmp_path, "delete", [MachineRun("r0", is_over=True, has_outputs=False)])._end()
    assert ends == [True]


def test_machine_with_unknown_runs_is_not_deleted(tmp_path: Path, ends: list[bool]) -> None:
    make_workflow(tmp_path, "delete", None)._end()
    assert ends == [False]


@pytest.mark.parametrize(("is_over", "expected"), [(False, []), (True, [False])])
def test_machine_is_asked_for_runs_before_teardown(
    is_over: bool, expected: list[bool], tmp_path: Path, ends: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = (MachineRun("r0", is_over=is_over, has_outputs=True), MachineRun(DONE.id, is_over=True, has_outputs=True))
    set_answer(monkeypatch, MachineAnswer(Contact.ANSWERED, runs))
    workflow = make_workflow(tmp_path, "delete", None)
    workflow._end()
    assert ends == expected
    assert "r0" in str(workflow.frontend.lines)  # type: ignore[attr-defined]
    assert DONE.id not in str(workflow.frontend.lines)  # type: ignore[attr-defined]


def test_second_interrupt_during_the_check_reports_a_running_machine(
    tmp_path: Path, ends: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    workflow = make_workflow(tmp_path, "deallocate", None)
    workflow.interrupted = True

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gpuinfra.app.consent.ask_machine", interrupt)
    monkeypatch.setattr("gpuinfra.app.run.say_what_exists", lambda *_: None)
    with pytest.raises(KeyboardInterrupt):
        workflow._end()
    assert ends == []
    assert "my-dsvm is left as it is: it is billed until" in str(workflow.frontend.lines)  # type: ignore[attr-defined]


def test_second_interrupt_before_azure_is_asked_says_that_it_may_be_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gpuinfra.app.run.up", interrupt)
    monkeypatch.setattr("gpuinfra.app.run.end_machine", interrupt)
    workflow = make_workflow(tmp_path, "deallocate", [])
    workflow.work.was_interrupted = False  # type: ignore[union-attr]
    with pytest.raises(KeyboardInterrupt):
        workflow.execute()
    lines = [line for line in workflow.frontend.lines if "is left as it is" in str(line)]  # type: ignore[attr-defined]
    assert len(lines) == 1
    assert "it is billed until `gpuinfra down my-dsvm`" in str(lines)


def test_interrupt_while_the_machine_is_asked_does_not_end_what_another_run_needs(
    tmp_path: Path, ends: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    times: list[None] = []

    def ask(*_: Any) -> MachineAnswer:
        times.append(None)
        if len(times) == 1:
            raise KeyboardInterrupt
        return MachineAnswer(Contact.ANSWERED, (MachineRun("r0", is_over=False, has_outputs=True),))

    monkeypatch.setattr("gpuinfra.app.consent.ask_machine", ask)
    workflow = make_workflow(tmp_path, "delete", None)
    workflow._end()
    assert (ends, workflow.interrupted) == ([], True)
    assert "is kept for r0" in str(workflow.frontend.lines)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("has_outputs", "expected"), [(True, [False]), (False, [True])])
def test_unreadable_history_does_not_keep_a_machine_on(
    has_outputs: bool, expected: list[bool], tmp_path: Path, ends: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(*_: Any) -> list[Run]:
        raise Problem(Diagnostic(Code.FILE_UNREADABLE, "history cannot be read"))

    monkeypatch.setattr(History, "list", unreadable)
    workflow = make_workflow(tmp_path, "delete", [MachineRun("r0", is_over=True, has_outputs=has_outputs)])
    workflow._end()
    assert (ends, workflow.problem) == (expected, None)


def test_another_run_that_cannot_be_fetched_keeps_the_machine(
    tmp_path: Path, ends: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Run:
        raise FULL

    workflow = make_workflow(tmp_path, "deallocate", [])
    other: dict[str, Any] = {**DONE.as_json(), "id": "r0", "state": "running", "job": {"kind": "process", "id": "r0"}}
    History(tmp_path / ".gpuinfra").save(run_from_json(other))
    monkeypatch.setattr("gpuinfra.app.consent.fetch_outputs", full)
    workflow._end()
    assert ends == []
    assert "is kept for r0" in str(workflow.frontend.lines)  # type: ignore[attr-defined]


def test_internal_error_does_not_keep_the_machine_on(
    tmp_path: Path, ends: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def mistake(*_: Any) -> list[str]:
        raise KeyError("nothing")

    workflow = make_workflow(tmp_path, "deallocate", [])
    monkeypatch.setattr("gpuinfra.app.consent.OtherRuns.in_need", mistake)
    workflow._end()
    assert ends == [False]


# A look at a failed job


def hold_workflow(workspace: Path, neighbours: list[MachineRun]) -> RunWorkflow:
    """Return the workflow of a job that failed, and for which the machine is to stay on for half an hour."""
    workflow = make_workflow(workspace, "deallocate", neighbours)
    work: Any = workflow.work
    work.run, work.tree = replace(DONE, state=RunState.FAILED, exit_code=3), "/copy"
    options: Any = SimpleNamespace(keep_on_failure=1800.0)
    workflow.job = options
    return workflow


def test_machine_that_stays_on_for_a_look_is_not_switched_off(
    tmp_path: Path, ends: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    stay = Stay(Purpose(Reason.FAILED_JOB, DONE.id), NOW, NOW, NOW, has_agent=True)
    receipt = Receipt(NAME, None, NOW, stay=stay)
    monkeypatch.setattr("gpuinfra.app.run.hold_machine", lambda *_, **__: receipt)
    monkeypatch.setattr(
        "gpuinfra.app.run.result_of", lambda *_: SimpleNamespace(exit_code=3, diagnostics=(), interrupted=False)
    )
    workflow = hold_workflow(tmp_path, [])
    assert workflow._hold()
    workflow._end()
    assert (ends, workflow.result().exit_code) == ([], 3)


@pytest.mark.parametrize("refusal", ["Azure refuses", ""])
def test_machine_that_cannot_stay_on_for_a_look_is_switched_off(
    refusal: str, tmp_path: Path, ends: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def hold_machine(*_: Any, **__: Any) -> None:
        if refusal:
            raise Problem(Diagnostic(Code.INTERNAL, refusal))

    monkeypatch.setattr("gpuinfra.app.run.hold_machine", hold_machine)
    workflow = hold_workflow(tmp_path, [])
    assert not workflow._hold()
    workflow._end()
    assert ends == [False]
    why = refusal or "no time is left of its cost cap, or nothing in Azure would end it"
    assert f"does not stay on for a look at the failed job: {why}" in str(workflow.frontend.lines)  # type: ignore[attr-defined]


def test_machine_that_another_run_needs_keeps_its_lease_after_a_failed_job(
    tmp_path: Path, ends: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuinfra.app.run.hold_machine", None)
    workflow = hold_workflow(tmp_path, [MachineRun("r0", is_over=False, has_outputs=True)])
    assert not workflow._hold()
    workflow._end()
    assert ends == []
    assert "is kept for r0" in str(workflow.frontend.lines)  # type: ignore[attr-defined]


# Before the job


@pytest.mark.parametrize(
    ("power", "note"), [("running", "and billed until `gpuinfra down my-dsvm`"), ("stopped", "`my-dsvm` is stopped")]
)
def test_unusable_machine_is_deallocated(
    power: str, note: str, tmp_path: Path, ends: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud: Any = made()
    cloud.remove(Kind.PUBLIC_IP)
    cloud.set_power(power)
    outcome = SimpleNamespace(observed=cloud.observe(NAME), plan=None)
    monkeypatch.setattr("gpuinfra.app.up.check_files", lambda *_: None)
    monkeypatch.setattr("gpuinfra.app.up.open_session", lambda *_, **__: SimpleNamespace(cloud=cloud))
    start = Change(Action.CHANGE, ref_of(Kind.VM, "group", NAME), power=Power.START)

    def started(consent: Any, _: Any) -> Any:
        consent(Plan(NAME, "", "group", None, (start,)))
        return outcome

    monkeypatch.setattr("gpuinfra.app.up._ask", lambda *_, **__: None)
    provisioner = SimpleNamespace(up=started, host_key=SimpleNamespace(public=""), public_key="key")
    monkeypatch.setattr("gpuinfra.app.up.open_provisioner", lambda *_, **__: provisioner)
    monkeypatch.setattr("gpuinfra.app.up.record_power_on", lambda *_: None)
    workflow = make_workflow(tmp_path, "deallocate", [])
    workflow.work = None
    workflow.execute()
    assert ends == [False]
    assert workflow.problem is not None
    assert note in (workflow.problem.diagnostics[0].note or "")


@pytest.mark.parametrize("moment", ["up.record_power_on", "up._write_target", "up._not_ready"])
def test_interrupt_at_any_moment_after_creation_says_what_exists(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud: Any = made()
    plan = Plan(NAME, "", "group", None, (Change(Action.CHANGE, ref_of(Kind.VM, "group", NAME), power=Power.START),))
    outcome = SimpleNamespace(observed=cloud.observe(NAME), plan=plan, lease_until=None, agent=None)
    key = tags.get(outcome.observed.machine.tags, tags.HOST_KEY)
    provisioner = SimpleNamespace(up=lambda *_: outcome, host_key=SimpleNamespace(public=key), public_key="key")
    seen: list[str] = []

    def wait(*_: Any, **__: Any) -> None:
        if moment == "up._not_ready":
            raise NotReady("ssh", "it does not answer")

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    for name, value in {
        "app.up.open_session": lambda *_, **__: SimpleNamespace(cloud=cloud),
        "app.up.open_provisioner": lambda *_, **__: provisioner,
        "app.up.record_host_key": lambda *_: None,
        "app.up.record_power_on": lambda *_: None,
        "app.up._ended_meanwhile": lambda *_: None,
        "app.up._wait_for_docker": lambda *_: None,
        "app.up.say_what_exists": lambda _session, name, *_: seen.append(name),
        "app.up.wait_until_ready": wait,
        f"app.{moment}": interrupt,
    }.items():
        monkeypatch.setattr(f"gpuinfra.{name}", value)
    workflow = make_workflow(tmp_path, "deallocate", [])
    with pytest.raises(KeyboardInterrupt):
        up(workflow.settings, workflow.located, 60, workflow.frontend)
    assert seen == [NAME]


@pytest.mark.parametrize("is_refused", [True, False])
def test_internal_error_does_not_hide_that_the_machine_may_be_on(
    is_refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end_machine(*_: Any, **__: Any) -> Receipt:
        if is_refused:
            raise Problem(Diagnostic(Code.INTERNAL, "Azure refuses"))
        return Receipt(NAME, None, NOW)

    def mistake(*_: Any, **__: Any) -> None:
        raise KeyError("nothing")

    monkeypatch.setattr("gpuinfra.app.run.end_machine", end_machine)
    monkeypatch.setattr("gpuinfra.app.run.up", mistake)
    workflow = make_workflow(tmp_path, "deallocate", [])
    with pytest.raises(KeyError):
        workflow.execute()
    assert "my-dsvm may be on: it is billed until `gpuinfra down my-dsvm`" in str(workflow.frontend.lines)  # type: ignore[attr-defined]


# Closed output


def closed_pipe() -> TextIO:
    """A pipe whose reader is closed."""
    reading, writing = os.pipe()
    os.close(reading)
    return os.fdopen(writing, "w")


@pytest.mark.parametrize("broken", [{"stdout"}, {"stdout", "stderr"}], ids=len)
def test_closed_streams_print_nothing(broken: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdout", "stderr"):
        file = closed_pipe() if name in broken else (tmp_path / name).open("w")
        monkeypatch.setattr(sys, name, file)
        file.buffer.write(b"said\n")
    leave_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        stream.buffer.write(b"more\n")
        stream.close()
    if "stderr" not in broken:
        assert (tmp_path / "stderr").read_text() == "said\nmore\n"
