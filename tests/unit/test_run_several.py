"""Several runs at the same time: the words of the command, the start, the decision after Ctrl-C, the exit code."""

import threading
from collections.abc import Sequence
from concurrent import futures
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuinfra.app.interrupt_question import MachineEnd
from gpuinfra.app.interruption import TerminalClosedError
from gpuinfra.app.job_request import OnInterrupt
from gpuinfra.app.machine_tasks import ErrorCollector, for_each
from gpuinfra.app.run_interrupts import RunInterrupts, interruptible
from gpuinfra.app.run_several import RunGroup, StartGate, _raise_all, decision_of, exit_code_of
from gpuinfra.app.settings import Settings
from gpuinfra.cli.run import split_words
from gpuinfra.diagnostics import Code, Diagnostic, Problem, Span
from gpuinfra.models.run_result import MachineResult
from gpuinfra.parse.spec import LocatedSpec
from gpuinfra.runner.errors import Broken
from gpuinfra.runner.link import Link
from tests.unit.provision_help import RecordedProgress, spec
from tests.unit.runner.test_link import TARGET, Wire

ASK, CANCEL, DETACH = OnInterrupt.ASK, OnInterrupt.CANCEL, OnInterrupt.DETACH
SPECS = {"a.yaml", "b.yml", "specs", "other-dsvm"}
SCRIPTS = {"train.py"}
END = MachineEnd("m0", "deallocate", None, None)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("", ([], None, [])),
        ("a.yaml", (["a.yaml"], None, [])),
        ("my-dsvm train.py --epochs 3", (["my-dsvm"], "train.py", ["--epochs", "3"])),
        ("a.yaml b.yml", (["a.yaml", "b.yml"], None, [])),
        ("specs other-dsvm train.py a.yaml", (["specs", "other-dsvm"], "train.py", ["a.yaml"])),
        ("a.yaml specs -- python a.yaml", (["a.yaml", "specs"], "--", ["python", "a.yaml"])),
        ("-- a.yaml b.yml", ([], "--", ["a.yaml", "b.yml"])),
        ("a.yaml b.yml --detach", (["a.yaml", "b.yml"], "--detach", [])),
        ("train.py a.yaml --epochs 3", ([], "train.py", ["a.yaml", "--epochs", "3"])),
        ("typo train.py", (["typo"], "train.py", [])),
    ],
)
def test_first_words_are_specs_as_long_as_they_can_be(
    given: str, found: tuple[list[str], str | None, list[str]]
) -> None:
    assert split_words(given.split(), SPECS.__contains__, SCRIPTS.__contains__) == found


def ended(code: int = 0, *, left: bool = False) -> MachineResult:
    return MachineResult("alpha", "alpha.yaml", code, is_left=left)


@pytest.mark.parametrize(
    ("results", "interrupted", "code"),
    [
        ([ended(), ended()], False, 0),
        ([ended(), ended(7)], False, 1),
        ([ended(4), ended()], False, 1),  # the job's own code
        ([ended(7), ended(1, left=True)], False, 4),
        ([ended(143), ended()], True, 130),
        ([ended(143), ended(4, left=True)], True, 4),
        ([], True, 130),
    ],
)
def test_exit_code_is_the_most_urgent_one(results: Sequence[MachineResult], interrupted: bool, code: int) -> None:
    assert exit_code_of(results, interrupted=interrupted) == code


@pytest.mark.parametrize(
    ("option", "interrupt", "can_ask", "has_jobs", "decision"),
    [
        (ASK, KeyboardInterrupt(), True, True, ASK),
        (ASK, KeyboardInterrupt(), False, True, CANCEL),
        (ASK, TerminalClosedError(), False, True, DETACH),
        (ASK, KeyboardInterrupt(), True, False, CANCEL),
        (DETACH, KeyboardInterrupt(), True, False, CANCEL),
        (DETACH, KeyboardInterrupt(), True, True, DETACH),
        (CANCEL, TerminalClosedError(), False, True, CANCEL),
    ],
)
def test_ctrl_c_does_what_it_does_to_a_single_run(
    option: OnInterrupt, interrupt: KeyboardInterrupt, can_ask: bool, has_jobs: bool, decision: OnInterrupt
) -> None:
    assert decision_of(option, interrupt, can_ask=can_ask, has_jobs=has_jobs) is decision


# Start


def arrive_in_threads(gate: StartGate, count: int) -> tuple[list[bool], list[threading.Thread]]:
    found: list[bool] = []
    threads = [threading.Thread(target=lambda: found.append(gate.arrive(60))) for _ in range(count)]
    for thread in threads:
        thread.start()
    return found, threads


def test_runs_start_when_the_last_one_arrives() -> None:
    gate = StartGate(3)
    found, threads = arrive_in_threads(gate, 2)
    assert not gate.is_open
    assert gate.arrive(60)
    for thread in threads:
        thread.join(60)
    assert found == [True, True]
    assert gate.close(), "a later failure does not stop those that have started"


def test_no_run_starts_after_one_was_refused() -> None:
    gate = StartGate(3)
    found, threads = arrive_in_threads(gate, 2)
    assert not gate.close()
    for thread in threads:
        thread.join(60)
    assert found == [False, False]
    assert not gate.arrive(60)


def test_no_run_starts_if_one_does_not_arrive_in_time() -> None:
    gate = StartGate(2)
    assert not gate.arrive(0.01)
    assert not gate.arrive(60)


def located(name: str) -> LocatedSpec:
    return LocatedSpec(spec(name=name), Span(f"{name}.yaml", 1, 1, 1, 1, ""))


def test_problem_that_all_machines_have_in_common_is_reported_once() -> None:
    shared, own = Diagnostic(Code.USAGE, "no command"), Diagnostic(Code.NO_GPU, "no GPU", note="hidden")
    found = [(located("one"), Problem(shared)), (located("two"), Problem(shared, own))]
    with pytest.raises(Problem) as raised:
        _raise_all(found, 2)
    assert [(each.machine, each.note) for each in raised.value.diagnostics] == [(None, None), ("two", "`two`: hidden")]
    with pytest.raises(Problem) as raised:
        _raise_all(found, 3)
    assert [each.machine for each in raised.value.diagnostics] == ["one", "two", "two"]


# Ctrl-C in the threads of runs


def use_until_it_ends(link: Link) -> None:
    with interruptible(link):
        while True:
            _ = link.connection


def test_interrupt_reaches_links_that_are_open_and_those_that_open_later() -> None:
    interrupts, first, later = RunInterrupts(), Link(TARGET, Wire), Link(TARGET, Wire)
    _ = first.connection
    with interrupts.of(first):
        interrupts.send(CANCEL)
        interrupts.send(DETACH)
        for link in (first, later):
            with interrupts.of(link), pytest.raises(KeyboardInterrupt):
                use_until_it_ends(link)
            assert link.connection.is_open, "what is left to do can use it"
    assert interrupts.decision is CANCEL


def test_error_without_an_interrupt_stays_an_error() -> None:
    with pytest.raises(Broken), interruptible(Link(TARGET, Wire)):
        raise Broken("gone")


def group_of(*jobs: bool) -> tuple[RunGroup, RecordedProgress]:
    """Return runs on machines, of which some have a running job, with what they show."""
    shown: Any = RecordedProgress()
    shown.can_ask = False
    runs: list[Any] = [
        SimpleNamespace(spec=spec(name=f"m{number}"), has_running_job=has_job, machine_end=END, detach=False)
        for number, has_job in enumerate(jobs)
    ]
    return RunGroup(runs, ASK, shown), shown


def start(group: RunGroup) -> None:
    with group._gate._changed:
        group._gate._decide(is_open=True)


@pytest.mark.parametrize(
    ("answer", "decision"),
    [("d", DETACH), ("c", CANCEL), ("g", None), (None, CANCEL), (BrokenPipeError(), DETACH), (ValueError(), DETACH)],
)
def test_answer_decides_for_all_runs(answer: str | Exception | None, decision: OnInterrupt | None) -> None:
    group, shown = group_of(True, False)

    def ask(*_: object) -> str | None:
        if isinstance(answer, Exception):
            raise answer
        return answer

    shown.can_ask, shown.ask_choice = True, ask  # type: ignore[attr-defined]
    start(group)
    assert group.handle_interrupt(KeyboardInterrupt())
    assert group.interrupts.decision is decision


def test_detached_job_is_in_no_question() -> None:
    group, _ = group_of(True, True)
    group._workflows[0].detach = True
    jobs, others = group._machines()
    assert (len(jobs), len(others)) == (1, 0)


@pytest.mark.parametrize(
    ("receipt", "is_left"), [(None, True), (SimpleNamespace(is_proof=True, stay=None, for_json=dict), False)]
)
def test_unexpected_error_of_one_run_is_its_result(receipt: Any, is_left: bool) -> None:
    group, shown = group_of(True)
    finished: list[MachineResult] = []
    shown.finish = finished.append  # type: ignore[attr-defined]
    start(group)
    workflow = group._workflows[0]

    def execute() -> None:
        raise BrokenPipeError("closed")

    workflow.execute, workflow.located = execute, located("m0")  # type: ignore[method-assign]
    workflow.receipt, workflow.work, workflow.plan, workflow.problem = receipt, None, object(), None  # type: ignore[assignment]
    result = group.execute(workflow)
    assert (result.is_left, result.exit_code, finished) == (is_left, 4 if is_left else 1, [result])
    assert [each.code for each in result.diagnostics] == [Code.INTERNAL]


def test_first_ctrl_c_decides_for_all_runs_and_the_next_one_leaves_them() -> None:
    group, _ = group_of(True)
    assert group._gate.arrive(60)
    assert group.handle_interrupt(TerminalClosedError())
    assert group.interrupts.decision is DETACH
    assert not group.handle_interrupt(KeyboardInterrupt())
    assert group.interrupts.decision is DETACH


def test_ctrl_c_before_the_start_lets_no_run_start() -> None:
    group, shown = group_of(False, False)
    assert not group.handle_interrupt(KeyboardInterrupt())
    assert (group.is_started, shown.lines) == (False, ["no job was started"])
    assert not group._gate.arrive(60)


@pytest.mark.parametrize("continues", [True, False])
def test_tasks_continue_after_an_interrupt_that_was_handled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, continues: bool
) -> None:
    from gpuinfra.app import machine_tasks

    monkeypatch.setattr(machine_tasks, "SETTLE_SECONDS", 0.0)
    may_end, waits = threading.Event(), [KeyboardInterrupt()]
    wait = futures.wait

    def interrupted_wait(*words: Any) -> Any:
        if waits:
            raise waits.pop()
        return wait(*words)

    def handle(_: KeyboardInterrupt) -> bool:
        may_end.set() if continues else None
        return continues

    def task(name: str, *_: Any) -> str:
        assert may_end.wait(60)
        return name

    monkeypatch.setattr(machine_tasks, "wait", interrupted_wait)
    settings = Settings(json=False, yes=False, verbose=False, cloud="azure", workspace=tmp_path, correlation_id="")
    frontend: Any = RecordedProgress()
    done = for_each(["a", "b"], task, settings, frontend, errors=ErrorCollector(), name_of=str, continues_after=handle)
    may_end.set()
    assert (done.results, isinstance(done.ended_by, KeyboardInterrupt)) == (
        ["a", "b"] if continues else [],
        not continues,
    )
