"""Steps that wait for each other and otherwise run side by side. Barriers and events say who runs beside whom."""

import threading
from collections.abc import Callable
from concurrent import futures
from typing import Any

import pytest

import gpuinfra.provision.waiting.steps as module
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.waiting.interrupt import Interrupt
from gpuinfra.provision.waiting.steps import run_steps

SECONDS = 10  # a test that would hang fails instead


class Log:
    """Who has begun, in order."""

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


def test_each_begins_when_all_that_it_needs_is_done() -> None:
    log = Log()
    steps = {name: log.step(name) for name in "edcba"}
    run_steps(steps, {"b": "a", "c": "b", "d": "c", "e": "d"}, Interrupt())
    assert log.names == list("abcde")


def test_nothing_to_do_is_done() -> None:
    run_steps({}, {}, Interrupt())


def test_what_is_not_to_be_run_is_done() -> None:
    log = Log()
    run_steps({"b": log.step("b")}, {"b": ["a"]}, Interrupt())
    assert log.names == ["b"]


def test_those_that_need_nothing_of_each_other_run_side_by_side() -> None:
    together = threading.Barrier(3)
    log = Log()
    steps = {name: log.step(name, lambda: together.wait(SECONDS)) for name in "abc"}
    run_steps({**steps, "d": log.step("d")}, {"d": "abc"}, Interrupt())
    assert sorted(log.names[:3]) == list("abc")
    assert log.names[3] == "d"


def test_a_slow_one_holds_up_only_those_that_need_it() -> None:
    quick_is_done = threading.Event()
    steps = {
        "slow": lambda: assert_set(quick_is_done),
        "quick": lambda: None,
        "after quick": quick_is_done.set,
    }
    run_steps(steps, {"after quick": ["quick"]}, Interrupt())


def assert_set(event: threading.Event) -> None:
    assert event.wait(SECONDS)


def test_the_first_failure_ends_it_and_what_is_under_way_is_waited_for() -> None:
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
    interrupt.check()  # a failure is no interrupt


def test_of_two_failures_one_is_told() -> None:
    together = threading.Barrier(2)

    def fail(code: str) -> Callable[[], None]:
        def step() -> None:
            together.wait(SECONDS)
            refuse(code)()

        return step

    with pytest.raises(CloudError, match=r"One|Two"):
        run_steps({"a": fail("One"), "b": fail("Two")}, {}, Interrupt())


def test_an_error_of_ours_ends_it_as_well() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    log = Log()
    with pytest.raises(ZeroDivisionError):
        run_steps({"a": fail, "b": log.step("b")}, {"b": ["a"]}, Interrupt())
    assert log.names == []


# Ctrl-C


class Waiting:
    """Stands for `concurrent.futures.wait`, in which the main thread is when Ctrl-C comes."""

    def __init__(self, *interrupted: int, ready: threading.Event) -> None:
        self.interrupted, self.ready, self.calls = interrupted, ready, list[float | None]()

    def __call__(self, running: Any, timeout: float | None = None, return_when: str = futures.ALL_COMPLETED) -> Any:
        self.calls.append(timeout)
        if len(self.calls) in self.interrupted:
            assert_set(self.ready)
            raise KeyboardInterrupt
        return futures.wait(running, SECONDS, return_when)


def test_ctrl_c_begins_nothing_more_and_waits_for_the_call_that_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    log, interrupt, begun = Log(), Interrupt(), threading.Event()

    def call() -> None:
        begun.set()
        # It goes on until somebody tells it, and then comes to its end.
        while True:
            try:
                interrupt.check("machine my-dsvm")
            except CloudError as error:
                log.names.append(error.code)
                raise

    waiting = Waiting(1, ready=begun)
    monkeypatch.setattr(module, "wait", waiting)
    with pytest.raises(KeyboardInterrupt):
        run_steps({"a": call, "b": log.step("b")}, {"b": ["a"]}, interrupt)
    assert log.names == ["Interrupted"]
    assert waiting.calls == [None, module.GRACE_SECONDS]


def test_ctrl_c_after_a_failure_has_the_others_give_up(monkeypatch: pytest.MonkeyPatch) -> None:
    log, interrupt, begun = Log(), Interrupt(), threading.Event()

    def wait_in_azure() -> None:
        begun.set()
        try:
            while True:
                interrupt.check()
        except CloudError as error:
            log.names.append(error.code)

    waiting = Waiting(2, ready=begun)
    monkeypatch.setattr(module, "wait", waiting)
    with pytest.raises(KeyboardInterrupt):
        run_steps({"a": refuse("First"), "b": wait_in_azure}, {}, interrupt)
    assert log.names == ["Interrupted"]
    assert waiting.calls == [None, None, module.GRACE_SECONDS]


def test_ctrl_c_that_comes_out_of_a_step_is_ctrl_c() -> None:
    log, interrupt = Log(), Interrupt()

    def step() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_steps({"a": step, "b": log.step("b")}, {"b": ["a"]}, interrupt)
    assert log.names == []
    with pytest.raises(CloudError) as caught:
        interrupt.check("machine my-dsvm")
    assert (caught.value.fault, caught.value.subject) == (Fault.INTERRUPTED, "machine my-dsvm")


def test_an_interrupt_ends_a_pause_at_once_and_can_be_taken_back() -> None:
    interrupt = Interrupt()
    interrupt.sleep(0)
    interrupt.set()
    with pytest.raises(CloudError) as caught:
        interrupt.sleep(3600)
    assert caught.value.fault is Fault.INTERRUPTED
    interrupt.clear()
    interrupt.check()


def test_who_has_not_heard_of_the_interrupt_gives_up_when_it_is_over() -> None:
    """The main thread looks at what is left, which is not to be interrupted; Python waits for the others at its end."""
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
