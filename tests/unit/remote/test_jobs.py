"""States of runs, environments of jobs and GPU samples on the target, without starting a job."""

import os
import time
from pathlib import Path

import pytest

from gpuinfra.remote import container_watcher, home, samples, states, supervisor
from gpuinfra.remote.wire import RefusedError
from gpuinfra.runner.jobs.job import StopReason
from gpuinfra.runner.jobs.remote_runs import parse_job_end


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
    found = supervisor.environment({"gpus": gpus, "environment": {"A": "1", "B": "1"}}, {"B": "secret"})
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
