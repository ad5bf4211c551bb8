"""States of runs, environments of jobs and GPU samples on the target, without starting a job."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from gpuinfra.remote import closing, container_watcher, home, jobs, processes, samples, states, supervisor, trees
from gpuinfra.remote.run_folder import HEARTBEAT
from gpuinfra.remote.wire import RefusedError
from gpuinfra.runner.job import StopReason
from gpuinfra.runner.remote_runs import parse_job_end


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / ".gpuinfra" / "runs"


def test_unknown_run_is_over(runs: Path) -> None:
    assert states.is_over("r1")


def test_run_in_preparation_is_over_after_a_time(runs: Path) -> None:
    (runs / "r1").mkdir(parents=True)
    assert not states.is_over("r1")
    os.utime(runs / "r1", (0, time.time() - states.ABANDONED_SECONDS - 5))
    assert states.is_over("r1")


@pytest.mark.parametrize(("ago", "expected"), [(0.0, False), (states.SILENT_SECONDS + 5, True)])
def test_run_in_preparation_is_deserted_when_its_client_is_gone(runs: Path, ago: float, expected: bool) -> None:
    (runs / "r1").mkdir(parents=True)
    assert not states.is_deserted("r1")
    (runs / "r1" / HEARTBEAT).write_text("{}")
    os.utime(runs / "r1" / HEARTBEAT, (0, time.time() - ago))
    assert states.is_deserted("r1") is expected
    states.write("r1", {"kind": "process", "started": 1.0})
    assert not states.is_deserted("r1")


def test_process_job_without_a_supervisor_is_lost(runs: Path) -> None:
    (runs / "r1").mkdir(parents=True)
    states.write("r1", {"kind": "process", "started": 1.0})
    lock = states.take("r1")
    assert lock is not None
    assert not states.is_over("r1")
    assert states.take("r1") is None
    os.close(lock)
    assert states.is_over("r1")
    found = parse_job_end(states.must_read("r1"))
    assert found is not None
    assert (found.stop_reason, found.exit_code) == (StopReason.LOST, 255)


def test_ended_job_is_over(runs: Path) -> None:
    (runs / "r1").mkdir(parents=True)
    states.write("r1", {"kind": "process", "started": 1.0, "ended": 2.0, "exitCode": 7, "how": "exited"})
    assert states.is_over("r1")
    assert states.check("r1")["alive"] is False


def test_state_replaces_a_longer_one(runs: Path) -> None:
    (runs / "r1").mkdir(parents=True)
    states.write("r1", {"kind": "process", "detail": "x" * 9000})
    states.reserve("r1")
    states.write("r1", {"kind": "process"})
    assert states.read("r1") == {"kind": "process"}
    states.write("r1", {"kind": "container"})
    assert states.read("r1") == {"kind": "container"}


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc", "a\0"])
def test_invalid_run_names_are_refused(name: str) -> None:
    with pytest.raises(RefusedError):
        home.run_folder(name)


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        (None, ""),
        ({"count": None, "ids": []}, "7"),
        ({"count": 2, "ids": []}, "0,1"),
        ({"count": 0, "ids": []}, ""),
        ({"count": None, "ids": ["3", "GPU-1"]}, "3,GPU-1"),
    ],
)
def test_job_sees_only_its_gpus(monkeypatch: pytest.MonkeyPatch, gpus: dict[str, object] | None, expected: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    found = supervisor.environment(
        {"gpus": gpus, "environment": {"A": "1", "B": "1"}, "folder": "/project"}, {"B": "secret"}
    )
    assert found["CUDA_VISIBLE_DEVICES"] == expected
    assert (found["A"], found["B"], found["HOME"]) == ("1", "secret", os.environ["HOME"])


def test_summary_ignores_incomplete_samples(tmp_path: Path) -> None:
    file = tmp_path / "samples"
    file.write_bytes(
        b"100 0 0 10\n100 1 50 20\n\xff\xfe\n102 0 100 4000\n102 1 50\n104 0 101 5\nx 0 1 2\n104 0 0 7\n106 0 9"
    )
    assert samples.summary(str(file)) == {
        "samples": 4,
        "seconds": 4.0,
        "peakUtilization": 100,
        "meanUtilization": 37.5,
        "peakMemoryMib": 4000,
    }


def test_summary_without_samples_is_empty(tmp_path: Path) -> None:
    assert samples.summary(str(tmp_path / "none"))["samples"] == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:01:00.5Z", 60.5),
        ("2026-11-16T12:15:30.123456789Z", 1794831330.1234567),
        ("2026-11-16T12:15:30Z", 1794831330.0),
        ("0001-01-01T00:00:00Z", None),
        (None, None),
        ("soon", None),
    ],
)
def test_times_of_the_engine_are_parsed(text: object, expected: float | None) -> None:
    assert container_watcher.parse_time(text) == (pytest.approx(expected) if expected else expected)


class Sent:
    """A wire that keeps what was sent."""

    def send_json(self, value: Any) -> None:
        self.value = value


def close(sent: Sent) -> bool:
    jobs.runs(sent, {"close": True})  # type: ignore[arg-type]
    return bool(sent.value["closed"])


def test_machine_refuses_jobs_while_it_is_closed(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []

    def hold(work: Any, lock: int) -> dict[str, Any]:
        held.append(os.dup(lock))  # it has the same lock
        return {}

    monkeypatch.setattr(processes, "run", hold)
    with closing.accepting_jobs(), closing.accepting_jobs():
        assert not close(Sent()), "a job is being started"
    assert close(Sent())
    for verb, request in ((jobs.start, {"order": {"run": "r1"}}), (trees.put, {"run": "r1"})):
        with pytest.raises(RefusedError, match="switched off"):
            verb(Sent(), request)  # type: ignore[arg-type]
    assert not runs.exists()
    os.close(held[0])
    with closing.accepting_jobs():
        pass


def test_machine_closes_only_when_all_outputs_are_fetched(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "run", lambda *_: {})
    outputs = runs / "r1" / "outputs"
    outputs.mkdir(parents=True)
    sent = Sent()
    assert not close(sent), "it is being prepared"
    states.write("r1", {"kind": "process", "started": 1.0, "ended": 2.0, "exitCode": 0, "how": "exited"})
    (outputs / "model").touch()
    assert not close(sent)
    assert sent.value["runs"] == [{"run": "r1", "over": True, "outputs": True}]
    (outputs / "model").unlink()
    jobs.runs(sent, {})  # type: ignore[arg-type]
    assert sent.value["closed"] is False, "it was not asked to"
    assert close(sent)
