"""The layout of runs: a table, one in full, a comparison, and the result of a job."""

import io
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text

from gpuinfra.diagnostics import Code, Diagnostic
from gpuinfra.models.receipt import OffProof, Receipt
from gpuinfra.models.run import (
    DELETED_WITH_OUTPUTS,
    STDERR,
    STDOUT,
    FileDifference,
    Frame,
    GpuUsage,
    KeptFile,
    Outputs,
    RunOutputs,
    RunState,
    Unlike,
)
from gpuinfra.views import job, runs
from gpuinfra.views.progress import ProgressView
from tests.runs import CREATED, DETAILS, make_run
from tests.screen import screen
from tests.sshd import eventually
from tests.unit.test_views_progress import Terminal, console_on

NOW = CREATED
FOLDER = Path(".gpuinfra/runs/20261116-121530-3f9c")
FAILED = make_run(
    "20261116-121530-3f9c",
    **DETAILS,
    type="remotedocker",
    configuration="gpu",
    command=("python", "train.py", "--name", "a b"),
    state=RunState.FAILED,
    machine="my-dsvm",
    script="train.py",
    started=NOW + timedelta(seconds=20),
    ended=NOW + timedelta(seconds=80),
    gpu={
        "count": 1,
        "models": ["Tesla K80"],
        "driver": "470.1",
        "memoryMiB": [11439],
        "computeCapabilities": ["3.7"],
        "simulated": False,
        "busIds": ["00000001:00:00.0"],
        "maxClocksMHz": [823],
    },
    timings={"upload": 1.5, "job": 60.0},
    outputs=Outputs(3, 3 << 20, complete=True),
    warnings=("outputs/x was not fetched: a link that leads out",),
)
RUNNING = make_run("20261116-121600-0001", "local", type="local", command=("python3", "a.py"), started=NOW)


def test_runs_are_a_table() -> None:
    assert runs.render([RUNNING, FAILED], NOW + timedelta(minutes=5)).plain.splitlines() == [
        "ID                    STATE    TARGET   SCRIPT        STARTED                TIME  EXIT   GPU     COST",
        "20261116-121600-0001  running  local    python3 a.py  2026-11-16 12:15:30Z  5 min     -     -        -",
        "20261116-121530-3f9c  failed   my_dsvm  train.py      2026-11-16 12:15:50Z  1 min     7  97 %  $0.0123",
    ]


@pytest.mark.parametrize("state", RunState)
def test_every_state_has_colour_and_text(state: RunState) -> None:
    run = replace(FAILED, state=state)
    (span,) = (span for span in runs.render([run], NOW).spans if span.style != "bold")
    assert span.style == runs.STYLES[state]
    assert job.render_result(run, FOLDER).plain.startswith(run.id)


def test_run_that_did_not_start_has_no_duration() -> None:
    run = replace(FAILED, started=None, state=RunState.FAILED)
    assert runs.taken(run, NOW) is None
    assert runs.taken(replace(RUNNING, started=None, state=RunState.PREPARING), NOW) is None
    # The duration of a lost run is unknown.
    assert runs.taken(replace(RUNNING, state=RunState.LOST), NOW) is None
    assert runs.taken(replace(FAILED, ended=NOW), NOW) == 0.0  # clocks differ


def test_full_run_is_shown() -> None:
    assert runs.render_one(FAILED, FOLDER).plain.splitlines() == [
        "20261116-121530-3f9c  failed",
        "  command        python train.py --name 'a b'",
        "  target         my_dsvm (remotedocker, machine my-dsvm)",
        "  configuration  gpu",
        "  created        2026-11-16 12:15:30Z",
        "  started        2026-11-16 12:15:50Z",
        "  ended          2026-11-16 12:16:50Z, after 1 min",
        "  exit code      7",
        "  reason         out of memory",
        f"  commit         {'ab' * 20}, with uncommitted changes",
        "  spec           sha256:12",
        "  image          microsoft/mmlspark:plus-gpu-0.9.9",
        "  image digest   sha256:34",
        "  GPU            Tesla K80, 11439 MiB, driver 470.1",
        "                 Tesla K80, compute capability 3.7, 0.823 GHz, pciBusID 0001:00:00.0, memory 11.2 GiB",
        "  GPU use        peak 97 %, mean 61 %, at most 10240 MiB, 60 samples",
        "  variables      SEED, TOKEN",
        "  phases         upload: 1.5 s",
        "                 job: 1 min",
        "  cost           $0.0123",
        "  afterwards     deallocate",
        f"  outputs        3 files, 3.0 MiB in {FOLDER}/outputs",
        f"  log            {FOLDER}/log",
        "  warning        outputs/x was not fetched: a link that leads out",
    ]


def test_short_run_is_shown() -> None:
    lines = runs.render_one(replace(RUNNING, simulated=True), FOLDER).plain.splitlines()
    assert lines[0] == "20261116-121600-0001  running (simulated)"
    assert (
        "  outputs        0 files, 0 B in .gpuinfra/runs/20261116-121530-3f9c/outputs; not everything was fetched"
        in lines
    )
    assert len(lines) == 7


def test_facts_of_an_older_program_are_shown() -> None:
    run = replace(FAILED, gpu={"models": ["Tesla T4", "Tesla T4"]})
    assert dict(runs.gpu_facts(run))["GPU"] == "2 Tesla T4, driver -"
    assert list(runs.gpu_facts(replace(FAILED, gpu={}, usage=None))) == []


def styled(text: Text, style: str) -> str:
    return "|".join(text.plain[span.start : span.end].strip() for span in text.spans if span.style == style)


def test_unused_gpu_is_highlighted() -> None:
    unused = replace(FAILED, usage=GpuUsage(60, 59.5, 0, 0.0, 3), warnings=())
    text = job.render_result(unused, FOLDER)
    assert styled(text, "yellow") == "the GPU was never used: 0 % in 60 samples, at most 3 MiB"
    assert styled(job.render_result(replace(FAILED, warnings=()), FOLDER), "yellow") == ""
    told = replace(unused, warnings=("the GPU was never used: 60 samples saw it idle",))
    assert styled(job.render_result(told, FOLDER), "yellow") == "the GPU was never used: 60 samples saw it idle"


def test_result_of_a_run_is_shown() -> None:
    assert job.render_result(FAILED, FOLDER).plain.splitlines() == [
        "20261116-121530-3f9c failed with exit code 7: out of memory",
        "  time           1 min",
        "  GPU            Tesla K80, 11439 MiB, driver 470.1",
        "  GPU use        peak 97 %, mean 61 %, at most 10240 MiB, 60 samples",
        f"  outputs        3 files, 3.0 MiB in {FOLDER}/outputs",
        "  cost           $0.0123",
        "  warning        outputs/x was not fetched: a link that leads out",
    ]


def test_next_command_is_shown_where_needed() -> None:
    assert "follow         gpuinfra logs 20261116-121600-0001 -f" in job.render_result(RUNNING, FOLDER).plain
    left = replace(FAILED, outputs=Outputs(1, 1))
    assert "fetch          gpuinfra outputs 20261116-121530-3f9c" in job.render_result(left, FOLDER).plain
    gone = replace(left, machine="", warnings=(f"my-dsvm {DELETED_WITH_OUTPUTS}",))
    assert "gpuinfra outputs" not in job.render_result(gone, FOLDER).plain
    unbegun = job.render_result(replace(FAILED, started=None, outputs=Outputs(), exit_code=None), FOLDER).plain
    assert "outputs" not in unbegun.replace("outputs/x", "")
    assert unbegun.startswith("20261116-121530-3f9c failed: out of memory\n")


def test_result_includes_the_receipt(capsys: pytest.CaptureFixture[str]) -> None:
    receipt = Receipt("my-dsvm", OffProof.DEALLOCATED, NOW)
    job.show_result(FAILED, FOLDER, receipt, json=False)
    shown = capsys.readouterr()
    assert shown.out == ""  # stdout belongs to the job
    assert "failed with exit code 7" in shown.err
    assert "my-dsvm is off" in shown.err
    problem = Diagnostic(Code.GPU_NOT_USED, "the GPU was not used")
    job.show_result(FAILED, FOLDER, None, [problem], json=False)
    assert capsys.readouterr().err.endswith("error: the GPU was not used\n")
    job.show_result(FAILED, FOLDER, receipt, [problem], json=True)
    document = json.loads(capsys.readouterr().out)
    assert document["schemaVersion"] == 1
    assert document["run"]["exitCode"] == 7
    assert document["run"]["outputs"] == {
        "files": 3,
        "size": 3 << 20,
        "complete": True,
        "path": str(FOLDER / "outputs"),
    }
    assert document["receipt"]["off"] is True
    assert [each["code"] for each in document["diagnostics"]] == ["gpu-not-used"]


def test_runs_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    runs.show([RUNNING, FAILED], NOW, json=True, unheard={RUNNING.id})
    document = json.loads(capsys.readouterr().out)
    assert [run["id"] for run in document["runs"]] == [RUNNING.id, FAILED.id]
    runs.show([], NOW, json=True)
    assert json.loads(capsys.readouterr().out) == {"schemaVersion": 1, "runs": []}


def test_unfollowed_run_gets_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    runs.show([RUNNING, FAILED], NOW, json=False, unheard={RUNNING.id})
    assert f"`gpuinfra logs {RUNNING.id} -f`" in capsys.readouterr().err
    runs.show([RUNNING], NOW, json=False)
    assert capsys.readouterr().err == ""
    runs.show_one(RUNNING, FOLDER, json=False, unheard=True)
    assert f"`gpuinfra logs {RUNNING.id} -f`" in capsys.readouterr().err
    runs.show([], NOW, json=False)
    assert "no runs" in capsys.readouterr().err


def test_control_characters_are_removed(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = replace(
        FAILED,
        command=("a\x1b[2J",),
        script="b\r",
        reason="c\x07",
        warnings=("d\x9b",),
        git_commit="e\u202e",
        gpu={"models": ["f\x1b"]},
        image="g\n",
        environment=("h\x1b",),
    )
    runs.show([hostile], NOW, json=False)
    runs.show_one(hostile, Path("i\x1b"), json=False)
    job.show_result(hostile, Path("i\x1b"), json=False)
    runs.show_comparison(hostile, FAILED, [FileDifference("j\x1b", Unlike.SIZE, 1, 2)], json=False)
    runs.show_outputs(RunOutputs(hostile, Path("k\x1b"), [KeptFile("l\x1b", 1, "m\x1b")]), list_files=True, json=False)
    shown = capsys.readouterr()
    assert not set("\x1b\r\x9b\u202e\x07") & set(shown.out + shown.err)


# Comparison


def test_only_differences_are_shown() -> None:
    other = replace(
        FAILED,
        id="20261116-130000-0002",
        state=RunState.COMPLETED,
        exit_code=0,
        reason="",
        command=("python", "train.py"),
        git_commit="cd" * 20,
        git_dirty=False,
        timings={"upload": 1.5, "image": 9.0, "job": 61.0},
        environment=("TOKEN", "SEED"),
        gpu={**FAILED.gpu, "models": ["Tesla T4"]} if FAILED.gpu else None,
    )
    files = [
        FileDifference("a", Unlike.ONLY_A, 5, None),
        FileDifference("b/c", Unlike.SIZE, 1 << 20, 2 << 20),
        FileDifference("d", Unlike.CONTENT, 7, 7),
    ]
    rows = [line.split("  ") for line in runs.render_comparison(FAILED, other, files).plain.splitlines()]
    assert [[cell.strip() for cell in row if cell.strip()] for row in rows] == [
        [FAILED.id, other.id],
        ["state", "failed", "completed"],
        ["exit code", "7", "0"],
        ["reason", "out of memory", "-"],
        ["command", "python train.py --name 'a b'", "python train.py"],
        ["commit", "abababababab + changes", "cdcdcdcdcdcd"],
        ["GPU", "Tesla K80, 11439 MiB, driver 470.1", "Tesla T4, 11439 MiB, driver 470.1"],
        ["time of job", "1 min", "1 min 1 s"],
        ["time of image", "-", "9.0 s"],
        ["outputs/a", "5 B", "-"],
        ["outputs/b/c", "1.0 MiB", "2.0 MiB"],
        ["outputs/d", "7 B", "7 B, different content"],
    ]


def test_differences_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    other = replace(FAILED, id="2", exit_code=0, created=NOW + timedelta(days=1))
    runs.show_comparison(FAILED, other, [FileDifference("a", Unlike.ONLY_B, None, 5)], json=True)
    assert json.loads(capsys.readouterr().out) == {
        "schemaVersion": 1,
        "a": FAILED.id,
        "b": "2",
        "differences": [{"field": "exitCode", "a": 7, "b": 0}],
        "files": [{"name": "a", "difference": "only-b", "a": None, "b": 5}],
    }


def test_equal_runs_print_no_difference(capsys: pytest.CaptureFixture[str]) -> None:
    runs.show_comparison(FAILED, replace(FAILED, id="2"), [], json=False)
    assert capsys.readouterr().err == "no differences\n"


def test_every_field_is_compared_or_excluded() -> None:
    left_out = {"id", "created", "started", "ended", "job"}
    assert set(FAILED.as_json()) == {*runs.FIELDS, *left_out}


# Output of a job


Streams = Callable[..., tuple["Stream", "Stream"]]


class Stream(io.TextIOWrapper):
    """A text stream with bytes below it, on a terminal or on none."""

    def __init__(self, *, terminal: bool = False) -> None:
        self.bytes = io.BytesIO()
        self.bytes.isatty = lambda: terminal  # type: ignore[method-assign]
        super().__init__(self.bytes, "utf-8", write_through=True)


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    """Return a function that replaces this process's streams: while fixtures are set up it is too early."""

    def put(*, terminal: bool = False) -> tuple[Stream, Stream]:
        made = Stream(terminal=terminal), Stream(terminal=terminal)
        monkeypatch.setattr(sys, "stdout", made[0])
        monkeypatch.setattr(sys, "stderr", made[1])
        return made

    return put


SECOND = 1_000_000_000
START = int(NOW.timestamp()) * SECOND
FRAMES = [
    Frame(1, START, b"one\ntw"),
    Frame(2, START + 1500, b"\x1b[31mbad\xff\n"),
    Frame(1, START + SECOND, b"o\rthree\n"),
    Frame(2, START + SECOND, b""),
    Frame(1, START + SECOND, b"\n\0"),
]


def shown(streams: Streams, *, terminal: bool = False, **options: Any) -> tuple[bytes, bytes]:
    out, errors = streams(terminal=terminal)
    sink = job.TerminalSink(**options)
    for frame in FRAMES:
        sink(frame)
    sink.finish()
    return out.bytes.getvalue(), errors.bytes.getvalue()


def test_pipes_get_the_final_state_of_each_line(streams: Streams) -> None:
    assert shown(streams) == (b"one\nthree\n\n\0", b"\x1b[31mbad\xff\n")
    assert shown(streams, terminal=True, final=True)[0] == b"one\nthree\n\n\0"


def test_raw_output_has_every_byte(streams: Streams) -> None:
    assert shown(streams, raw=True) == (b"one\ntwo\rthree\n\n\0", b"\x1b[31mbad\xff\n")


def test_question_appears_in_a_pipe_before_its_line_ends(streams: Streams) -> None:
    out, _ = streams()
    sink = job.TerminalSink()
    sink(Frame(1, START, b"Name? "))
    assert eventually(lambda: out.bytes.getvalue() == b"Name? ")
    sink(Frame(1, START, b"Bob\n\r1%"))
    sink(Frame(1, START, b"\r2%"))
    assert out.bytes.getvalue() == b"Name? Bob\n"
    sink.finish()
    assert out.bytes.getvalue() == b"Name? Bob\n2%"


def test_json_keeps_stdout_for_the_object(streams: Streams) -> None:
    assert shown(streams, json=True) == (b"", b"one\n\x1b[31mbad\xff\nthree\n\n\0")


@pytest.mark.parametrize(("asked", "expected"), [(STDOUT, (True, False)), (STDERR, (False, True))])
def test_one_stream_can_be_selected(streams: Streams, asked: int, expected: tuple[bool, bool]) -> None:
    assert tuple(map(bool, shown(streams, only=(asked,)))) == expected


def test_timestamps_are_added_to_lines(streams: Streams) -> None:
    first, second = b"2026-11-16T12:15:30.000000Z ", b"2026-11-16T12:15:31.000000Z "
    assert shown(streams, timestamps=True) == (
        first + b"one\n" + second + b"three\n" + second + b"\n" + second + b"\0",
        b"2026-11-16T12:15:30.000001Z \x1b[31mbad\xff\n",
    )


def test_messages_start_on_a_new_line_on_a_screen(streams: Streams) -> None:
    # The last byte on the screen was not a newline.
    assert shown(streams, terminal=True) == (b"one\ntwo\rthree\n\n\0", b"\x1b[31mbad\xff\n" + job.RESET + b"\n")


def test_live_lines_are_hidden_while_output_is_on_the_screen(streams: Streams) -> None:
    out, _ = streams(terminal=True)
    terminal = Terminal()
    with ProgressView(console=console_on(terminal), clock=lambda: 1.0) as progress:
        progress.begin("job", "running")
        sink = job.TerminalSink(progress=progress)
        sink(Frame(1, START, b"tw"))
        hidden = terminal.getvalue()
        assert screen(hidden) == []
        assert out.bytes.getvalue() == b"tw"
        sink.finish()
        progress.begin("outputs", "fetching")
        assert terminal.getvalue() == hidden + "\n"


def test_live_lines_stay_when_output_goes_to_a_file(streams: Streams) -> None:
    out, _ = streams()
    terminal = Terminal()
    with ProgressView(console=console_on(terminal), clock=lambda: 1.0) as progress:
        progress.begin("job", "running")
        job.TerminalSink(progress=progress)(Frame(1, START, b"two\n"))
        assert "running" in screen(terminal.getvalue())[-1]
    assert out.bytes.getvalue() == b"two\n"


def test_job_without_anything_unusual_gets_one_line_on_a_terminal() -> None:
    run = replace(FAILED, state=RunState.COMPLETED, exit_code=0, reason="", warnings=(), simulated=True)
    text = job.render_brief(run, FOLDER, 200).plain
    assert text == (
        "20261116-121530-3f9c completed in 1 min, on 1 Tesla K80, GPU at most 97 %, $0.0123, "
        "3 files, 3.0 MiB in .gpuinfra/runs/20261116-121530-3f9c/outputs (simulated)"
    )
    assert all(len(line) <= 60 for line in job.render_brief(run, FOLDER, 60).plain.splitlines())
    assert text.count("simulated") == 1
