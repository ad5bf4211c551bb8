"""The end of a machine that one job was run on: whatever cannot be found out, it is not left on, nothing is lost."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

import pytest

from gpuinfra.app.job_options import OnInterrupt
from gpuinfra.app.job_session import _leave_closed_streams
from gpuinfra.app.run_workflow import RunWorkflow
from gpuinfra.app.settings import Settings
from gpuinfra.diagnostics import Code, Diagnostic, Problem, Span
from gpuinfra.models.consent import Contact, MachineAnswer, MachineRun
from gpuinfra.models.plan import Action, Change, Plan, Power
from gpuinfra.models.receipt import Off, Receipt
from gpuinfra.models.resource import Kind
from gpuinfra.models.run import Outputs, Run, RunState, run_from_json
from gpuinfra.parse.spec import Located
from gpuinfra.provision.names import ref_of
from gpuinfra.runner.jobs.port import JobError
from gpuinfra.runner.results.history import History
from gpuinfra.runner.watch import RemoteRun
from tests.unit.provision_help import NAME, NOW, Heard, made, spec

FULL = JobError("the disk of this computer is full", "`log.lock` cannot be written", None, Code.DISK_FULL)
DONE = Run(
    id="r1",
    target="lab",
    type="remote",
    configuration="lab",
    command=("python", "train.py"),
    state=RunState.COMPLETED,
    created=NOW,
    started=NOW,
    ended=NOW,
    machine=NAME,
    outputs=Outputs(complete=True),
)


class Broken:
    """A history that cannot be read."""

    def list(self) -> list[Run]:
        raise Problem(Diagnostic(Code.FILE_UNREADABLE, "history cannot be read"))


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """How the machine was ended: whether it was deleted."""
    found: list[bool] = []

    def end_machine(*_: Any, delete: bool, **__: Any) -> Receipt:
        found.append(delete)
        return Receipt(NAME, Off.DEALLOCATED, NOW)

    monkeypatch.setattr("gpuinfra.app.down.end_machine", end_machine)
    answers(monkeypatch, MachineAnswer(Contact.SILENT))
    return found


def answers(monkeypatch: pytest.MonkeyPatch, answer: MachineAnswer) -> None:
    """The machine answers so when it is asked for its runs."""
    monkeypatch.setattr("gpuinfra.app.machines.reach", lambda *_, **__: None)
    monkeypatch.setattr("gpuinfra.app.remote_runs.ask_machine", lambda *_: answer)


def story(workspace: Path, afterwards: str, neighbours: list[RemoteRun] | None, history: Any = None) -> RunWorkflow:
    settings = Settings(json=False, yes=False, verbose=False, cloud="azure", workspace=workspace, correlation_id="")
    work: Any = SimpleNamespace(
        run=DONE,
        is_off=False,
        neighbours=neighbours,
        workspace=SimpleNamespace(history=history or History(workspace / ".gpuinfra")),
        assigned=SimpleNamespace(tracked=False),
    )
    progress: Any = Heard()
    options: Any = None
    located = Located(spec(), Span("gpu.yaml", 1, 1, 1, 1, ""))
    return RunWorkflow(settings, located, options, afterwards, OnInterrupt.ASK, progress, work=work)


def test_a_machine_that_nobody_else_needs_is_deleted(tmp_path: Path, ends: list[bool]) -> None:
    story(tmp_path, "delete", [RemoteRun("r0", is_over=True, has_outputs=False)])._end()
    assert ends == [True]


def test_what_nobody_could_ask_for_is_not_deleted(tmp_path: Path, ends: list[bool]) -> None:
    story(tmp_path, "delete", None)._end()
    assert ends == [False]


@pytest.mark.parametrize(("is_over", "expected"), [(False, []), (True, [False])])
def test_machine_that_the_session_could_not_ask_is_asked_before_it_ends(
    is_over: bool, expected: list[bool], tmp_path: Path, ends: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = (MachineRun("r0", is_over=is_over, has_outputs=True), MachineRun(DONE.id, is_over=True, has_outputs=True))
    answers(monkeypatch, MachineAnswer(Contact.ANSWERED, runs))
    told = story(tmp_path, "delete", None)
    told._end()
    assert ends == expected
    assert "r0" in str(told.progress.lines)  # type: ignore[attr-defined]
    assert DONE.id not in str(told.progress.lines)  # type: ignore[attr-defined]


def test_second_interrupt_while_the_machine_is_asked_says_that_it_may_be_on(
    tmp_path: Path, ends: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = story(tmp_path, "deallocate", None)
    told.interrupted = True

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gpuinfra.app.remote_runs.ask_machine", interrupt)
    monkeypatch.setattr("gpuinfra.app.interruption.say_what_exists", lambda *_: None)
    with pytest.raises(KeyboardInterrupt):
        told._end()
    assert ends == []
    assert "my-dsvm is left as it is: it is billed until" in str(told.progress.lines)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("has_outputs", "expected"), [(True, [False]), (False, [True])])
def test_a_history_that_cannot_be_read_leaves_no_machine_on(
    has_outputs: bool, expected: list[bool], tmp_path: Path, ends: list[bool]
) -> None:
    told = story(tmp_path, "delete", [RemoteRun("r0", is_over=True, has_outputs=has_outputs)], Broken())
    told._end()
    assert (ends, told.problem) == (expected, None)


def test_another_run_that_nobody_can_ask_for_keeps_it(
    tmp_path: Path, ends: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Run:
        raise FULL

    told = story(tmp_path, "deallocate", [])
    other: dict[str, Any] = {**DONE.as_json(), "id": "r0", "state": "running", "job": {"kind": "process", "id": "r0"}}
    History(tmp_path / ".gpuinfra").save(run_from_json(other))
    monkeypatch.setattr("gpuinfra.app.run_control.fetch_outputs", full)
    told._end()
    assert ends == []
    assert "is kept for r0" in str(told.progress.lines)  # type: ignore[attr-defined]


def test_a_mistake_of_ours_does_not_leave_it_on(
    tmp_path: Path, ends: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def mistake(*_: Any) -> list[str]:
        raise KeyError("nothing")

    told = story(tmp_path, "deallocate", [])
    monkeypatch.setattr(RunWorkflow, "_others", mistake)
    told._end()
    assert ends == [False]


# Before there is a job


@pytest.mark.parametrize(
    ("power", "note"), [("running", "and billed until `gpuinfra down my-dsvm`"), ("stopped", "`my-dsvm` is stopped")]
)
def test_a_machine_that_came_up_and_cannot_be_used_is_ended(
    power: str, note: str, tmp_path: Path, ends: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud: Any = made()
    cloud.remove(Kind.PUBLIC_IP)
    cloud.set_power(power)
    cloud.clients = SimpleNamespace(access=SimpleNamespace(ssh_port=22))
    outcome = SimpleNamespace(observed=cloud.observe(NAME), plan=None)
    monkeypatch.setattr("gpuinfra.workbench.targets.check_files", lambda *_: None)
    monkeypatch.setattr("gpuinfra.app.machines.reach", lambda *_, **__: SimpleNamespace(cloud=cloud))
    start = Change(Action.CHANGE, ref_of(Kind.VM, "group", NAME), power=Power.START)

    def started(consent: Any) -> Any:
        consent(Plan(NAME, "", "group", None, (start,)))
        return outcome

    monkeypatch.setattr("gpuinfra.app.up._ask", lambda *_, **__: None)
    provisioner = SimpleNamespace(up=started, host_key=SimpleNamespace(public=""))
    monkeypatch.setattr("gpuinfra.app.machines.open_provisioner", lambda *_, **__: provisioner)
    monkeypatch.setattr("gpuinfra.app.ledger_recording.note_beginning", lambda *_: None)
    told = story(tmp_path, "deallocate", [])
    told.work = None
    told.execute()
    assert ends == [False]
    assert told.problem is not None
    assert note in (told.problem.diagnostics[0].note or "")


@pytest.mark.parametrize("is_refused", [True, False])
def test_a_mistake_of_ours_does_not_hide_that_it_may_be_on(
    is_refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end_machine(*_: Any, **__: Any) -> Receipt:
        if is_refused:
            raise Problem(Diagnostic(Code.INTERNAL, "Azure refuses"))
        return Receipt(NAME, None, NOW)

    def mistake(*_: Any, **__: Any) -> None:
        raise KeyError("nothing")

    monkeypatch.setattr("gpuinfra.app.down.end_machine", end_machine)
    monkeypatch.setattr("gpuinfra.app.run_workflow.up", mistake)
    told = story(tmp_path, "deallocate", [])
    with pytest.raises(KeyError):
        told.execute()
    assert "my-dsvm may be on: it is billed until `gpuinfra down my-dsvm`" in str(told.progress.lines)  # type: ignore[attr-defined]


# Whoever reads what is printed


def unread() -> TextIO:
    """A pipe whose reader is gone."""
    reading, writing = os.pipe()
    os.close(reading)
    return os.fdopen(writing, "w")


@pytest.mark.parametrize("broken", [{"stdout"}, {"stdout", "stderr"}], ids=len)
def test_where_nobody_reads_any_more_nothing_is_printed(
    broken: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("stdout", "stderr"):
        file = unread() if name in broken else (tmp_path / name).open("w")
        monkeypatch.setattr(sys, name, file)
        file.buffer.write(b"said\n")
    _leave_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        stream.buffer.write(b"more\n")
        stream.close()
    if "stderr" not in broken:
        assert (tmp_path / "stderr").read_text() == "said\nmore\n"
