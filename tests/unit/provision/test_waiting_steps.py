"""Steps that wait for their dependencies and otherwise run in parallel. Barriers and events prove it."""

import threading
from collections.abc import Callable
from concurrent import futures
from typing import Any

import pytest

import gpuinfra.provision.waiting as module
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.waiting import Interrupt, run_steps

SECONDS = 10  # a test that would hang fails instead


class Log:
    """The steps that have begun, in order."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def step(self, name: str, then: Callable[[], Any] = lambda: None) -> Callable[[], None]:
        def run() -> None:
            self.names.append(name)
            then()

        return run


def refuse(code: str) -> Callable[[], None]:
    def step() -> None:
        raise CloudError(Fault.OTHER, code, "no")

    return step


def test_step_begins_after_its_dependencies() -> None:
    log = Log()
    steps = {name: log.step(name) for name in "edcba"}
    run_steps(steps, {"b": "a", "c": "b", "d": "c", "e": "d"}, Interrupt())
    assert log.names == list("abcde")


def test_no_steps_is_a_success() -> None:
    run_steps({}, {}, Interrupt())


def test_missing_dependency_counts_as_done() -> None:
    log = Log()
    run_steps({"b": log.step("b")}, {"b": ["a"]}, Interrupt())
    assert log.names == ["b"]


def test_independent_steps_run_in_parallel() -> None:
    together = threading.Barrier(3)
    log = Log()
    steps = {name: log.step(name, lambda: together.wait(SECONDS)) for name in "abc"}
    run_steps({**steps, "d": log.step("d")}, {"d": "abc"}, Interrupt())
    assert sorted(log.names[:3]) == list("abc")
    assert log.names[3] == "d"


def test_slow_step_delays_only_its_dependents() -> None:
    quick_is_done = threading.Event()
    steps = {
        "slow": lambda: assert_set(quick_is_done),
        "quick": lambda: None,
        "after quick": quick_is_done.set,
    }
    run_steps(steps, {"after quick": ["quick"]}, Interrupt())


def assert_set(event: threading.Event) -> None:
    assert event.wait(SECONDS)


def test_first_failure_stops_new_steps_and_waits_for_running_ones() -> None:
    log, failed = Log(), threading.Event()

    def fail() -> None:
        failed.set()
        refuse("First")()

    def finish() -> None:
        assert_set(failed)
        log.names.append("finished")

    interrupt = Interrupt()
    steps = {"a": fail, "b": finish, "c": log.step("c")}
    with pytest.raises(CloudError, match="First"):
        run_steps(steps, {"c": ["a", "b"]}, interrupt)
    assert log.names == ["finished"]
    interrupt.check()  # a failure is not an interrupt


def test_one_of_two_failures_is_raised() -> None:
    together = threading.Barrier(2)

    def fail(code: str) -> Callable[[], None]:
        def step() -> None:
            together.wait(SECONDS)
            refuse(code)()

        return step

    with pytest.raises(CloudError, match=r"One|Two"):
        run_steps({"a": fail("One"), "b": fail("Two")}, {}, Interrupt())


def test_unexpected_exception_stops_new_steps() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    log = Log()
    with pytest.raises(ZeroDivisionError):
        run_steps({"a": fail, "b": log.step("b")}, {"b": ["a"]}, Interrupt())
    assert log.names == []


# Ctrl-C


class FakeWait:
    """Replaces `concurrent.futures.wait`, in which the main thread is when Ctrl-C arrives."""

    def __init__(self, *interrupted: int, ready: threading.Event) -> None:
        self.interrupted, self.ready, self.calls = interrupted, ready, list[float | None]()

    def __call__(self, running: Any, timeout: float | None = None, return_when: str = futures.ALL_COMPLETED) -> Any:
        self.calls.append(timeout)
        if len(self.calls) in self.interrupted:
            assert_set(self.ready)
            raise KeyboardInterrupt
        return futures.wait(running, SECONDS, return_when)


def test_ctrl_c_starts_no_step_and_waits_for_the_running_call(monkeypatch: pytest.MonkeyPatch) -> None:
    log, interrupt, begun = Log(), Interrupt(), threading.Event()

    def call() -> None:
        begun.set()
        # It runs until it sees the interrupt, and then ends.
        while True:
            try:
                interrupt.check("machine my-dsvm")
            except CloudError as error:
                log.names.append(error.code)
                raise

    waiting = FakeWait(1, ready=begun)
    monkeypatch.setattr(module, "wait", waiting)
    with pytest.raises(KeyboardInterrupt):
        run_steps({"a": call, "b": log.step("b")}, {"b": ["a"]}, interrupt)
    assert log.names == ["Interrupted"]
    assert waiting.calls == [None, module.GRACE_SECONDS]


def test_ctrl_c_after_a_failure_interrupts_running_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    log, interrupt, begun = Log(), Interrupt(), threading.Event()

    def wait_in_azure() -> None:
        begun.set()
        try:
            while True:
                interrupt.check()
        except CloudError as error:
            log.names.append(error.code)

    waiting = FakeWait(2, ready=begun)
    monkeypatch.setattr(module, "wait", waiting)
    with pytest.raises(KeyboardInterrupt):
        run_steps({"a": refuse("First"), "b": wait_in_azure}, {}, interrupt)
    assert log.names == ["Interrupted"]
    assert waiting.calls == [None, None, module.GRACE_SECONDS]


def test_ctrl_c_in_a_step_is_raised() -> None:
    log, interrupt = Log(), Interrupt()

    def step() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_steps({"a": step, "b": log.step("b")}, {"b": ["a"]}, interrupt)
    assert log.names == []
    with pytest.raises(CloudError) as caught:
        interrupt.check("machine my-dsvm")
    assert (caught.value.fault, caught.value.subject) == (Fault.INTERRUPTED, "machine my-dsvm")


def test_interrupt_ends_a_pause_and_can_be_cleared() -> None:
    interrupt = Interrupt()
    interrupt.sleep(0)
    interrupt.set()
    with pytest.raises(CloudError) as caught:
        interrupt.sleep(3600)
    assert caught.value.fault is Fault.INTERRUPTED
    interrupt.clear()
    interrupt.check()


def test_late_thread_is_interrupted_after_the_interrupt_was_handled() -> None:
    """The main thread looks at what exists, uninterrupted; Python waits for the other threads at its end."""
    interrupt, begun, looked = Interrupt(), threading.Event(), threading.Event()
    told: list[CloudError] = []

    def late() -> None:
        with interrupt.at_work():
            begun.set()
            looked.wait(SECONDS)
            try:
                interrupt.sleep(0)
            except CloudError as error:
                told.append(error)

    thread = threading.Thread(target=late)
    thread.start()
    begun.wait(SECONDS)
    interrupt.set()
    interrupt.clear()
    interrupt.check()
    looked.set()
    thread.join(SECONDS)
    assert [error.fault for error in told] == [Fault.INTERRUPTED]
