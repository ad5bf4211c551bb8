"""Deadlines, and retries where Azure is busy. Time passes only in waits."""

from collections.abc import Callable

import pytest

from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.waiting import MAX_PAUSE, retry, wait_until
from tests.unit.provision_help import BUSY, DENIED, UNREACHABLE, Time


class Attempts:
    """Fails this many times, then succeeds."""

    def __init__(self, error: CloudError, times: int) -> None:
        self.error, self.left, self.count = error, times, 0

    def __call__(self) -> str:
        self.count += 1
        if self.left:
            self.left -= 1
            raise self.error
        return "done"


def test_successful_call_is_made_once() -> None:
    time, attempt = Time(), Attempts(BUSY, 0)
    assert retry(attempt, time.deadline(10), time.pause) == "done"
    assert (attempt.count, time.pauses) == (1, [])


def test_busy_is_retried_with_growing_pauses() -> None:
    time, attempt = Time(), Attempts(BUSY, 9)
    assert retry(attempt, time.deadline(100), time.pause) == "done"
    assert attempt.count == 10
    assert time.pauses == sorted(time.pauses)
    assert (time.pauses[0], time.pauses[-1]) == (0.5, MAX_PAUSE)


def test_busy_is_retried_until_the_deadline() -> None:
    time, attempt = Time(), Attempts(BUSY, -1)
    with pytest.raises(CloudError, match="Conflict"):
        retry(attempt, time.deadline(60), time.pause)
    assert 60 - MAX_PAUSE <= time.seconds < 60


@pytest.mark.parametrize(("window", "tries"), [(0.0, 1), (0.4, 1), (2.0, 3)])
def test_unreachable_is_retried_for_a_while(window: float, tries: int) -> None:
    time, attempt = Time(), Attempts(UNREACHABLE, -1)
    with pytest.raises(CloudError, match="no answer"):
        retry(attempt, time.deadline(600), time.pause, unreachable_seconds=window)
    assert attempt.count == tries
    assert time.seconds <= window


def test_unreachable_is_retried_only_until_the_deadline() -> None:
    time = Time()
    with pytest.raises(CloudError):
        retry(Attempts(UNREACHABLE, -1), time.deadline(3), time.pause, unreachable_seconds=600)
    assert time.seconds < 3


def test_restored_connection_succeeds() -> None:
    time = Time()
    assert retry(Attempts(UNREACHABLE, 3), time.deadline(600), time.pause, unreachable_seconds=30) == "done"


def test_long_operation_does_not_use_up_the_unreachable_window() -> None:
    time, attempt = Time(), Attempts(UNREACHABLE, 1)

    def run_long() -> str:
        time.pause(300 if attempt.count == 0 else 0)  # five minutes in Azure, then one poll is lost
        return attempt()

    assert retry(run_long, time.deadline(2400), time.pause, unreachable_seconds=30) == "done"


def test_busy_time_does_not_count_as_unreachable() -> None:
    time, busy, lost = Time(), Attempts(BUSY, 20), Attempts(UNREACHABLE, 1)

    def attempt() -> str:
        busy()
        return lost()

    assert retry(attempt, time.deadline(2400), time.pause, unreachable_seconds=30) == "done"


def test_other_faults_are_not_retried() -> None:
    for fault in set(Fault) - {Fault.BUSY, Fault.UNREACHABLE}:
        time, attempt = Time(), Attempts(CloudError(fault, "Code", "no"), -1)
        with pytest.raises(CloudError):
            retry(attempt, time.deadline(600), time.pause, unreachable_seconds=600)
        assert (attempt.count, time.pauses) == (1, [])


def test_interrupt_during_a_pause_is_raised() -> None:
    def pause(_: float) -> None:
        raise CloudError(Fault.INTERRUPTED, "Interrupted", "")

    with pytest.raises(CloudError) as caught:
        retry(Attempts(BUSY, -1), Time().deadline(600), pause)
    assert caught.value.fault is Fault.INTERRUPTED


def _after(times: int) -> Callable[[], bool]:
    answers = iter([False] * times + [True] * 100)
    return lambda: next(answers)


def test_until_returns_when_the_condition_holds() -> None:
    time = Time()
    assert wait_until(_after(0), time.deadline(0), time.pause)
    assert time.pauses == []
    assert wait_until(_after(5), time.deadline(60), time.pause)
    assert len(time.pauses) == 5


def test_until_gives_up_at_the_deadline() -> None:
    time = Time()
    assert not wait_until(lambda: False, time.deadline(60), time.pause)
    assert time.seconds < 60
    assert max(time.pauses) <= MAX_PAUSE


def test_until_passes_errors_through() -> None:
    def condition() -> bool:
        raise DENIED

    with pytest.raises(CloudError, match="AuthorizationFailed"):
        wait_until(condition, Time().deadline(60), Time().pause)


def test_deadline_has_the_time_left() -> None:
    time = Time()
    deadline = time.deadline(10)
    assert (deadline.left, deadline.is_over) == (10, False)
    assert deadline.within(4).left == 4
    assert deadline.within(40).left == 10
    time.pause(11)
    assert (deadline.left, deadline.is_over) == (0, True)
    assert deadline.within(4).is_over
