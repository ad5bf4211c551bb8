"""Ctrl-C and SIGTERM: the program ends without waiting for Azure, names what exists and what to run next.

Holds and operations outlast every test, so a program that ends did not wait for them.
"""

import itertools
import signal
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.integration.provision.harness import Harness, cases, resource_type, resources_of
from tests.integration.provision.interruptible import InterruptibleProgram, started

NAME = "stopped"
SPEC = f"{NAME}.yaml"
LONG_SECONDS = 600.0
# After one Ctrl-C the program waits this long for a call in flight (`provision.waiting.steps.GRACE_SECONDS`).
GRACE_SECONDS = 20.0


@pytest.fixture(autouse=True)
def write_spec(harness: Harness) -> None:
    harness.spec(NAME)


@dataclass(frozen=True)
class Moment:
    """When to interrupt: what keeps the program there, how to see that it is there, and what exists by then."""

    arm: Callable[[Harness], None]
    wait: Callable[[Harness, InterruptibleProgram], None]
    exists: str | None


def wait_until_held(harness: Harness, program: InterruptibleProgram) -> None:
    program.wait_for(lambda: harness.held() > 0, "a fault holds a request")


def wait_until_polling(harness: Harness, program: InterruptibleProgram) -> None:
    """Wait until the program has asked for the status of a running operation."""

    def has_asked() -> bool:
        asked = any(resource_type(each) in {"operations", "operationstatuses"} for each in harness.requests())
        return asked and harness.is_operation_in_progress()

    program.wait_for(has_asked, "it polls an operation")


def wait_for_text(text: str) -> Callable[[Harness, InterruptibleProgram], None]:
    return lambda harness, program: program.wait_for_text(text)


def hold(method: str, kind: str) -> Callable[[Harness], None]:
    return lambda harness: harness.arm("hold-before", method=method, type=kind)


def slow_operation(kind: str) -> Callable[[Harness], None]:
    return lambda harness: harness.arm("slow", operation=True, seconds=LONG_SECONDS, type=kind)


MOMENTS = {
    "first read": Moment(hold("GET", "virtualMachines"), wait_until_held, None),
    "preflight": Moment(hold("GET", "skus"), wait_until_held, None),
    "network": Moment(slow_operation("virtualNetworks"), wait_until_polling, f"resource-group gpuinfra-{NAME}"),
    "machine": Moment(slow_operation("virtualMachines"), wait_until_polling, f"vm {NAME}"),
    "ssh": Moment(lambda harness: harness.arm("ssh-refuses"), wait_for_text("waiting for SSH"), f"vm {NAME}"),
    "throttled": Moment(
        lambda harness: harness.arm("TooManyRequests", retryAfter=600, method="PUT", type="virtualMachines"),
        wait_for_text("throttling"),
        f"nic {NAME}-nic",
    ),
}
OUTPUTS = ("pipe", "terminal")
EVERY = [*itertools.product(MOMENTS, OUTPUTS)]
# One of each kind of wait, with the outputs in turn: a terminal makes the same difference at every moment.
ONE_OF_EACH = [("first read", "pipe"), ("machine", "terminal"), ("ssh", "pipe"), ("throttled", "pipe")]


def check_message(text: str, exists: str | None) -> None:
    assert "Traceback" not in text
    assert "internal error" not in text
    if exists is None:
        assert "interrupted; nothing exists in Azure" in text
    else:
        assert "interrupted; in Azure exists: " in text
        assert exists in text.split("in Azure exists: ")[1]
        assert "run the same command again" in text
        assert f"gpuinfra down {NAME} --delete" in text


def check_terminal(program: InterruptibleProgram) -> None:
    """Verify that the terminal's settings and its cursor are restored."""
    assert program.terminal_settings() == program.settings_before
    assert program.output.rfind("\x1b[?25h") >= program.output.rfind("\x1b[?25l")


def check_converges(harness: Harness, *first: str) -> None:
    harness.clear()
    harness.advance(LONG_SECONDS)  # ends all operations
    if first:
        harness.succeed(*first, SPEC)
    harness.succeed("up", SPEC)
    assert harness.machines() == [(NAME, "southcentralus", "running")]
    assert harness.resources() == resources_of(NAME)
    if harness.exhaustive:
        harness.succeed("down", "--delete", SPEC)
        assert harness.resources() == set()


@cases("moment, output", ONE_OF_EACH, EVERY)
def test_ctrl_c_ends_up_and_names_what_exists(harness: Harness, moment: str, output: str) -> None:
    what = MOMENTS[moment]
    what.arm(harness)
    with started(harness, "up", SPEC, terminal=output == "terminal") as program:
        what.wait(harness, program)
        program.interrupt()
        ended = program.end()
        assert ended.code == 130, ended.text
        check_message(ended.text, what.exists)
        if program.terminal:
            check_terminal(program)
    # A guest keeps its SSH fault until it boots again.
    check_converges(harness, *(["down"] if moment == "ssh" else []))


@cases("moment", ["machine"], [*MOMENTS])
def test_sigterm_ends_up_as_ctrl_c_does(harness: Harness, moment: str) -> None:
    """CI systems and `systemctl stop` send SIGTERM."""
    what = MOMENTS[moment]
    what.arm(harness)
    with started(harness, "up", SPEC) as program:
        what.wait(harness, program)
        program.interrupt(signal.SIGTERM)
        ended = program.end()
        assert ended.code in {130, 143}, ended.text
        check_message(ended.text, what.exists)


DOWN = [*itertools.product(["down", "down --delete"], ["SIGINT", "SIGTERM"], OUTPUTS)]


@cases("words, number, output", [DOWN[0], DOWN[6]], DOWN)
def test_interrupted_down_names_what_exists(harness: Harness, words: str, number: str, output: str) -> None:
    """The VM may still be billed."""
    harness.succeed("up", SPEC)
    slow_operation("virtualMachines")(harness)
    with started(harness, *words.split(), SPEC, "--yes", terminal=output == "terminal") as program:
        program.wait_for_text("deleting" if "--delete" in words else "deallocating")
        program.wait_for(harness.is_operation_in_progress, "an operation in progress")
        program.interrupt(signal.Signals[number])
        ended = program.end()
        assert ended.code in {130, 143}, ended.text
        assert "Traceback" not in ended.text
        message = ended.text.split("interrupted", 1)[1]
        assert f"vm {NAME}" in message
        assert "run the same command again" in message
    check_converges(harness)


# A call in flight


@cases("output", ["pipe"], OUTPUTS)
def test_ctrl_c_waits_for_the_call_in_flight(harness: Harness, output: str) -> None:
    """The answer is read, and what the call created is named."""
    harness.arm("slow", seconds=1, method="PUT", type="virtualMachines")
    with started(harness, "up", SPEC, terminal=output == "terminal") as program:
        program.wait_for(lambda: not harness.faults(), "the call is in flight")
        program.interrupt()
        ended = program.end()
        assert ended.code == 130, ended.text
        check_message(ended.text, f"vm {NAME}")
    check_converges(harness)


@cases("output", ["terminal"], OUTPUTS)
def test_second_ctrl_c_does_not_wait_for_the_call_in_flight(harness: Harness, output: str) -> None:
    hold("PUT", "virtualNetworks")(harness)
    with started(harness, "up", SPEC, terminal=output == "terminal") as program:
        wait_until_held(harness, program)
        program.interrupt()
        assert program.runs_for(0.5), program.text
        program.interrupt()
        ended = program.end(GRACE_SECONDS - 1)
        assert ended.code == 130, ended.text
        check_message(ended.text, f"resource-group gpuinfra-{NAME}")
        if program.terminal:
            check_terminal(program)
    check_converges(harness)


SILENT = [each for each in EVERY if each[0] in {"first read", "preflight", "network", "ssh"}]


@cases("moment, output", [("network", "pipe")], SILENT)
def test_second_ctrl_c_ends_the_final_look_at_azure(harness: Harness, moment: str, output: str) -> None:
    """After the first Ctrl-C the program looks at what exists, and Azure does not answer."""
    what = MOMENTS[moment]
    what.arm(harness)
    with started(harness, "up", SPEC, terminal=output == "terminal") as program:
        what.wait(harness, program)
        held = harness.held()
        harness.arm("hold-before", method="GET", count=0)
        program.interrupt()
        program.wait_for(lambda: harness.held() > held, "the look is held")
        program.interrupt()
        ended = program.end()
        assert ended.code == 130, ended.text
        assert "Azure did not say what exists" in ended.text
        assert "Traceback" not in ended.text
        if program.terminal:
            check_terminal(program)


def test_ctrl_c_ends_up_when_azure_does_not_answer(harness: Harness) -> None:
    """The final look has a deadline, and the message says that nothing could be read."""
    slow_operation("virtualMachines")(harness)
    with started(harness, "up", SPEC) as program:
        wait_until_polling(harness, program)
        harness.arm("hold-before", method="GET", count=0)
        program.interrupt()
        ended = program.end()
        assert ended.code == 130, ended.text
        assert "Azure did not say what exists" in ended.text
        assert f"gpuinfra down {NAME} --delete" in ended.text
    check_converges(harness)
