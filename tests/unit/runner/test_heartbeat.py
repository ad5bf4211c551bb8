"""Heartbeats to a fake target: what they send, and what their replies mean."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from gpuinfra.models.run import STDOUT, Frame, GpuSample
from gpuinfra.runner import heartbeat as module
from gpuinfra.runner.errors import Broken, RemoteError, TimedOut
from gpuinfra.runner.heartbeat import Heartbeat, first_heartbeat, parse_machine_stop
from gpuinfra.runner.job import StopReason

STATE = {"kind": "process", "started": 1.0}
ENDED = {**STATE, "ended": 2.0, "exitCode": 143, "how": "evicted", "detail": "Azure wants it back"}


class Connection:
    """A connection with the time of its last data."""

    where, is_open, last_received_at = "203.0.113.7:22", True, 0.0


class Target:
    """The remote client of a fake target."""

    def __init__(self) -> None:
        self.connection = Connection()
        self.asked: list[dict[str, Any]] = []
        self.answer: dict[str, Any] = {"now": time.time(), "state": STATE, "ending": None, "gpuBusy": None}
        self.error: Exception | None = None
        self.was_asked = threading.Event()

    def ask(self, verb: str, *, seconds: float, **request: Any) -> dict[str, Any]:
        assert verb == "heartbeat"
        assert seconds <= module.ANSWER_SECONDS
        self.asked.append(request)
        self.was_asked.set()
        if self.error:
            raise self.error
        return self.answer


class Link:
    answers: Callable[[], bool] | None = None

    def __init__(self, remote: Target | None) -> None:
        self.remote_if_open = remote
        self.replaced: list[Connection] = []
        self.was_replaced = threading.Event()

    def replace(self, connection: Connection) -> None:
        self.replaced.append(connection)
        connection.is_open = False
        self.was_replaced.set()


@pytest.fixture
def target() -> Target:
    return Target()


def make_heartbeat(target: Target | None, fields: dict[str, Any] | None = None) -> Heartbeat:
    return Heartbeat(Link(target), "r1", fields)  # type: ignore[arg-type]


@contextmanager
def send_often(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(module, "PERIOD_SECONDS", 0.001)
        yield


def test_heartbeats_are_frequent_enough_for_the_agents_limit_of_45_seconds() -> None:
    assert module.PERIOD_SECONDS <= 10
    assert module.PERIOD_SECONDS + module.ANSWER_SECONDS < 45


def test_heartbeats_are_sent_until_the_block_ends(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    with send_often(monkeypatch):
        with make_heartbeat(target, first_heartbeat("deallocate")):
            for _ in range(3):
                assert target.was_asked.wait(5)
                target.was_asked.clear()
        assert target.asked[0] == {"run": "r1", "afterRun": "deallocate"}


@pytest.mark.parametrize("error", [Broken("lost"), RemoteError("system", "no"), RuntimeError("no thread")])
def test_heartbeats_continue_after_an_error(target: Target, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    target.error = error
    with send_often(monkeypatch), make_heartbeat(target):
        for _ in range(3):
            assert target.was_asked.wait(5)
            target.was_asked.clear()


def test_heartbeat_opens_no_connection() -> None:
    make_heartbeat(None)._send(1.0)


def test_follower_sends_no_fields_about_the_machine(target: Target) -> None:
    make_heartbeat(target)._send(1.0)
    assert target.asked == [{"run": "r1"}]


def test_detach_sends_the_last_heartbeat(target: Target) -> None:
    heartbeat = make_heartbeat(target, first_heartbeat("delete"))
    heartbeat.detach()
    heartbeat._send_regularly()  # ends at once
    assert target.asked == [{"run": "r1", "afterRun": "delete", "detached": True}]


def test_detach_does_not_wait_for_another_heartbeat(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DETACH_SECONDS", 0.001)
    heartbeat = make_heartbeat(target)
    with heartbeat._sending:
        heartbeat.detach()
        assert target.asked == []


def test_detach_does_not_wait_for_a_silent_target(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process on the target that would answer may take a minute to start."""
    monkeypatch.setattr(module, "DETACH_SECONDS", 0.001)
    hangs = threading.Event()
    monkeypatch.setattr(target, "ask", lambda *_, **__: hangs.wait(60) and {})
    began = time.monotonic()
    make_heartbeat(target).detach()
    assert time.monotonic() - began < 30
    hangs.set()


def test_first_heartbeat_of_a_detached_run() -> None:
    assert first_heartbeat(None, detached=True) == {"afterRun": None, "detached": True}


# Replies
def test_end_of_the_job_is_read_from_the_last_reply(target: Target) -> None:
    heartbeat = make_heartbeat(target)

    def known(**changes: Any) -> tuple[StopReason, int, str] | None:
        target.answer = {**target.answer, **changes}
        heartbeat._send(1.0)
        found = heartbeat.ended
        return (found.stop_reason, found.exit_code, found.detail) if found else None

    assert heartbeat.ended is None
    assert known() is None
    assert known(ending={"how": "lease over", "detail": ""}) == (StopReason.LEASE_OVER, 255, "")
    assert known(state=ENDED) == (StopReason.EVICTED, 143, "Azure wants it back")
    assert known(state=None, ending=None) == (StopReason.EVICTED, 143, "Azure wants it back")  # the run was deleted


@pytest.mark.parametrize("ending", [None, [], {}, {"how": "because"}, {"how": "exited"}, {"how": None}, "idle"])
def test_other_endings_are_not_stops_by_the_machine(ending: object) -> None:
    assert parse_machine_stop(ending) is None


def test_output_and_gpu_use_count_as_activity_by_the_targets_clock(target: Target) -> None:
    heartbeat = make_heartbeat(target)
    assert heartbeat.idle_seconds > 1e9
    ahead = time.time() + 5000
    target.answer = {**target.answer, "now": ahead, "gpuBusy": None}
    heartbeat._send(1.0)
    heartbeat.note_output(Frame(STDOUT, int((ahead - 100) * 1e9), b"x"))
    assert heartbeat.idle_seconds == pytest.approx(100, abs=10)
    target.answer = {**target.answer, "gpuBusy": 30.0}
    heartbeat._send(1.0)
    assert heartbeat.idle_seconds == pytest.approx(30, abs=10)
    target.answer = {**target.answer, "gpuBusy": 3000.0}
    heartbeat._send(1.0)
    assert heartbeat.idle_seconds == pytest.approx(30, abs=10)
    heartbeat.note_start(datetime.now(UTC))
    assert heartbeat.idle_seconds == pytest.approx(0, abs=10)


def test_malformed_reply_is_ignored(target: Target) -> None:
    target.answer = {"state": {"ended": "x"}, "gpuBusy": "y"}
    heartbeat = make_heartbeat(target)
    heartbeat._send(1.0)
    assert heartbeat.ended is None


def test_silence_and_its_end_are_each_reported_once(monkeypatch: pytest.MonkeyPatch, target: Target) -> None:
    monkeypatch.setattr(module, "CHECK_SECONDS", 0.001)
    notes: list[str] = []
    changed = threading.Condition()

    def note(text: str) -> None:
        with changed:
            notes.append(text)
            changed.notify()

    def waits_for(count: int) -> None:
        with changed:
            assert changed.wait_for(lambda: len(notes) >= count, 20)

    heartbeat = make_heartbeat(target)
    target.error = TimedOut("no data")
    heartbeat._send(1.0)
    since = time.monotonic() - module.SILENT_SECONDS
    heartbeat._unanswered = module._Unanswered(target.connection, since)  # type: ignore[arg-type]
    with heartbeat.report_silence(note):
        waits_for(1)
        target.connection.last_received_at = time.monotonic() + 60  # data arrives, but not the reply
        waits_for(2)
    assert notes[0].startswith("no answer from 203.0.113.7:22 for 8 s")
    assert notes[1:] == ["203.0.113.7:22 answers again"]


def test_reply_ends_the_silence(target: Target) -> None:
    heartbeat = make_heartbeat(target)
    target.error = TimedOut("no data")
    heartbeat._send(1.0)
    assert heartbeat._unanswered is not None
    target.error = None
    heartbeat._send(1.0)
    assert heartbeat._unanswered is None


def test_reply_has_what_the_gpus_do(target: Target) -> None:
    heartbeat = make_heartbeat(target)
    assert heartbeat.gpu is None
    for answer, expected in (
        ({"utilization": 40, "memoryMib": 200}, GpuSample(40.0, 200)),
        ({"utilization": 40.5, "memoryMib": None}, GpuSample(40.5, None)),
        (None, None),
        ({"utilization": "x"}, None),
    ):
        heartbeat._read_reply({**target.answer, "gpu": answer})
        assert heartbeat.gpu == expected


def test_silent_connection_is_replaced_once_the_machine_answers_on_a_new_one(
    monkeypatch: pytest.MonkeyPatch, target: Target
) -> None:
    monkeypatch.setattr(module, "CHECK_SECONDS", 0.001)
    answers = [False, False, True]
    link = Link(target)
    link.answers = lambda: answers.pop(0)
    heartbeat = Heartbeat(link, "r1")  # type: ignore[arg-type]
    since = time.monotonic() - module.SILENT_SECONDS
    heartbeat._unanswered = module._Unanswered(target.connection, since)  # type: ignore[arg-type]
    with heartbeat.report_silence(lambda _: None):
        assert link.was_replaced.wait(20)
    assert (link.replaced, answers) == ([target.connection], [])


def test_connection_is_replaced_after_this_computer_slept(monkeypatch: pytest.MonkeyPatch, target: Target) -> None:
    monkeypatch.setattr(module, "CHECK_SECONDS", 0.001)
    suspended = [0.0, 0.0, 0.0, 725.0]
    monkeypatch.setattr(module, "suspended_seconds", lambda: suspended.pop(0) if len(suspended) > 1 else suspended[0])
    answers, notes = [False, True], list[str]()
    link = Link(target)
    link.answers = lambda: answers.pop(0)
    with Heartbeat(link, "r1").report_silence(notes.append):  # type: ignore[arg-type]
        assert link.was_replaced.wait(20)
    assert notes == ["this computer slept for 12 min; connecting again"]
    assert (link.replaced, answers) == ([target.connection], [])
