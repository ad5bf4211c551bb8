"""The runs that the guest agent finds, and how it ends them."""

import fcntl
import json
import os
import time
from pathlib import Path

import pytest

from gpuinfra.remote.agent.decide import Run
from gpuinfra.remote.agent.guest import Program
from gpuinfra.remote.agent.runs import Runs
from tests.unit.remote.agent.world import make_run


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / ".gpuinfra" / "runs").mkdir(parents=True)
    return tmp_path


@pytest.fixture
def no_docker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Program, "ask", lambda self: None)


@pytest.mark.usefixtures("no_docker")
def test_process_job_is_alive_while_its_supervisor_holds_the_lock(home: Path) -> None:
    folder = make_run(home, "r1", state={"kind": "process", "started": time.time()}, attended={"afterRun": "delete"})
    runs = Runs(str(home), booted=time.time() - 60)
    assert [run.alive for run in runs.look()] == [False]
    with (folder / "alive").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (run,) = runs.look()
        assert (run.alive, run.after_run, run.of_this_boot, run.ended_age) == (True, "delete", True, None)
        (folder / "state.json").write_text(json.dumps({"kind": "process", "ended": time.time() - 50, "started": 7}))
        (run,) = runs.look()
    assert not run.alive
    assert run.ended_age == pytest.approx(50, abs=5)
    assert not run.of_this_boot


@pytest.mark.parametrize(
    ("said", "booted", "alive"),
    [
        ("gpuinfra-r1\ngpuinfra-of-another-machine\n", 0.0, [True, False, False]),
        ("gpuinfra-r1\ngpuinfra-r2\n", 9e9, [True, True, False]),
        ("", 0.0, [False, False, False]),
        # A silent engine may still have its containers, except those of an earlier boot.
        (None, 0.0, [True, False, False]),
        (None, 9e9, [False, False, False]),
    ],
)
def test_container_job_is_alive_while_the_engine_says_so(
    home: Path, monkeypatch: pytest.MonkeyPatch, said: str | None, booted: float, alive: list[bool]
) -> None:
    monkeypatch.setattr(Program, "ask", lambda self: said)
    make_run(home, "r1", state={"kind": "container", "started": time.time()})
    make_run(home, "r2")
    make_run(home, "r3", state={"kind": "container", "started": time.time(), "ended": time.time()})
    found = Runs(str(home), booted).look()
    assert [run.alive for run in found] == alive
    assert [run.container for run in found if run.alive] == [True] * sum(alive)


def test_job_is_alive_until_its_end_is_recorded(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Program, "ask", lambda self: "")
    folder = make_run(home, "r1", state={"kind": "container", "started": 7.0})
    with (folder / "alive").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (run,) = Runs(str(home), 0.0).look()
    assert run.alive


@pytest.mark.usefixtures("no_docker")
def test_invalid_run_folders_are_ignored(home: Path) -> None:
    folder = home / ".gpuinfra" / "runs"
    (folder / "a-file").write_text("x")
    (folder / "a-link").symlink_to("/nowhere")
    (folder / ".gone-r9").mkdir()
    (folder / "b\udcff").mkdir()
    for number, text in enumerate(("{", "[]", '"x"', "[" * 50_000, "\0", '{"ended": {}}', '{"started": 1e400}')):
        make_run(home, f"r{number}")
        (folder / f"r{number}" / "state.json").write_text(text)
        (folder / f"r{number}" / "attended.json").write_text(text)
    pipes = make_run(home, "pipes")
    for name in ("state.json", "attended.json", "alive", "control"):
        os.mkfifo(pipes / name)
    (make_run(home, "folders") / "state.json").mkdir()
    found = Runs(str(home), booted=0.0).look()
    assert {"a-file", "a-link", ".gone-r9"}.isdisjoint(run.id for run in found)
    assert not [run for run in found if run.alive or run.seconds_to_finish is not None]
    assert len(found) == 10


def test_stop_request_and_reason_are_sent_to_a_job(home: Path) -> None:
    folder = make_run(home, "r1")
    os.mkfifo(folder / "control")
    listener = os.open(folder / "control", os.O_RDWR | os.O_NONBLOCK)
    try:
        Runs(str(home), 0.0).end(Run("r1", alive=True), "lease over", "at noon", 20.0)
        assert os.read(listener, 100) == b"20\n"
    finally:
        os.close(listener)
    assert json.loads((folder / "ending.json").read_text()) == {"how": "lease over", "detail": "at noon"}
    # A job whose folder was deleted meanwhile does not stop the rest.
    Runs(str(home), 0.0).end(Run("r2", alive=True), "lease over", "at noon", 20.0)
