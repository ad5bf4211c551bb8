"""Lost connections are opened again, for as long as the retry policy allows."""

import threading
from collections.abc import Callable, Sequence

import pytest

from gpuinfra.models.target import Target
from gpuinfra.runner import link as module
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
from gpuinfra.runner.link import Link, RetryPolicy, is_transient
from gpuinfra.runner.progress import in_thread

TARGET = Target("lab", "lab", "remote", "203.0.113.7", 22, "me", "ssh-ed25519 AAAA")


class Wire:
    """A connection that tests can break."""

    where = "203.0.113.7:22"
    last_received_at = 0.0

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


def test_link_opens_one_connection(link: Link, wires: list[Wire]) -> None:
    assert link.connection is link.connection
    assert link.remote.connection is link.connection
    assert link.remote is link.remote
    assert len(wires) == 1


def test_lost_connection_is_replaced_with_its_remote_client(link: Link, wires: list[Wire]) -> None:
    before = link.remote
    wires[0].is_open = False
    assert link.remote is not before
    assert len(wires) == 2
    assert wires[0].closed == 1


def test_working_connection_is_dropped_only_after_a_timeout(link: Link, wires: list[Wire]) -> None:
    _ = link.connection
    link.handle_loss(Broken("one of many"))
    assert link.connection is wires[0]
    link.handle_loss(TimedOut("silent"))
    assert link.connection is not wires[0]


def test_retry_repeats_until_an_attempt_succeeds(link: Link, wires: list[Wire], clock: Clock) -> None:
    errors: list[Exception] = [Unreachable("a"), Broken("b"), TimedOut("c")]
    losses: list[Exception] = []

    def attempt() -> str:
        _ = link.connection
        if errors:
            raise errors.pop(0)
        return "done"

    assert link.retry(attempt, RetryPolicy(60, losses.append)) == "done"
    assert len(losses) == 1
    assert clock.pauses == sorted(clock.pauses)


def test_retry_raises_the_error_after_its_time(link: Link, clock: Clock) -> None:
    def attempt() -> None:
        raise Unreachable("no answer")

    with pytest.raises(Unreachable):
        link.retry(attempt, RetryPolicy(60))
    assert 50 < sum(clock.pauses) <= 60


def test_reset_restarts_the_retry_time(clock: Clock) -> None:
    policy = RetryPolicy(10)
    policy.wait(Broken("first"))
    clock.now += 1000
    with pytest.raises(Broken):
        policy.wait(Broken("too late"))
    policy.reset()
    policy.wait(Broken("again"))


@pytest.mark.parametrize(
    ("error", "retry_engine", "is_retried"),
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
def test_only_transient_errors_are_retried(
    error: Exception, retry_engine: bool, is_retried: bool, clock: Clock
) -> None:
    assert is_transient(error, retry_engine=retry_engine) is is_retried
    if not is_retried:
        with pytest.raises(type(error)):
            RetryPolicy(60, retry_engine=retry_engine).wait(error)
        assert clock.pauses == []


# A machine that is off


def test_retry_checks_the_power_state_every_twenty_seconds(link: Link, clock: Clock) -> None:
    checked_at: list[float] = []

    def power() -> str | None:
        checked_at.append(clock.now)
        return "my-dsvm is deallocated" if len(checked_at) == 3 else None

    def attempt() -> None:
        _ = link.connection
        raise Unreachable("no answer")

    link.power, began = power, clock.now
    with pytest.raises(SwitchedOff, match="my-dsvm is deallocated"):
        link.retry(attempt, link.retry_policy(600))
    waits = [after - before for before, after in zip([began, *checked_at], checked_at, strict=False)]
    assert len(waits) == 3
    assert all(19.9 < wait <= 20.1 + module.MAX_PAUSE for wait in waits)
    assert link.is_off


def test_machine_stays_off_if_a_later_power_check_has_no_answer(link: Link) -> None:
    answers = ["my-dsvm is deallocated", None]
    link.power = lambda: answers.pop(0)
    for _ in range(2):
        with pytest.raises(SwitchedOff, match="my-dsvm is deallocated"):
            link.check_power()
    assert link.is_off


def test_link_to_a_machine_that_is_off_opens_no_connection(link: Link, wires: list[Wire]) -> None:
    _ = link.connection
    link.power = lambda: "my-dsvm is gone"
    with pytest.raises(SwitchedOff):
        link.check_power()
    assert wires[0].closed
    with pytest.raises(SwitchedOff, match="my-dsvm is gone"):
        _ = link.remote
    assert (link.remote_if_open, len(wires)) == (None, 1)


@pytest.mark.parametrize("power", [None, lambda: None])
def test_machine_of_unknown_power_state_is_retried_for_the_whole_time(
    link: Link, clock: Clock, power: Callable[[], str | None] | None
) -> None:
    def attempt() -> None:
        raise Unreachable("no answer")

    link.power = power
    with pytest.raises(Unreachable):
        link.retry(attempt, link.retry_policy(600))
    assert sum(clock.pauses) > 590


def test_remote_if_open_uses_only_an_open_connection(link: Link, wires: list[Wire]) -> None:
    assert (link.remote_if_open, wires) == (None, [])
    remote = link.remote
    assert link.remote_if_open is remote
    wires[0].close()
    again = link.remote_if_open
    assert again is None


# A machine whose port is closed


def raise_port_closed() -> None:
    raise PortClosed("connection refused")


def test_closed_port_of_a_machine_that_never_answered_fails_soon(link: Link, clock: Clock) -> None:
    with pytest.raises(PortClosed):
        link.retry(raise_port_closed, link.retry_policy(600))
    assert 1 < sum(clock.pauses) <= module.CLOSED_SECONDS


def test_closed_port_of_a_machine_that_answered_before_is_retried(link: Link, clock: Clock) -> None:
    _ = link.connection
    with pytest.raises(PortClosed):
        link.retry(raise_port_closed, link.retry_policy(600))
    assert sum(clock.pauses) > 590


def test_closed_port_of_a_machine_that_is_on_is_retried(link: Link, clock: Clock) -> None:
    link.power = lambda: None
    with pytest.raises(PortClosed):
        link.retry(raise_port_closed, link.retry_policy(600))
    assert sum(clock.pauses) > 590


def test_closed_port_of_a_machine_that_is_off_fails_at_once(link: Link, clock: Clock) -> None:
    link.power = lambda: "my-dsvm is deallocated"
    with pytest.raises(SwitchedOff, match="my-dsvm is deallocated"):
        link.retry(raise_port_closed, link.retry_policy(600))
    assert clock.pauses == []


def test_closed_port_after_a_timeout_is_retried(link: Link, clock: Clock) -> None:
    errors: list[Exception] = [Unreachable("timed out"), *[PortClosed("refused")] * 12]

    def attempt() -> str:
        if errors:
            raise errors.pop(0)
        return "done"

    assert link.retry(attempt, link.retry_policy(600)) == "done"
    assert sum(clock.pauses) > module.CLOSED_SECONDS


def test_drop_does_not_wait_for_another_thread_that_connects() -> None:
    """After Ctrl-C, a target that accepts connections but stays silent does not delay the program's end."""
    is_connecting, may_fail = threading.Event(), threading.Event()

    def connect() -> Wire:
        is_connecting.set()
        may_fail.wait(60)
        raise Unreachable("no answer")

    link = Link(TARGET, connect)
    connecting = in_thread(lambda: link.connection, "connecting")
    assert is_connecting.wait(20)
    try:
        in_thread(link.drop, "drop").result(20)
    finally:
        may_fail.set()
    with pytest.raises(Unreachable):
        connecting.result(20)
