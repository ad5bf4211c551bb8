"""Recorded runs, listed by the installed program."""

import json
import subprocess
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpuinfra.models.run import STDERR, STDOUT, Frame, JobRef, Outputs, Run, RunState
from gpuinfra.runner.log import LogFile
from gpuinfra.store import History, run_folder
from gpuinfra.workspace import state_folder
from tests import program
from tests.e2e.user import PROGRAM, inherited, run_program

NOW = datetime(2026, 11, 16, 12, 15, 30, tzinfo=UTC)
OLD = Run(
    id="20261115-080000-aaaa",
    target="my_dsvm",
    type="remotedocker",
    configuration="my_dsvm",
    command=("python", "train.py", "--epochs", "3"),
    state=RunState.FAILED,
    created=NOW - timedelta(days=1),
    script="train.py",
    started=NOW - timedelta(days=1),
    ended=NOW - timedelta(days=1, seconds=-90),
    exit_code=7,
    job=JobRef("container", "c0ffee"),
    outputs=Outputs(3, 12, complete=True),
)
DONE = replace(
    OLD,
    id="20261116-121530-bbbb",
    target="local",
    type="local",
    configuration="local",
    state=RunState.COMPLETED,
    created=NOW,
    exit_code=0,
    command=("python", "train.py"),
)
GOING = replace(
    DONE,
    id="20261116-121600-cccc",
    target="lab",
    type="remote",
    configuration="lab",
    state=RunState.RUNNING,
    created=NOW + timedelta(seconds=30),
    exit_code=None,
    ended=None,
    outputs=Outputs(),
)
PRINTED = [
    Frame(STDOUT, 1_789_000_000_000_000_000, b"epoch 1\n\xff\0"),
    Frame(STDERR, 1_789_000_000_500_000_000, b"\x1b[31mcareful\n"),
    Frame(STDOUT, 1_789_000_001_000_000_000, b"epoch 2\n"),
]


class Workspace:
    """A project with three runs in its history."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = state_folder(folder)
        history = History(self.state)
        for run in (OLD, GOING, DONE):
            history.save(run)
            with closing(LogFile(run_folder(self.state, run.id) / "log")) as log:
                log.try_lock()
                for frame in PRINTED:
                    log.append(frame)
        self.write(OLD, {"model.bin": "weights", "logs/a.txt": "12345", "only-old": ""})
        self.write(DONE, {"model.bin": "WEIGHTS", "logs/a.txt": "123456"})
        (self.outputs(DONE) / "latest").symlink_to("model.bin")
        (self.outputs(DONE) / "model.bin").chmod(0o640)

    def outputs(self, run: Run) -> Path:
        return run_folder(self.state, run.id) / "outputs"

    def write(self, run: Run, files: dict[str, str]) -> None:
        for name, content in files.items():
            path = self.outputs(run) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)

    def __call__(self, *words: str, exit_code: int = 0) -> subprocess.CompletedProcess[str]:
        done = run_program(*words, folder=self.folder)
        assert "Traceback" not in done.stderr, done.stderr
        assert done.returncode == exit_code, done.stdout + done.stderr
        return done

    def bytes(self, *words: str, exit_code: int = 0) -> tuple[bytes, bytes]:
        done = program.run(*words, cwd=self.folder, env=inherited(), stdin=b"")
        assert done.returncode == exit_code, done.stderr
        return done.stdout, done.stderr

    def json(self, *words: str, exit_code: int = 0) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self(*words, "--json", exit_code=exit_code).stdout)
        assert document["schemaVersion"] == 1
        return document

    def problem(self, *words: str, exit_code: int = 2) -> dict[str, str]:
        (diagnostic,) = self.json(*words, exit_code=exit_code)["diagnostics"]
        assert diagnostic["help"]
        return dict(diagnostic)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path)


def test_runs_are_listed_newest_first_and_filtered(workspace: Workspace) -> None:
    shown = workspace("runs")
    assert [line.split()[0] for line in shown.stdout.splitlines()] == ["ID", GOING.id, DONE.id, OLD.id]
    # Its client is gone, so the recorded state may be outdated.
    assert shown.stderr.splitlines() == [
        f"{GOING.id} was running at last contact; `gpuinfra logs {GOING.id} -f` connects again"
    ]
    assert [run["id"] for run in workspace.json("runs")["runs"]] == [GOING.id, DONE.id, OLD.id]
    assert [run["id"] for run in workspace.json("runs", "--limit", "1")["runs"]] == [GOING.id]
    assert [run["id"] for run in workspace.json("runs", "--target", "my_dsvm")["runs"]] == [OLD.id]
    assert workspace.json("runs", "--target", "other")["runs"] == []


def test_followed_run_gets_no_hint(workspace: Workspace) -> None:
    with closing(LogFile(run_folder(workspace.state, GOING.id) / "log")) as log:
        assert log.try_lock()
        assert workspace("runs").stderr == ""
        assert workspace("logs", GOING.id[:15], "--stream", "stderr").stderr == "\x1b[31mcareful\n"


def test_runs_of_an_empty_workspace_prints_a_message(tmp_path: Path) -> None:
    done = run_program("runs", folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert "no runs" in done.stderr
    assert json.loads(run_program("runs", "--json", folder=tmp_path).stdout) == {"schemaVersion": 1, "runs": []}
    assert list(tmp_path.iterdir()) == []  # listing creates nothing


def test_runs_show_prints_one_run(workspace: Workspace) -> None:
    shown = workspace("runs", "show", "20261115").stdout
    assert shown.startswith(f"{OLD.id}  failed\n  command        python train.py --epochs 3\n")
    run = workspace.json("runs", "show", "last")["run"]
    assert (run["id"], run["state"]) == (GOING.id, "running")
    assert (workspace.folder / run["log"]).is_file()


@pytest.mark.parametrize("words", [("runs", "show"), ("logs", "-f"), ("cancel",), ("outputs",)])
def test_unknown_run_suggests_the_nearest(workspace: Workspace, words: tuple[str, ...]) -> None:
    found = workspace.problem(*words, "20261116-121530-bbbc")
    assert found["code"] == "no-such-run"
    assert found["help"].startswith(f"did you mean `{DONE.id}`")


def test_ambiguous_run_id_is_refused(workspace: Workspace) -> None:
    found = workspace.problem("runs", "compare", "last", "20261116")
    assert found["code"] == "no-such-run"
    assert "2 runs begin with" in found["note"]


def test_unknown_subcommand_and_invalid_limit_are_refused(workspace: Workspace) -> None:
    assert workspace.problem("runs", "shaw", "last")["help"] == "did you mean `show`?"
    assert workspace.problem("runs", "--limit", "0")["code"] == "usage"


def test_runs_compare_prints_differences(workspace: Workspace) -> None:
    lines = workspace("runs", "compare", OLD.id, DONE.id).stdout.splitlines()
    labels = [line[:20].strip() for line in lines[1:]]
    assert "exit code" in labels
    assert "command" in labels
    assert "image" not in labels
    compared = workspace.json("runs", "compare", OLD.id, DONE.id)
    assert {each["field"] for each in compared["differences"]} >= {"exitCode", "command", "target"}
    assert {each["name"]: each["difference"] for each in compared["files"]} == {
        "latest": "only-b",
        "logs/a.txt": "size",
        "model.bin": "content",
        "only-old": "only-a",
    }


def test_log_is_printed_byte_for_byte(workspace: Workspace) -> None:
    assert workspace.bytes("logs", OLD.id) == (b"epoch 1\n\xff\0epoch 2\n", b"\x1b[31mcareful\n")
    assert workspace.bytes("logs", "20261115", "--stream", "stdout") == (b"epoch 1\n\xff\0epoch 2\n", b"")
    stamped, _ = workspace.bytes("logs", OLD.id, "--timestamps")
    assert stamped.splitlines()[0] == b"2026-09-10T00:26:40.000000Z epoch 1"
    out, errors = workspace.bytes("logs", OLD.id, "--json")
    assert json.loads(out)["run"]["id"] == OLD.id
    assert errors == b"epoch 1\n\xff\0\x1b[31mcareful\nepoch 2\n"


def test_part_of_a_log_is_printed(workspace: Workspace) -> None:
    assert workspace.bytes("logs", OLD.id, "--tail", "2") == (b"\xff\0epoch 2\n", b"\x1b[31mcareful\n")
    assert workspace.bytes("logs", OLD.id, "--tail", "1", "--stream", "stderr") == (b"", b"\x1b[31mcareful\n")
    assert workspace.bytes("logs", OLD.id, "-f", "--tail", "0", exit_code=7)[0] == b""
    assert workspace.bytes("logs", OLD.id, "--since", "1h") == (b"", b"")
    assert workspace.bytes("logs", OLD.id, "--since", "2026-09-10")[0] == b"epoch 1\n\xff\0epoch 2\n"
    assert "--since soon" in workspace("logs", OLD.id, "--since", "soon", exit_code=2).stderr


def test_followed_log_exits_with_the_jobs_exit_code(workspace: Workspace) -> None:
    assert workspace.bytes("logs", OLD.id, "-f", exit_code=7)[0] == b"epoch 1\n\xff\0epoch 2\n"
    assert workspace.bytes("logs", DONE.id, "--follow")[0] == b"epoch 1\n\xff\0epoch 2\n"


def test_log_of_an_unfinished_run_says_how_to_follow_it(workspace: Workspace) -> None:
    out, errors = workspace.bytes("logs", "last")
    assert out == b"epoch 1\n\xff\0epoch 2\n"
    assert f"`gpuinfra logs {GOING.id} -f`".encode() in errors
    assert b"its output was fetched until 2026-09-10 00:26:4" in errors


def test_closed_pipe_ends_logs_without_an_error(workspace: Workspace) -> None:
    with closing(LogFile(run_folder(workspace.state, DONE.id) / "log")) as log:
        log.try_lock()
        for number in range(3000):
            log.append(Frame(STDOUT, 1_789_000_002_000_000_000, b"%d\n" % number * 40))
    words = f'"{PROGRAM}" logs {DONE.id} | head -c 10'
    done = subprocess.run(
        ["sh", "-c", words], cwd=workspace.folder, env=inherited(), capture_output=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == (b"epoch 1\n\xff\0", b"\x1b[31mcareful\n")


def test_cancel_of_a_finished_run_reports_its_state(workspace: Workspace) -> None:
    done = workspace("cancel", OLD.id)
    assert done.stdout == ""
    assert done.stderr.startswith(f"the job had already ended:\n{OLD.id} failed with exit code 7\n")
    assert workspace.json("cancel", OLD.id)["run"]["exitCode"] == 7
    for grace in ("5", "-3s"):
        assert workspace.problem("cancel", OLD.id, f"--grace={grace}")["code"] == "usage"


def test_outputs_prints_folder_and_files(workspace: Workspace) -> None:
    done = workspace("outputs", DONE.id)
    assert (workspace.folder / done.stdout.strip()).samefile(workspace.outputs(DONE))
    assert done.stderr == "3 files, 13 B\n"
    assert workspace("outputs", DONE.id, "--list").stdout.splitlines() == [
        "0 B  latest -> model.bin",
        "6 B  logs/a.txt",
        "7 B  model.bin",
    ]
    document = workspace.json("outputs", DONE.id)
    assert (document["run"], document["complete"], document["copied"]) == (DONE.id, True, False)
    assert document["files"][0] == {"name": "latest", "size": 0, "link": "model.bin"}


def test_outputs_are_copied_to_a_folder(workspace: Workspace) -> None:
    folder = workspace.folder / "results"
    assert workspace("outputs", DONE.id, "results").stdout == "results\n"
    assert (folder / "model.bin").stat().st_mode & 0o777 == 0o640
    assert (folder / "latest").readlink() == Path("model.bin")
    workspace("outputs", DONE.id, "results")  # the same once more
    found = workspace.problem("outputs", OLD.id, "results")
    assert found["code"] == "file-exists"
    assert "logs/a.txt" in found["note"]
    assert (folder / "model.bin").read_text() == "WEIGHTS"
    assert workspace.json("outputs", OLD.id, "results", "--yes")["copied"] is True
    assert (folder / "model.bin").read_text() == "weights"


def test_unreadable_history_is_reported_with_its_fix(workspace: Workspace) -> None:
    (workspace.state / "store.db").write_bytes(b"nonsense" * 1000)
    for words in (("runs",), ("cancel", "last")):
        found = workspace.problem(*words, exit_code=1)
        assert found["code"] == "file-unreadable"
        assert "store.db" in found["note"]
