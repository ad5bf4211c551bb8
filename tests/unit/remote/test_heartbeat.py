"""Heartbeats of clients, and the reasons why a machine stops a job, as stored in a run's folder."""

import io
import json
import os
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuinfra.remote import container_watcher, heartbeat, jobs, outputs, run_folder, samples, states, supervisor, trees
from gpuinfra.remote.staging import digest_of
from gpuinfra.remote.wire import DATA, HEADER, JSON, Wire
from gpuinfra.runner.job import StopReason
from gpuinfra.runner.remote_runs import parse_job_end
from tests.sshd import eventually

LONG_AGO = time.time() - 1000
CONTAINER = {"kind": "container", "container": "c1", "docker": ["false"], "started": 1.0}


@pytest.fixture(autouse=True)
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".gpuinfra" / "runs" / "r1"
    folder.mkdir(parents=True)
    return folder


def answer(verb: Callable[..., None], **request: Any) -> dict[str, Any]:
    output = io.BytesIO()
    verb(Wire(io.BytesIO(), output), {"run": "r1", **request})
    found: dict[str, Any] = json.loads(output.getvalue()[HEADER.size :])
    return found


def last_heartbeat(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "attended.json").read_text())
    return found


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def write_stop_reason(run: Path, how: str, detail: str = "") -> None:
    (run / "ending.json").write_text(json.dumps({"how": how, "detail": detail}))


def write_state(**state: Any) -> None:
    states.write("r1", {"kind": "process", "started": 1.0, **state})


# Heartbeats


def test_modification_time_is_that_of_the_last_heartbeat(run: Path) -> None:
    answer(heartbeat.answer_heartbeat, afterRun="deallocate")
    assert last_heartbeat(run) == {"afterRun": "deallocate"}
    os.utime(run / "attended.json", (LONG_AGO, LONG_AGO))
    answer(heartbeat.answer_heartbeat, afterRun="deallocate")
    assert time.time() - (run / "attended.json").stat().st_mtime < 60


def test_heartbeat_without_after_run_keeps_the_recorded_one(run: Path) -> None:
    answer(heartbeat.answer_heartbeat, afterRun="delete")
    answer(heartbeat.answer_heartbeat)
    assert last_heartbeat(run) == {"afterRun": "delete"}


def test_heartbeat_after_a_detach_ends_the_detach(run: Path) -> None:
    answer(heartbeat.answer_heartbeat, afterRun="deallocate", detached=True)
    assert last_heartbeat(run) == {"afterRun": "deallocate", "detached": True}
    answer(heartbeat.answer_heartbeat)
    assert last_heartbeat(run) == {"afterRun": "deallocate"}


def test_run_of_submit_leaves_the_machine_on(run: Path) -> None:
    answer(heartbeat.answer_heartbeat)
    assert last_heartbeat(run) == {"afterRun": None}
    assert not heartbeat.ends_machine("r1")


def test_late_heartbeat_does_not_recreate_a_removed_run(run: Path) -> None:
    run.rmdir()
    assert answer(heartbeat.answer_heartbeat, afterRun="delete")["state"] is None
    assert not run.exists()


def test_incomplete_heartbeat_file_is_replaced(run: Path) -> None:
    (run / "attended.json").write_text('{"afterRun": "del')
    answer(heartbeat.answer_heartbeat, afterRun="delete")
    assert last_heartbeat(run) == {"afterRun": "delete"}


def test_answer_has_the_state_of_the_job(run: Path) -> None:
    write_state(pid=7)
    write_stop_reason(run, "evicted", "at 12:00")
    (run / "samples").write_text(f"{int(time.time()) - 30} 0 5 100\n{int(time.time())} 0 4 100\n")
    found = answer(heartbeat.answer_heartbeat)
    assert (found["state"]["pid"], found["ending"]) == (7, {"how": "evicted", "detail": "at 12:00"})
    assert 29 <= found["gpuBusy"] <= 40
    assert abs(found["now"] - time.time()) < 10


def test_heartbeat_does_not_change_whether_a_run_is_over(run: Path) -> None:
    write_state(ended=2.0, exitCode=0, how="exited")
    answer(heartbeat.answer_heartbeat, afterRun="deallocate")
    assert states.is_over("r1")
    assert answer(jobs.runs)["runs"] == [{"run": "r1", "over": True, "outputs": False}]


# Transfers


def message(kind: bytes, payload: bytes) -> bytes:
    return HEADER.pack(kind, len(payload)) + payload


def heartbeat_age_after(verb: Callable[..., None], messages: bytes, run: Path, **request: Any) -> float:
    """Return the age of the last heartbeat after a call with these messages."""
    os.utime(run / "attended.json", (LONG_AGO, LONG_AGO))
    verb(Wire(io.BytesIO(messages), io.BytesIO()), {"run": "r1", **request})
    return time.time() - (run / "attended.json").stat().st_mtime


def test_fetching_outputs_counts_as_a_heartbeat(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run / "outputs").mkdir()
    (run / "outputs" / "model").write_text("weights")
    answer(heartbeat.answer_heartbeat, afterRun="delete")
    messages = message(DATA, b"") * 2
    assert heartbeat_age_after(outputs.outputs, messages, run, final=True) > 900  # too soon after the last one
    monkeypatch.setattr(heartbeat, "TRANSFER_SECONDS", -1.0)
    assert heartbeat_age_after(outputs.outputs, messages, run, final=True) < 60


def test_uploading_a_project_counts_as_a_heartbeat(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "TRANSFER_SECONDS", -1.0)
    # Leave out the heartbeat at the beginning of an upload.
    monkeypatch.setattr(heartbeat, "record", lambda *_: None)
    (run / "attended.json").write_text('{"afterRun": "delete"}')
    content = b"print()"
    entry = ["train.py", "f", 0o644, len(content), digest_of(content)]
    listed = message(DATA, zlib.compress(json.dumps([entry]).encode())) + message(JSON, b"{}")
    messages = listed + message(DATA, b"\0" + content) + message(JSON, b"{}")
    request = {"project": "p", "digest": "d", "heartbeat": {}}
    assert heartbeat_age_after(trees.put, messages, run, **request) < 60
    assert (run.parents[1] / "projects" / "p" / "slot-1" / "tree" / "train.py").read_bytes() == content


# The GPU


@pytest.mark.parametrize(
    "text",
    ["", "100 0 4 10\n", "nonsense\n100 0\n", "100 0 101 10\n"],
    ids=["empty", "idle", "nonsense", "no percentage"],
)
def test_idle_gpu_was_never_busy(tmp_path: Path, text: str) -> None:
    (tmp_path / "samples").write_text(text)
    assert samples.busy_ago(str(tmp_path / "samples")) is None


def test_last_busy_sample_counts(tmp_path: Path) -> None:
    now = int(time.time())
    lines = [f"{now - 20000 + 2 * number} 0 {50 if number < 9500 else 0} 10\n" for number in range(10000)]
    (tmp_path / "samples").write_text("".join(lines))
    assert samples.busy_ago(str(tmp_path / "samples")) == pytest.approx(20000 - 2 * 9499, abs=5)
    assert samples.busy_ago(str(tmp_path / "none")) is None


# Stop reasons


@pytest.mark.parametrize("how", sorted(run_folder.BY_MACHINE))
def test_every_reason_of_the_machine_is_known_to_the_runner(how: str) -> None:
    assert StopReason(how).is_by_machine


def test_every_reason_of_the_runner_is_known_to_the_machine() -> None:
    assert {how.value for how in StopReason if how.is_by_machine} == run_folder.BY_MACHINE


@pytest.mark.parametrize("text", ["", "[]", '{"how": "because"}', '{"detail": "x"}', "\udcff"])
def test_invalid_stop_reason_is_ignored(run: Path, text: str) -> None:
    (run / "ending.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert states.read_stop_reason("r1") is None
    assert states.stop_reason_at("r1", time.time()) == {}


def test_stop_reason_does_not_apply_to_a_job_that_ended_before(run: Path) -> None:
    write_stop_reason(run, "idle")
    assert states.stop_reason_at("r1", time.time()) == {"how": "idle"}
    assert states.stop_reason_at("r1", LONG_AGO) == {}


def test_lost_process_job_reports_the_stop_reason(run: Path) -> None:
    write_state()
    write_stop_reason(run, "evicted", "Azure wants it back")
    assert states.is_over("r1")
    found = parse_job_end(states.must_read("r1"))
    assert found is not None
    assert (found.stop_reason, found.detail, found.exit_code) == (StopReason.EVICTED, "Azure wants it back", 255)


def test_unwatched_container_reports_the_stop_reason(run: Path) -> None:
    states.write("r1", CONTAINER)
    assert "ending" not in answer(jobs.state)
    write_stop_reason(run, "cost cap")
    assert answer(jobs.state)["ending"] == {"how": "cost cap", "detail": ""}
    states.write("r1", {**CONTAINER, "ended": 2.0, "exitCode": 0, "how": "exited"})
    assert "ending" not in answer(jobs.state)


@pytest.mark.parametrize(
    ("before", "seconds_after", "expected"),
    [({}, 60, "lease over"), ({}, -86400, "exited"), ({"how": "timed out"}, 60, "timed out")],
    ids=["asked", "long before", "out of time"],
)
def test_watcher_records_why_a_container_ended(
    run: Path, before: dict[str, str], seconds_after: float, expected: str
) -> None:
    write_stop_reason(run, "lease over", "since 12:00")
    kept = container_watcher.ContainerWatcher({"run": "r1", "container": "c1"}, {**CONTAINER, **before})
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + seconds_after))
    found = kept._ended({"Status": "exited", "ExitCode": 143, "FinishedAt": at})
    assert (found["how"], found.get("detail")) == (expected, "since 12:00" if expected == "lease over" else None)


@pytest.mark.parametrize(
    ("asked", "expected"), [("cancelled", "idle"), ("timed out", "timed out"), ("", "exited")], ids=str
)
def test_supervisor_records_why_a_job_was_stopped(run: Path, asked: str, expected: str) -> None:
    class Child:
        def wait(self) -> int:
            return -15

    class Log:
        missing = 0

        def end(self) -> None:
            pass

    write_stop_reason(run, "idle")
    write_state()
    made = supervisor.Supervisor({"run": "r1", "folder": "/nowhere"}, {})
    made._child, made._log, made._ending, made._oom_kills = Child(), Log(), asked, 1 << 60  # type: ignore[assignment]
    made._end()
    assert states.must_read("r1")["how"] == expected


# Removal


def test_removing_a_job_keeps_only_its_state(run: Path) -> None:
    write_state(ended=2.0, exitCode=0, how="exited")
    write_stop_reason(run, "idle")
    answer(heartbeat.answer_heartbeat, afterRun="delete")
    answer(jobs.forget)
    assert names(run) == ["state.json"]


@pytest.mark.parametrize("after_run", [None, "keep"])
def test_removed_run_leaves_nothing(run: Path, after_run: str | None) -> None:
    write_state(ended=2.0, exitCode=0, how="exited")
    write_stop_reason(run, "idle")
    answer(heartbeat.answer_heartbeat, afterRun=after_run)
    answer(jobs.forget_run)
    assert names(run.parent) == []


def test_removed_run_that_turns_the_machine_off_stays_over(run: Path) -> None:
    write_state(ended=2.0, exitCode=3, how="exited")
    (run / "outputs").mkdir()
    (run / "outputs" / "model").write_text("weights")
    answer(heartbeat.answer_heartbeat, afterRun="deallocate")
    for _ in range(2):  # a second removal is not an error
        assert answer(jobs.forget_run)["left"] is None
        assert names(run.parent) == ["r1"]
        assert names(run) == ["attended.json", "state.json"]
    assert states.must_read("r1")["exitCode"] == 3
    assert last_heartbeat(run) == {"afterRun": "deallocate"}
    assert answer(jobs.runs)["runs"] == [{"run": "r1", "over": True, "outputs": False}]


def test_removed_run_that_never_started_leaves_nothing(run: Path) -> None:
    answer(heartbeat.answer_heartbeat, afterRun="keep")
    answer(jobs.forget_run)
    assert names(run.parent) == []


def test_removed_run_that_never_started_and_turns_the_machine_off_stays_over(run: Path) -> None:
    answer(heartbeat.answer_heartbeat, afterRun="deallocate")
    answer(jobs.forget_run)
    assert names(run) == ["attended.json", "state.json"]
    assert states.is_over("r1")


# Failed jobs

FAILED = {"ended": time.time(), "exitCode": 3, "how": "exited"}
LOOK = {"afterRun": "deallocate", "keepOnFailure": 1800.0}


def write_outputs(run: Path) -> None:
    (run / "outputs").mkdir()
    (run / "outputs" / "model").write_text("weights")


@pytest.mark.parametrize(
    ("state", "said", "is_kept"),
    [
        (FAILED, LOOK, True),
        ({**FAILED, "how": "out of memory", "exitCode": 137}, LOOK, True),
        ({**FAILED, "exitCode": 0}, LOOK, False),
        ({**FAILED, "how": "cancelled"}, LOOK, False),
        # A container that was stopped from outside, by `cancel` or `docker stop`.
        ({**FAILED, "exitCode": 143}, LOOK, False),
        ({**FAILED, "ended": time.time() - 1801}, LOOK, False),
        (FAILED, {"afterRun": "deallocate"}, False),
        (FAILED, {**LOOK, "afterRun": "keep"}, False),
    ],
)
def test_failed_run_stays_for_a_look_after_it_was_fetched(
    run: Path, tmp_path: Path, state: dict[str, Any], said: dict[str, Any], *, is_kept: bool
) -> None:
    docker, called = tmp_path / "docker", tmp_path / "called"
    docker.write_text(f"#!/bin/sh\ntouch {called}\n")
    docker.chmod(0o755)
    write_outputs(run)
    write_state(**{**CONTAINER, "docker": [str(docker)], **state})
    answer(heartbeat.answer_heartbeat, **said)
    assert [each["outputs"] for each in answer(jobs.runs)["runs"]] == [True]
    os.utime(run / "attended.json", (LONG_AGO, LONG_AGO))
    answer(jobs.forget_run, container="c1")
    assert (run / "outputs" / "model").exists() is is_kept
    if not is_kept:
        assert eventually(called.exists, 10.0), "its container is removed"
        return
    assert not called.exists()
    # What was fetched is not reported as lost with the disk, and the client is not taken for one that is connected.
    assert [each["outputs"] for each in answer(jobs.runs)["runs"]] == [False]
    assert (run / "attended.json").stat().st_mtime == pytest.approx(LONG_AGO, abs=1)
    answer(heartbeat.answer_heartbeat, afterRun="keep", detached=True)
    answer(heartbeat.answer_heartbeat)
    assert last_heartbeat(run) == {"afterRun": "keep", "keepOnFailure": 1800.0, "kept": True}


@pytest.mark.parametrize("is_kept", [True, False])
def test_next_upload_to_its_copy_removes_a_kept_run(run: Path, is_kept: bool) -> None:
    write_outputs(run)
    write_state(**FAILED)
    answer(heartbeat.answer_heartbeat, **LOOK)
    if is_kept:
        answer(jobs.forget_run)
    slot = run.parents[1] / "projects" / "p" / "slot-1"
    slot.mkdir(parents=True)
    (slot / "holder").write_text("r1")
    content = b"print()"
    entry = ["train.py", "f", 0o644, len(content), digest_of(content)]
    listed = message(DATA, zlib.compress(json.dumps([entry]).encode())) + message(JSON, b"{}")
    messages = listed + message(DATA, b"\0" + content) + message(JSON, b"{}")
    request = {"run": "r2", "project": "p", "digest": "d", "outputs": "mount", "heartbeat": {}}
    trees.put(Wire(io.BytesIO(messages), io.BytesIO()), request)
    assert (slot / "holder").read_text() == "r2"
    assert (run / "outputs").exists() is not is_kept


def test_last_samples_of_all_gpus_are_combined(tmp_path: Path) -> None:
    now, file = int(time.time()), tmp_path / "samples"
    file.write_text(f"{now - 100} 2 90 5\n{now - 2} 0 10 100\n{now} 0 30 200\n{now} 1 50 -\n{now} 1 ")
    assert samples.latest(str(file)) == {"utilization": 40.0, "memoryMib": 200}
    file.write_text(f"{now - 100} 0 90 5\n")
    assert samples.latest(str(file)) is None
    assert samples.latest(str(tmp_path / "none")) is None
