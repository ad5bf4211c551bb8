"""Being there for a run, without a target: what it is told, what it answers, and what comes of it."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from gpuinfra.runner.errors import Broken, RemoteError, TimedOut
from gpuinfra.runner.jobs import heartbeat as module
from gpuinfra.runner.jobs.heartbeat import Heartbeat, begun, ended_by_machine
from gpuinfra.runner.jobs.job import STDOUT, Frame, StopReason

STATE = {"kind": "process", "started": 1.0}
ENDED = {**STATE, "ended": 2.0, "exitCode": 143, "how": "evicted", "detail": "Azure wants it back"}


class Connection:
    """A connection, and when something last came from it."""

    where, is_open, heard_at = "203.0.113.7:22", True, 0.0


class Target:
    """What is at the other end of a link."""

    def __init__(self) -> None:
        self.connection = Connection()
        self.asked: list[dict[str, Any]] = []
        self.answer: dict[str, Any] = {"now": time.time(), "state": STATE, "ending": None, "gpuBusy": None}
        self.error: Exception | None = None
        self.heard = threading.Event()

    def ask(self, verb: str, *, seconds: float, **request: Any) -> dict[str, Any]:
        assert verb == "run-attend"
        assert seconds <= module.ANSWER_SECONDS
        self.asked.append(request)
        self.heard.set()
        if self.error:
            raise self.error
        return self.answer


class Link:
    def __init__(self, remote: Target | None) -> None:
        self.open_far = remote


@pytest.fixture
def target() -> Target:
    return Target()


def attending(target: Target | None, said: dict[str, Any] | None = None) -> Heartbeat:
    return Heartbeat(Link(target), "r1", said)  # type: ignore[arg-type]


@contextmanager
def often(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(module, "PERIOD_SECONDS", 0.001)
        yield


def test_it_is_said_often_enough_for_an_agent_that_waits_45_seconds() -> None:
    assert module.PERIOD_SECONDS <= 10
    assert module.PERIOD_SECONDS + module.ANSWER_SECONDS < 45


def test_it_goes_on_until_it_is_over(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    with often(monkeypatch):
        with attending(target, begun("deallocate")):
            for _ in range(3):
                assert target.heard.wait(5)
                target.heard.clear()
        assert target.asked[0] == {"run": "r1", "afterRun": "deallocate"}


@pytest.mark.parametrize("error", [Broken("lost"), RemoteError("system", "no"), RuntimeError("no thread")])
def test_a_loss_does_not_end_it(target: Target, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    target.error = error
    with often(monkeypatch), attending(target):
        for _ in range(3):
            assert target.heard.wait(5)
            target.heard.clear()


def test_where_there_is_no_connection_none_is_made() -> None:
    attending(None)._say(1.0)


def test_whoever_only_follows_does_not_say_what_becomes_of_the_machine(target: Target) -> None:
    attending(target)._say(1.0)
    assert target.asked == [{"run": "r1"}]


def test_whoever_lets_go_says_so_and_nothing_after_that(target: Target) -> None:
    made = attending(target, begun("delete"))
    made.let_go()
    made._attend()  # it ends at once
    assert target.asked == [{"run": "r1", "afterRun": "delete", "detached": True}]


def test_letting_go_waits_for_nobody(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LET_GO_SECONDS", 0.001)
    made = attending(target)
    with made._speaking:
        made.let_go()
        assert target.asked == []


def test_letting_go_waits_for_no_answer_that_does_not_come(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process on the target that would hear it may take a minute to begin, whatever the answer is given."""
    monkeypatch.setattr(module, "LET_GO_SECONDS", 0.001)
    hangs = threading.Event()
    monkeypatch.setattr(target, "ask", lambda *_, **__: hangs.wait(60) and {})
    began = time.monotonic()
    attending(target).let_go()
    assert time.monotonic() - began < 30
    hangs.set()


def test_detached_from_the_beginning() -> None:
    assert begun(None, detached=True) == {"afterRun": None, "detached": True}


# What is heard


def test_how_the_job_ended_is_known_from_the_last_answer(target: Target) -> None:
    made = attending(target)

    def known(**changes: Any) -> tuple[StopReason, int, str] | None:
        target.answer = {**target.answer, **changes}
        made._say(1.0)
        found = made.ended
        return (found.how, found.exit_code, found.detail) if found else None

    assert made.ended is None
    assert known() is None
    assert known(ending={"how": "lease over", "detail": ""}) == (StopReason.LEASE_OVER, 255, "")
    assert known(state=ENDED) == (StopReason.EVICTED, 143, "Azure wants it back")
    assert known(state=None, ending=None) == (StopReason.EVICTED, 143, "Azure wants it back")  # it was forgotten


@pytest.mark.parametrize("ending", [None, [], {}, {"how": "because"}, {"how": "exited"}, {"how": None}, "idle"])
def test_what_is_no_end_by_the_machine(ending: object) -> None:
    assert ended_by_machine(ending) is None


def test_work_is_what_it_prints_and_what_its_gpu_does_by_the_targets_clock(target: Target) -> None:
    made = attending(target)
    assert made.seconds_without_work > 1e9
    ahead = time.time() + 5000
    target.answer = {**target.answer, "now": ahead, "gpuBusy": None}
    made._say(1.0)
    made.printed(Frame(STDOUT, int((ahead - 100) * 1e9), b"x"))
    assert made.seconds_without_work == pytest.approx(100, abs=10)
    target.answer = {**target.answer, "gpuBusy": 30.0}
    made._say(1.0)
    assert made.seconds_without_work == pytest.approx(30, abs=10)
    target.answer = {**target.answer, "gpuBusy": 3000.0}
    made._say(1.0)
    assert made.seconds_without_work == pytest.approx(30, abs=10)
    made.began(datetime.now(UTC))
    assert made.seconds_without_work == pytest.approx(0, abs=10)


def test_an_answer_that_makes_no_sense_is_no_trouble(target: Target) -> None:
    target.answer = {"state": {"ended": "x"}, "gpuBusy": "y"}
    made = attending(target)
    made._say(1.0)
    assert made.ended is None


def test_silence_and_its_end_are_each_reported_once(monkeypatch: pytest.MonkeyPatch, target: Target) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.001)
    told: list[str] = []
    changed = threading.Condition()

    def tell(text: str) -> None:
        with changed:
            told.append(text)
            changed.notify()

    def waits_for(count: int) -> None:
        with changed:
            assert changed.wait_for(lambda: len(told) >= count, 20)

    made = attending(target)
    target.error = TimedOut("nothing came")
    made._say(1.0)
    since = time.monotonic() - module.SILENT_SECONDS
    made._asked = (target.connection, since)  # type: ignore[assignment]
    with made.reporting_silence(tell):
        waits_for(1)
        target.connection.heard_at = time.monotonic() + 60  # something comes, though not the answer
        waits_for(2)
    assert told[0].startswith("no answer from 203.0.113.7:22 for 8 s")
    assert told[1:] == ["203.0.113.7:22 answers again"]


def test_an_answer_ends_the_silence(target: Target) -> None:
    made = attending(target)
    target.error = TimedOut("nothing came")
    made._say(1.0)
    assert made._asked is not None
    target.error = None
    made._say(1.0)
    assert made._asked is None
