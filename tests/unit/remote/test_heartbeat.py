"""Who is there for a run, and why a machine ends a job: what is written down of it, and read again."""

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
from gpuinfra.remote.slots import digest_of
from gpuinfra.remote.wire import DATA, HEADER, JSON, Wire
from gpuinfra.runner.jobs.job import StopReason
from gpuinfra.runner.jobs.remote_runs import parse_job_end

LONG_AGO = time.time() - 1000
CONTAINER = {"kind": "container", "container": "c1", "docker": ["false"], "started": 1.0}


@pytest.fixture(autouse=True)
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".gpuinfra" / "runs" / "r1"
    folder.mkdir(parents=True)
    return folder


def answer(verb: Callable[..., None], **request: Any) -> dict[str, Any]:
    said = io.BytesIO()
    verb(Wire(io.BytesIO(), said), {"run": "r1", **request})
    found: dict[str, Any] = json.loads(said.getvalue()[HEADER.size :])
    return found


def attended(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "attended.json").read_text())
    return found


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def write_ending(run: Path, how: str, detail: str = "") -> None:
    (run / "ending.json").write_text(json.dumps({"how": how, "detail": detail}))


def write_state(**state: Any) -> None:
    states.write("r1", {"kind": "process", "started": 1.0, **state})


# Who is there


def test_the_files_time_is_when_somebody_was_last_there(run: Path) -> None:
    answer(heartbeat.attend, afterRun="deallocate")
    assert attended(run) == {"afterRun": "deallocate"}
    os.utime(run / "attended.json", (LONG_AGO, LONG_AGO))
    answer(heartbeat.attend, afterRun="deallocate")
    assert time.time() - (run / "attended.json").stat().st_mtime < 60


def test_whoever_only_follows_leaves_what_becomes_of_the_machine(run: Path) -> None:
    answer(heartbeat.attend, afterRun="delete")
    answer(heartbeat.attend)
    assert attended(run) == {"afterRun": "delete"}


def test_whoever_follows_a_run_that_was_left_is_there_for_it(run: Path) -> None:
    answer(heartbeat.attend, afterRun="deallocate", detached=True)
    assert attended(run) == {"afterRun": "deallocate", "detached": True}
    answer(heartbeat.attend)
    assert attended(run) == {"afterRun": "deallocate"}


def test_a_run_of_submit_leaves_the_machine_alone(run: Path) -> None:
    answer(heartbeat.attend)
    assert attended(run) == {"afterRun": None}
    assert not heartbeat.ends_the_machine("r1")


def test_a_run_that_was_forgotten_does_not_come_back(run: Path) -> None:
    run.rmdir()
    assert answer(heartbeat.attend, afterRun="delete")["state"] is None
    assert not run.exists()


def test_a_file_that_is_torn_is_written_anew(run: Path) -> None:
    (run / "attended.json").write_text('{"afterRun": "del')
    answer(heartbeat.attend, afterRun="delete")
    assert attended(run) == {"afterRun": "delete"}


def test_the_answer_says_how_the_job_is(run: Path) -> None:
    write_state(pid=7)
    write_ending(run, "evicted", "at 12:00")
    (run / "samples").write_text(f"{int(time.time()) - 30} 0 5 100\n{int(time.time())} 0 4 100\n")
    found = answer(heartbeat.attend)
    assert (found["state"]["pid"], found["ending"]) == (7, {"how": "evicted", "detail": "at 12:00"})
    assert 29 <= found["gpuBusy"] <= 40
    assert abs(found["now"] - time.time()) < 10


def test_attending_does_not_make_a_run_over_or_not(run: Path) -> None:
    write_state(ended=2.0, exitCode=0, how="exited")
    answer(heartbeat.attend, afterRun="deallocate")
    assert jobs.is_over("r1")
    assert answer(jobs.runs)["runs"] == [{"run": "r1", "over": True, "outputs": False}]


# Whoever sends much, or takes it, is there


def message(kind: bytes, payload: bytes) -> bytes:
    return HEADER.pack(kind, len(payload)) + payload


def called(verb: Callable[..., None], heard: bytes, run: Path, **request: Any) -> float:
    """How long ago somebody was there, by a call that gets these messages."""
    os.utime(run / "attended.json", (LONG_AGO, LONG_AGO))
    verb(Wire(io.BytesIO(heard), io.BytesIO()), {"run": "r1", **request})
    return time.time() - (run / "attended.json").stat().st_mtime


def test_whoever_takes_outputs_is_there(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run / "outputs").mkdir()
    (run / "outputs" / "model").write_text("weights")
    answer(heartbeat.attend, afterRun="delete")
    heard = message(DATA, b"") * 2
    assert called(outputs.outputs, heard, run, final=True) > 900  # it is not said more often than need be
    monkeypatch.setattr(heartbeat, "PRESENT_SECONDS", -1.0)
    assert called(outputs.outputs, heard, run, final=True) < 60


def test_whoever_sends_a_project_is_there(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "PRESENT_SECONDS", -1.0)
    # What is said at the beginning of an upload was long ago.
    monkeypatch.setattr(heartbeat, "note", lambda *_: None)
    (run / "attended.json").write_text('{"afterRun": "delete"}')
    content = b"print()"
    entry = ["train.py", "f", 0o644, len(content), digest_of(content)]
    listed = message(DATA, zlib.compress(json.dumps([entry]).encode())) + message(JSON, b"{}")
    heard = listed + message(DATA, b"\0" + content) + message(JSON, b"{}")
    request = {"project": "p", "digest": "d", "outputs": "mount", "attended": {}}
    assert called(trees.put, heard, run, **request) < 60
    assert (run.parents[1] / "projects" / "p" / "slot-1" / "tree" / "train.py").read_bytes() == content


# The GPU


@pytest.mark.parametrize(
    "text",
    ["", "100 0 4 10\n", "nonsense\n100 0\n", "100 0 101 10\n"],
    ids=["empty", "idle", "nonsense", "no percentage"],
)
def test_a_gpu_that_was_never_busy(tmp_path: Path, text: str) -> None:
    (tmp_path / "samples").write_text(text)
    assert samples.busy_ago(str(tmp_path / "samples")) is None


def test_of_many_samples_the_last_that_was_busy_counts(tmp_path: Path) -> None:
    now = int(time.time())
    lines = [f"{now - 20000 + 2 * number} 0 {50 if number < 9500 else 0} 10\n" for number in range(10000)]
    (tmp_path / "samples").write_text("".join(lines))
    assert samples.busy_ago(str(tmp_path / "samples")) == pytest.approx(20000 - 2 * 9499, abs=5)
    assert samples.busy_ago(str(tmp_path / "none")) is None


# Why it ends


@pytest.mark.parametrize("how", sorted(run_folder.BY_MACHINE))
def test_the_machines_causes_are_the_runners_too(how: str) -> None:
    assert StopReason(how).is_by_machine


def test_the_runners_causes_are_the_machines_too() -> None:
    assert {how.value for how in StopReason if how.is_by_machine} == run_folder.BY_MACHINE


@pytest.mark.parametrize("text", ["", "[]", '{"how": "because"}', '{"detail": "x"}', "\udcff"])
def test_a_cause_that_makes_no_sense_is_none(run: Path, text: str) -> None:
    (run / "ending.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert states.read_stop_reason("r1") is None
    assert states.stop_reason_at("r1", time.time()) == {}


def test_what_ended_before_was_not_ended_by_it(run: Path) -> None:
    write_ending(run, "idle")
    assert states.stop_reason_at("r1", time.time()) == {"how": "idle"}
    assert states.stop_reason_at("r1", LONG_AGO) == {}


def test_a_process_whose_machine_went_off_was_ended_by_it(run: Path) -> None:
    write_state()
    write_ending(run, "evicted", "Azure wants it back")
    assert jobs.is_over("r1")
    found = parse_job_end(states.must_read("r1"))
    assert found is not None
    assert (found.stop_reason, found.detail, found.exit_code) == (StopReason.EVICTED, "Azure wants it back", 255)


def test_of_a_container_that_nobody_watches_the_cause_is_told(run: Path) -> None:
    states.write("r1", CONTAINER)
    assert "ending" not in answer(jobs.state)
    write_ending(run, "cost cap")
    assert answer(jobs.state)["ending"] == {"how": "cost cap", "detail": ""}
    states.write("r1", {**CONTAINER, "ended": 2.0, "exitCode": 0, "how": "exited"})
    assert "ending" not in answer(jobs.state)


@pytest.mark.parametrize(
    ("before", "seconds_after", "expected"),
    [({}, 60, "lease over"), ({}, -86400, "exited"), ({"how": "timed out"}, 60, "timed out")],
    ids=["asked", "long before", "out of time"],
)
def test_a_keeper_knows_why_a_container_ended(
    run: Path, before: dict[str, str], seconds_after: float, expected: str
) -> None:
    write_ending(run, "lease over", "since 12:00")
    kept = container_watcher.ContainerWatcher({"run": "r1", "container": "c1"}, {**CONTAINER, **before})
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + seconds_after))
    found = kept._ended({"Status": "exited", "ExitCode": 143, "FinishedAt": at})
    assert (found["how"], found.get("detail")) == (expected, "since 12:00" if expected == "lease over" else None)


@pytest.mark.parametrize(
    ("asked", "expected"), [("cancelled", "idle"), ("timed out", "timed out"), ("", "exited")], ids=str
)
def test_who_stays_with_a_process_knows_why_it_was_asked_to_end(run: Path, asked: str, expected: str) -> None:
    class Child:
        def wait(self) -> int:
            return -15

    class Log:
        missing = 0

        def end(self) -> None:
            pass

    write_ending(run, "idle")
    write_state()
    made = supervisor.Supervisor({"run": "r1", "folder": "/nowhere"}, {})
    made._child, made._log, made._ending, made._out_of_memory = Child(), Log(), asked, 1 << 60  # type: ignore[assignment]
    made._end()
    assert states.must_read("r1")["how"] == expected


# Forgotten


def test_what_is_forgotten_of_a_job_includes_who_was_there(run: Path) -> None:
    write_state(ended=2.0, exitCode=0, how="exited")
    write_ending(run, "idle")
    answer(heartbeat.attend, afterRun="delete")
    answer(jobs.forget)
    assert names(run) == ["state.json"]


@pytest.mark.parametrize("after_run", [None, "keep"])
def test_a_run_that_is_forgotten_is_gone(run: Path, after_run: str | None) -> None:
    write_state(ended=2.0, exitCode=0, how="exited")
    write_ending(run, "idle")
    answer(heartbeat.attend, afterRun=after_run)
    answer(jobs.forget_run)
    assert names(run.parent) == []


def test_of_a_run_with_which_the_machine_ends_it_stays_known_that_it_is_over(run: Path) -> None:
    write_state(ended=2.0, exitCode=3, how="exited")
    (run / "outputs").mkdir()
    (run / "outputs" / "model").write_text("weights")
    answer(heartbeat.attend, afterRun="deallocate")
    for _ in range(2):  # to do so twice is no error
        assert answer(jobs.forget_run)["left"] is None
        assert names(run.parent) == ["r1"]
        assert names(run) == ["attended.json", "state.json"]
    assert states.must_read("r1")["exitCode"] == 3
    assert attended(run) == {"afterRun": "deallocate"}
    assert answer(jobs.runs)["runs"] == [{"run": "r1", "over": True, "outputs": False}]


def test_a_run_that_never_began_leaves_nothing(run: Path) -> None:
    answer(heartbeat.attend, afterRun="keep")
    answer(jobs.forget_run)
    assert names(run.parent) == []


def test_a_run_that_never_began_and_was_to_end_its_machine_is_known_to_be_over(run: Path) -> None:
    answer(heartbeat.attend, afterRun="deallocate")
    answer(jobs.forget_run)
    assert names(run) == ["attended.json", "state.json"]
    assert states.is_over("r1")
