"""Several runs on the screen: the live table, lines with the machine's name, and the results."""

import io
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuinfra.diagnostics import Code, Diagnostic
from gpuinfra.models.receipt import OffProof, Receipt
from gpuinfra.models.run import STDERR, STDOUT, Frame, LiveStatus, RunState
from gpuinfra.models.run_result import MachineResult
from gpuinfra.models.stay import Purpose, Reason, Stay
from gpuinfra.views.run_table import (
    MachineView,
    PrefixedSink,
    Row,
    last_line,
    live_table,
    machine_words,
    result_table,
    show_results,
)
from tests.runs import CREATED, make_run
from tests.unit.test_views_progress import Clock

ROWS = [
    Row("alpha", "running (simulated)", "20261119-224844-62d1", 4000, 0.7, "epoch 3 of 60: loss 0.250, and more"),
    Row("beta", "ssh: waiting for SSH", "", 12, None, ""),
]


def test_live_table_shows_each_machine_with_its_last_line() -> None:
    assert live_table(ROWS, 120).plain.splitlines() == [
        "MACHINE  PHASE                 RUN                        TIME   COST  LAST LINE",
        "alpha    running (simulated)   20261119-224844-62d1  1 h 6 min  $0.70  epoch 3 of 60: loss 0.250, and more",
        "beta     ssh: waiting for SSH  -                          12 s      -",
    ]
    assert live_table(ROWS, 90).plain.splitlines()[1].endswith("  epoch 3 of 60: los…")


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (120, "MACHINE PHASE RUN TIME COST LAST LINE"),
        (90, "MACHINE PHASE RUN TIME COST LAST LINE"),
        (80, "MACHINE PHASE RUN TIME COST"),
        (60, "MACHINE PHASE TIME LAST LINE"),
        (36, "MACHINE PHASE"),
    ],
)
def test_live_table_fits_and_leaves_out_the_least_important_columns(width: int, columns: str) -> None:
    lines = live_table(ROWS, width).plain.splitlines()
    assert max(map(len, lines)) <= width, lines
    assert lines[0].split() == columns.split()


def test_last_line_is_the_final_state_of_the_last_one_with_text() -> None:
    assert last_line(b"one\n\x1b[32m 10 %\x1b[0m\r\x1b[32m100 %\x1b[0m\n \n") == "100 %"
    assert last_line(b"") == ""


def machine(clock: Clock, **fields: Any) -> MachineView:
    view: Any = SimpleNamespace(has_table=True, note=lambda _: None, **fields)
    return MachineView(view, "alpha", clock)


def test_row_has_the_time_of_its_phase_and_then_of_the_job() -> None:
    clock = Clock()
    shown = machine(clock)
    shown.begin("vm alpha", "creating")
    clock.now += 30
    assert shown.row() == Row("alpha", "vm: creating", "", 30, None, "")
    shown.set_status(lambda: LiveStatus("r1", 5.0, None, 0.5, simulated=False))
    assert shown.row() == Row("alpha", "running", "r1", 5.0, 0.5, "")
    shown.set_status(None)
    shown.begin("outputs", "fetching")
    clock.now += 2
    assert shown.row() == Row("alpha", "outputs: fetching", "r1", 2, 0.5, "")
    shown.finish(COMPLETED)
    assert shown.row() == Row("alpha", "completed, off", "r1", 90.0, 0.5, "")


class Pipe:
    """A standard stream that is a pipe."""

    def __init__(self) -> None:
        self.buffer: Any = io.BytesIO()


def test_lines_in_a_pipe_begin_with_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = Pipe(), Pipe()
    monkeypatch.setattr("sys.stderr", err)
    progress: Any = SimpleNamespace(output=lambda place, data, on_screen: place.write(data))
    sink = PrefixedSink("alpha", progress, out)
    for stream, data in (
        (STDOUT, b"one\ntw"),
        (STDERR, b"warning\n"),
        (STDOUT, b"o\n\n10 %\r20 %"),
        (STDOUT, b"\r30 %\nrest"),
    ):
        sink(Frame(stream, 0, data))
    assert out.buffer.getvalue() == b"[alpha] one\n[alpha] two\n[alpha] \n[alpha] 30 %\n"
    sink.finish()
    assert out.buffer.getvalue().endswith(b"[alpha] 30 %\n[alpha] rest\n")
    assert err.buffer.getvalue() == b"[alpha] warning\n"


# Results

NOW = datetime(2026, 11, 19, 21, 0, tzinfo=UTC)
OFF = Receipt("alpha", OffProof.DEALLOCATED, NOW)
STAY = Stay(Purpose(Reason.JOB, "r1"), NOW, NOW + timedelta(hours=4), NOW + timedelta(hours=5), has_agent=True)


def ended(name: str, receipt: Receipt | None, code: int = 0, **fields: Any) -> MachineResult:
    run = make_run(**{"started": CREATED, "ended": CREATED + timedelta(seconds=90), "cost_usd": 0.5, **fields})
    return MachineResult(name, f"{name}.yaml", code, run, Path("r1"), receipt)


COMPLETED = ended("alpha", OFF, state=RunState.COMPLETED, exit_code=0)
FAILED = ended("beta", replace(OFF, verified=None), 7, state=RunState.FAILED, exit_code=7, simulated=True)
LEFT = ended("gamma", replace(OFF, verified=None, stay=STAY))
DIAGNOSTIC = Diagnostic(Code.NO_CANDIDATE, "no capacity", machine="delta")
NO_JOB = MachineResult("delta", "delta.yaml", 1, diagnostics=(DIAGNOSTIC,))


def test_results_say_how_each_job_ended_and_what_its_machine_does_now() -> None:
    assert result_table([COMPLETED, FAILED, LEFT, NO_JOB], None).plain.splitlines() == [
        "MACHINE  RESULT              EXIT  RUN        TIME   COST  NOW",
        "alpha    completed              0  r1   1 min 30 s  $0.50  off",
        "beta     failed (simulated)     7  r1   1 min 30 s  $0.50  not verified",
        "gamma    running                -  r1   1 min 30 s  $0.50  on until 11-20 01:00Z",
        "delta    no job                 1  -             -      -  see above",
    ]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_results_fit_the_terminal(width: int) -> None:
    lines = result_table([COMPLETED, FAILED, LEFT], width).plain.splitlines()
    assert max(map(len, lines)) <= width, lines
    assert {"MACHINE", "RESULT", "EXIT", "NOW"} <= set(lines[0].split())


def test_machine_that_may_be_billed_is_not_passed_over() -> None:
    assert machine_words(replace(NO_JOB, is_left=True))[0] == "maybe on"


def test_json_is_a_list_of_results(capsys: pytest.CaptureFixture[str]) -> None:
    show_results([COMPLETED, NO_JOB], json=True)
    first, second = json.loads(capsys.readouterr().out)["results"]
    assert (first["machine"], first["file"], first["exitCode"]) == ("alpha", "alpha.yaml", 0)
    assert (first["run"]["id"], first["receipt"]["off"]) == ("r1", True)
    assert "diagnostics" not in first
    assert (second["run"], second["receipt"], second["diagnostics"][0]["machine"]) == (None, None, "delta")
