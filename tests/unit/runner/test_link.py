"""A connection that is lost, and made anew."""

import threading
from collections.abc import Callable, Sequence

import pytest

from gpuinfra.models.target import Target
from gpuinfra.runner import link as module
from gpuinfra.runner.background import begin
from gpuinfra.runner.connection.port import Completed, Process
from gpuinfra.runner.errors import (
    Broken,
    HostKeyMismatch,
    JobError,
    LoginRefused,
    PortClosed,
    SwitchedOff,
    TimedOut,
    Unreachable,
)
from gpuinfra.runner.link import Link, RetryPolicy, is_passing

TARGET = Target("lab", "lab", "remote", "203.0.113.7", 22, "me", "ssh-ed25519 AAAA")


class Wire:
    """A connection that can be cut."""

    where = "203.0.113.7:22"
    heard_at = 0.0

    def __init__(self) -> None:
        self.is_open = True
        self.closed = 0

    def run(self, command: Sequence[str] | str, *, timeout: float) -> Completed:
        raise NotImplementedError

    def start(self, command: Sequence[str] | str, *, timeout: float, idle: float | None = None) -> Process:
        raise NotImplementedError

    def close(self) -> None:
        self.is_open = False
        self.closed += 1


class Clock:
    def __init__(self) -> None:
        self.now = 100.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


@pytest.fixture
def wires() -> list[Wire]:
    return []


@pytest.fixture
def link(wires: list[Wire]) -> Link:
    def opener() -> Wire:
        wires.append(Wire())
        return wires[-1]

    return Link(TARGET, opener)


def test_one_connection_is_used_for_everything(link: Link, wires: list[Wire]) -> None:
    assert link.connection is link.connection
    assert link.remote.connection is link.connection
    assert link.remote is link.remote
    assert len(wires) == 1


def test_a_lost_connection_is_replaced_with_all_that_was_on_it(link: Link, wires: list[Wire]) -> None:
    before = link.remote
    wires[0].is_open = False
    assert link.remote is not before
    assert len(wires) == 2
    assert wires[0].closed == 1


def test_what_broke_on_a_connection_that_is_fine_leaves_it(link: Link, wires: list[Wire]) -> None:
    _ = link.connection
    link.lost(Broken("one of many"))
    assert link.connection is wires[0]
    link.lost(TimedOut("silent"))
    assert link.connection is not wires[0]


def test_attempts_are_made_until_one_succeeds(link: Link, wires: list[Wire], clock: Clock) -> None:
    errors: list[Exception] = [Unreachable("a"), Broken("b"), TimedOut("c")]
    told: list[Exception] = []

    def attempt() -> str:
        _ = link.connection
        if errors:
            raise errors.pop(0)
        return "done"

    assert link.retry(attempt, RetryPolicy(60, told.append)) == "done"
    assert len(told) == 1
    assert clock.pauses == sorted(clock.pauses)


def test_patience_ends(link: Link, clock: Clock) -> None:
    def attempt() -> None:
        raise Unreachable("nobody")

    with pytest.raises(Unreachable):
        link.retry(attempt, RetryPolicy(60))
    assert 50 < sum(clock.pauses) <= 60


def test_a_success_begins_it_anew(clock: Clock) -> None:
    policy = RetryPolicy(10)
    policy.wait(Broken("first"))
    clock.now += 1000
    with pytest.raises(Broken):
        policy.wait(Broken("too late"))
    policy.reset()
    policy.wait(Broken("again"))


@pytest.mark.parametrize(
    ("error", "engine_too", "passing"),
    [
        (Broken("x"), False, True),
        (Unreachable("x"), False, True),
        (TimedOut("x"), False, True),
        (HostKeyMismatch("x", "a", "b"), True, False),
        (LoginRefused("x"), True, False),
        (SwitchedOff("x"), True, False),
        (JobError("x", code="no-engine"), False, False),
        (JobError("x", code="no-engine"), True, True),
        (JobError("x", code="no-image"), True, False),
    ],
)
def test_what_another_try_may_mend(error: Exception, engine_too: bool, passing: bool, clock: Clock) -> None:
    assert is_passing(error, engine_too=engine_too) is passing
    if not passing:
        with pytest.raises(type(error)):
            RetryPolicy(60, engine_too=engine_too).wait(error)
        assert clock.pauses == []


# A machine that is off


def test_after_a_while_somebody_is_asked_whether_it_is_off(link: Link, clock: Clock) -> None:
    asked: list[float] = []

    def power() -> str | None:
        asked.append(clock.now)
        return "my-dsvm is deallocated" if len(asked) == 3 else None

    def attempt() -> None:
        _ = link.connection
        raise Unreachable("nobody")

    link.power, began = power, clock.now
    with pytest.raises(SwitchedOff, match="my-dsvm is deallocated"):
        link.retry(attempt, link.retry_policy(600))
    waits = [after - before for before, after in zip([began, *asked], asked, strict=False)]
    assert len(waits) == 3
    assert all(19.9 < wait <= 20.1 + module.LONGEST_PAUSE for wait in waits)
    assert link.is_off


def test_that_somebody_gets_no_answer_does_not_make_it_on_again(link: Link) -> None:
    answers = ["my-dsvm is deallocated", None]
    link.power = lambda: answers.pop(0)
    for _ in range(2):
        with pytest.raises(SwitchedOff, match="my-dsvm is deallocated"):
            link.check_power()
    assert link.is_off


def test_nobody_calls_a_machine_that_is_off(link: Link, wires: list[Wire]) -> None:
    _ = link.connection
    link.power = lambda: "my-dsvm is gone"
    with pytest.raises(SwitchedOff):
        link.check_power()
    assert wires[0].closed
    with pytest.raises(SwitchedOff, match="my-dsvm is gone"):
        _ = link.remote
    assert (link.open_far, len(wires)) == (None, 1)


@pytest.mark.parametrize("power", [None, lambda: None])
def test_a_machine_of_which_nobody_knows_is_tried_for_as_long_as_ever(
    link: Link, clock: Clock, power: Callable[[], str | None] | None
) -> None:
    def attempt() -> None:
        raise Unreachable("nobody")

    link.power = power
    with pytest.raises(Unreachable):
        link.retry(attempt, link.retry_policy(600))
    assert sum(clock.pauses) > 590


def test_an_open_connection_is_used_and_none_is_made(link: Link, wires: list[Wire]) -> None:
    assert (link.open_far, wires) == (None, [])
    remote = link.remote
    assert link.open_far is remote
    wires[0].close()
    again = link.open_far
    assert again is None


# A machine whose port is closed


def closed() -> None:
    raise PortClosed("connection refused")


def test_a_closed_port_of_a_machine_that_never_answered_is_given_up_soon(link: Link, clock: Clock) -> None:
    with pytest.raises(PortClosed):
        link.retry(closed, link.retry_policy(600))
    assert 1 < sum(clock.pauses) <= module.CLOSED_SECONDS


def test_a_closed_port_of_a_machine_that_answered_before_is_waited_for(link: Link, clock: Clock) -> None:
    _ = link.connection
    with pytest.raises(PortClosed):
        link.retry(closed, link.retry_policy(600))
    assert sum(clock.pauses) > 590


def test_a_closed_port_of_a_machine_that_is_on_is_waited_for(link: Link, clock: Clock) -> None:
    link.power = lambda: None
    with pytest.raises(PortClosed):
        link.retry(closed, link.retry_policy(600))
    assert sum(clock.pauses) > 590


def test_a_closed_port_of_a_machine_that_is_off_is_not_waited_for(link: Link, clock: Clock) -> None:
    link.power = lambda: "my-dsvm is deallocated"
    with pytest.raises(SwitchedOff, match="my-dsvm is deallocated"):
        link.retry(closed, link.retry_policy(600))
    assert clock.pauses == []


def test_a_machine_that_was_silent_before_its_port_closed_is_waited_for(link: Link, clock: Clock) -> None:
    errors: list[Exception] = [Unreachable("timed out"), *[PortClosed("refused")] * 12]

    def attempt() -> str:
        if errors:
            raise errors.pop(0)
        return "done"

    assert link.retry(attempt, link.retry_policy(600)) == "done"
    assert sum(clock.pauses) > module.CLOSED_SECONDS


def test_drop_does_not_wait_for_a_connection_that_is_being_made() -> None:
    """After Ctrl-C, a target that accepts connections and stays silent does not hold the program up."""
    is_connecting, may_fail = threading.Event(), threading.Event()

    def connect() -> Wire:
        is_connecting.set()
        may_fail.wait(60)
        raise Unreachable("no answer")

    link = Link(TARGET, connect)
    connecting = begin(lambda: link.connection, "connecting")
    assert is_connecting.wait(20)
    try:
        begin(link.drop, "drop").result(20)
    finally:
        may_fail.set()
    with pytest.raises(Unreachable):
        connecting.result(20)
