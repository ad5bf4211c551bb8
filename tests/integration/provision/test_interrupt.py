"""Ctrl-C, by the installed program: it ends soon, says what there is and what to run, and the next `up` goes on."""

import itertools
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.integration.provision.interrupt_help import Program, program
from tests.integration.provision.kill_help import World, parts, worlds

NAME = "stopped"
SPEC = f"{NAME}.yaml"
SOON = 5.0
"""Three seconds are meant; other tests run at the same time."""
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with worlds(tmp_path_factory.mktemp("interrupt") / "worlds", 1) as (world,):
        world.spec(NAME)
        yield world


@pytest.fixture
def world(made: World) -> Iterator[World]:
    made.reset()
    yield made
    made.clear()
    made.clock(1)


Tell = Callable[[str], None]


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Tell:
    """Whoever runs the tests sees how long it took."""

    def tell(text: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\n{text}\n")

    return tell


@dataclass(frozen=True)
class Moment:
    """When it is interrupted: what keeps it there, how that is seen, and whether anything is there by then."""

    arm: Callable[[World], None]
    reached: Callable[[World, Program], None]
    exists: str | None
    """What it has to name as being there."""


def held(world: World, started: Program) -> None:
    wait_until(lambda: world.held() > 0, started)


def going_on(kind: str) -> Callable[[World, Program], None]:
    def reached(world: World, started: Program) -> None:
        def goes() -> bool:
            return any(each["action"] == f"{kind}/write" for each in world.operations())

        wait_until(goes, started)
        time.sleep(0.3)  # it has asked after it

    return reached


def saying(words: str) -> Callable[[World, Program], None]:
    return lambda world, started: started.wait_for(words)


def wait_until(condition: Callable[[], bool], started: Program, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, started.plain
        assert started.process.poll() is None, started.plain
        started.read(0.02)


def hold(method: str, kind: str) -> Callable[[World], None]:
    return lambda world: world.arm("hold-before", method=method, type=kind)


def slow(kind: str) -> Callable[[World], None]:
    return lambda world: world.arm("slow", operation=True, seconds=30, type=kind)


MOMENTS = {
    "first look": Moment(hold("GET", "virtualMachines"), held, None),
    "preflight": Moment(hold("GET", "skus"), held, None),
    "network": Moment(slow("virtualNetworks"), going_on("virtualNetworks"), f"group gpuinfra-{NAME}"),
    "machine": Moment(slow("virtualMachines"), going_on("virtualMachines"), f"machine {NAME}"),
    "ssh": Moment(lambda world: world.arm("ssh-refuses"), saying("waiting for SSH"), f"machine {NAME}"),
    "throttled": Moment(
        lambda world: world.arm("TooManyRequests", retryAfter=60, method="PUT", type="virtualMachines"),
        saying("throttling"),
        f"interface {NAME}-interface",
    ),
}


def check_words(said: str, exists: str | None) -> None:
    assert "Traceback" not in said
    assert "internal error" not in said
    if exists is None:
        assert "interrupted; there is nothing of it in Azure" in said
    else:
        assert "interrupted; in Azure there is now: " in said
        assert exists in said.split("in Azure there is now: ")[1]
        assert "run the same command again" in said
        assert f"gpuinfra down {NAME} --delete" in said


def check_terminal(started: Program) -> None:
    """As it was: what is typed is seen again, and so is the cursor."""
    assert started.after() == started.before
    assert started.said.rfind("\x1b[?25h") >= started.said.rfind("\x1b[?25l")


def converges(world: World, *first: str) -> None:
    world.clear()
    world.clock(60)  # what was made slow is over soon
    if first:
        world.succeed(*first, SPEC)
    world.succeed("up", SPEC)
    assert world.machines() == [(NAME, "southcentralus", "running")]
    assert world.resources() == parts(NAME)
    world.succeed("down", "--delete", SPEC)
    assert world.resources() == set()


# Each moment with one of the two: what a terminal changes does not hang on the moment.
@pytest.mark.parametrize(("moment", "terminal"), [*zip(MOMENTS, itertools.cycle([False, True]))])
def test_ctrl_c(world: World, moment: str, terminal: bool, tell: Tell) -> None:
    what = MOMENTS[moment]
    what.arm(world)
    with program(world, "up", SPEC, terminal=terminal) as started:
        what.reached(world, started)
        started.tell()
        ended = started.end(SOON)
        tell(f"Ctrl-C, {moment}, {'terminal' if terminal else 'pipe'}: {ended.seconds:.2f} s")
        assert ended.code == 130, ended.said
        check_words(ended.said, what.exists)
        if terminal:
            check_terminal(started)
    # A guest's SSH stays as it was when it booted, so it is booted again.
    converges(world, *(["down"] if moment == "ssh" else []))


@pytest.mark.parametrize("moment", list(MOMENTS)[::3])
def test_sigterm(world: World, moment: str, tell: Tell) -> None:
    """A polite request to end, as CI systems and `systemctl stop` make it, is no different."""
    what = MOMENTS[moment]
    what.arm(world)
    with program(world, "up", SPEC) as started:
        what.reached(world, started)
        started.tell(signal.SIGTERM)
        ended = started.end(SOON)
        tell(f"SIGTERM, {moment}: {ended.seconds:.2f} s, exit {ended.code}")
        assert ended.code in {130, 143}, ended.said
        check_words(ended.said, what.exists)


@pytest.mark.parametrize(
    ("words", "number"), [(("down",), signal.SIGINT), (("down", "--delete"), signal.SIGTERM)], ids=["off", "gone"]
)
def test_down(world: World, words: tuple[str, ...], number: signal.Signals, tell: Tell) -> None:
    world.succeed("up", SPEC)
    world.arm("slow", operation=True, seconds=30, type="virtualMachines")
    with program(world, *words, SPEC) as started:
        started.wait_for("deleting" if "--delete" in words else "deallocating")
        wait_until(lambda: "InProgress" in [each["status"] for each in world.operations()], started)
        started.tell(number)
        ended = started.end(SOON)
        tell(f"{number.name}, {' '.join(words)}: {ended.seconds:.2f} s, exit {ended.code}")
        assert ended.code in {130, 143}, ended.said
        assert "Traceback" not in ended.said
        assert "interrupted" in ended.said
    converges(world)


@pytest.mark.parametrize("words", [("down",), ("down", "--delete")], ids=" ".join)
def test_down_says_what_there_is(world: World, words: tuple[str, ...]) -> None:
    """The machine may be billed: whoever stops `down` half-way has to know, and how to go on."""
    world.succeed("up", SPEC)
    world.arm("slow", operation=True, seconds=30, type="virtualMachines")
    with program(world, *words, SPEC) as started:
        wait_until(lambda: "InProgress" in [each["status"] for each in world.operations()], started)
        started.tell()
        ended = started.end(SOON)
        assert ended.code == 130, ended.said
        said = ended.said.split("interrupted", 1)[1]
        assert f"machine {NAME}" in said
        assert "run the same command again" in said


# A call that is under way


@pytest.mark.parametrize("terminal", [False, True], ids=["pipe", "terminal"])
def test_a_call_in_flight_comes_to_its_end(world: World, terminal: bool, tell: Tell) -> None:
    """The answer takes two seconds more: it is waited for, and what it made is named."""
    world.arm("slow", seconds=2, method="PUT", type="virtualMachines")
    with program(world, "up", SPEC, terminal=terminal) as started:
        started.wait_for(f"machine {NAME}")
        time.sleep(0.5)
        started.tell()
        ended = started.end(2 + SOON)
        tell(f"Ctrl-C, call in flight for 2 s: {ended.seconds:.2f} s")
        assert ended.code == 130, ended.said
        check_words(ended.said, f"machine {NAME}")
    converges(world)


@pytest.mark.parametrize("terminal", [False, True], ids=["pipe", "terminal"])
def test_a_second_ctrl_c_does_not_wait_for_the_call(world: World, terminal: bool, tell: Tell) -> None:
    what = Moment(hold("PUT", "virtualNetworks"), held, f"group gpuinfra-{NAME}")
    what.arm(world)
    with program(world, "up", SPEC, terminal=terminal) as started:
        what.reached(world, started)
        started.tell()
        assert not started.has_ended(1.0), "it waits for the call to come to its end"
        started.tell()
        ended = started.end(SOON)
        tell(f"second Ctrl-C, a call hangs: {ended.seconds:.2f} s")
        assert ended.code == 130, ended.said
        check_words(ended.said, what.exists)
        if terminal:
            check_terminal(started)
    converges(world)


@pytest.mark.parametrize(
    ("moment", "terminal"), [("first look", True), ("preflight", False), ("network", True), ("ssh", False)]
)
def test_a_second_ctrl_c_leaves_at_once(world: World, moment: str, terminal: bool, tell: Tell) -> None:
    """Azure does not answer at all any more, and nobody wants to wait for it."""
    what = MOMENTS[moment]
    what.arm(world)
    with program(world, "up", SPEC, terminal=terminal) as started:
        what.reached(world, started)
        world.arm("hold-before", method="GET", count=0)
        started.tell()
        if not started.has_ended(0.7):
            started.tell()
        ended = started.end(SOON)
        tell(f"second Ctrl-C, {moment}, Azure is silent: {ended.seconds:.2f} s")
        assert ended.code == 130, ended.said
        assert "Traceback" not in ended.said
        if terminal:
            check_terminal(started)


def test_azure_does_not_answer_any_more(world: World, tell: Tell) -> None:
    """What exists cannot be seen: that is said, and it is not waited for long."""
    world.arm("slow", operation=True, seconds=30, type="virtualMachines")
    with program(world, "up", SPEC) as started:
        going_on("virtualMachines")(world, started)
        world.arm("hold-before", method="GET", count=0)
        started.tell()
        ended = started.end(15)
        tell(f"Ctrl-C, nothing answers: {ended.seconds:.2f} s")
        assert ended.code == 130, ended.said
        assert "could not be seen" in ended.said
        assert f"gpuinfra down {NAME} --delete" in ended.said
    converges(world)
