"""Killed (SIGKILL) at every call of Azure's in turn: the next command goes on from there, and nothing is left behind.

Before every request the program is killed with that request, and all that would follow, held back: so exactly those
before it were carried out. After every write it is killed with the write done and its answer not heard.
"""

import collections
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.integration.provision.kill_help import WORKERS, World, for_every, parts, worlds

NAME, MOVED = "killed", "moved"
SPEC, MOVED_SPEC = f"{NAME}.yaml", f"{MOVED}.yaml"
REGION, OTHER_REGION = "southcentralus", "eastus"
# All of it takes a few minutes where nothing else runs, and other tests may.
pytestmark = pytest.mark.timeout(1800)

Say = Callable[[str], None]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[World]]:
    with worlds(tmp_path_factory.mktemp("kill") / "worlds", WORKERS) as made:
        for world in made:
            world.spec(NAME, regions=[REGION])
            world.spec(MOVED, regions=[REGION, OTHER_REGION])
        yield made


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Tell whoever runs the tests."""

    def say(text: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\n{text}\n")

    return say


# Boundaries


@dataclass(frozen=True)
class Boundary:
    """Where to kill: before the so-many-th request, or after the so-many-th one of a method that writes."""

    number: int
    method: str | None = None

    def __str__(self) -> str:
        return f"after {self.method} {self.number}" if self.method else f"before request {self.number}"

    def arm(self, world: World) -> None:
        if self.method:
            world.arm("hold-after", method=self.method, skip=self.number - 1)
        else:
            world.arm("hold-before", skip=self.number - 1, count=0)


def boundaries(requests: list[dict[str, Any]]) -> list[Boundary]:
    """All those of a command that has sent these."""
    written = collections.Counter(each["method"] for each in requests if each["method"] not in {"GET", "HEAD"})
    return [
        *(Boundary(number) for number in range(1, len(requests) + 1)),
        *(Boundary(number, method) for method in sorted(written) for number in range(1, written[method] + 1)),
    ]


@dataclass(frozen=True)
class Story:
    """A command that is killed: what there is before, what is wrong with Azure meanwhile, what must hold afterwards."""

    words: tuple[str, ...]
    before: Callable[[World], object]
    afterwards: Callable[[World, Boundary], object]
    meanwhile: Callable[[World], object] = lambda world: None

    def kill(self, world: World, boundary: Boundary) -> None:
        """Run the command as far as the boundary, and no further."""
        self.before(world)
        last = world.last_request()
        boundary.arm(world)
        self.meanwhile(world)  # after the hold, which so counts every request
        child = world.start(*self.words)
        assert world.wait_until_held(child), f"it ended before it came so far: {world.end(child).said}"
        killed = world.kill(child)
        world.clear()
        assert killed.code == -9, killed.said
        answered = sum(each["status"] != 0 for each in world.requests(last))
        assert boundary.method or answered == boundary.number - 1, f"{answered} requests were answered"

    def check(self, world: World, boundary: Boundary) -> None:
        self.kill(world, boundary)
        self.afterwards(world, boundary)


def kill_everywhere(made: list[World], story: Story, say: Say, *, reads_first: bool = True, one_of: int = 1) -> None:
    """Count the requests of the whole command, then kill it at every one of them, or from the first write on.

    With `one_of`, only before every so many-th request; after every write all the same.
    """
    world = made[0]
    story.before(world)
    last = world.last_request()
    story.meanwhile(world)
    world.succeed(*story.words)
    counted = world.requests(last)
    first = 1 if reads_first else 1 + next(place for place, each in enumerate(counted) if each["method"] != "GET")
    found = [each for each in boundaries(counted) if each.method or each.number >= first]
    cases = [each for each in found if each.method or each.number % one_of == 0]
    failures = for_every(made, cases, story.check)
    words, writes = " ".join(story.words), sum(each.method is not None for each in cases)
    before = f"before {len(cases) - writes} of {len(counted)} requests"
    say(f"`{words}` killed at {len(cases)} boundaries: {before}, after {writes} writes")
    assert not failures, f"{len(failures)} of {len(cases)}:\n" + "\n\n".join(failures)
    # That there is no further one is seen as well: a hold behind the last request holds nobody.
    story.before(world)
    Boundary(len(counted) + 1).arm(world)
    story.meanwhile(world)
    child = world.start(*story.words)
    assert not world.wait_until_held(child)
    done = world.end(child)
    assert done.code == 0, done.said
    world.clear()


# What there is before


def nothing(world: World) -> None:
    world.reset()


def running(world: World) -> None:
    if world.machines() != [(NAME, REGION, "running")]:
        world.reset()
        world.succeed("up", SPEC)


def off(world: World) -> None:
    running(world)
    world.succeed("down", SPEC)
    # Its lease ends at another minute than the last one, so that its schedule is always set anew.
    world.advance(120)


def full(world: World, count: int = 1) -> None:
    """The first region has no room."""
    world.arm("SkuNotAvailable", method="PUT", type="virtualMachines", region=REGION, count=count)


# What must hold afterwards


def runs(world: World, spec: str = SPEC, regions: tuple[str, ...] = (REGION,), *, plans: bool = True) -> None:
    """`up` converges: one machine, on, with its parts and nothing else, and nothing more to do."""
    name = spec.removesuffix(".yaml")
    world.succeed("up", spec)
    ((found, region, power),) = world.machines()
    assert (found, power) == (name, "running")
    assert region in regions
    assert world.resources() == parts(name)
    assert world.billed() == [name]
    if plans:
        planned = world.run("plan", "--detailed-exitcode", spec)
        assert planned.code == 0, f"the plan is not empty: {planned.said}"


def goes(world: World, spec: str = SPEC) -> None:
    """`down --delete` leaves nothing at all."""
    world.succeed("down", "--delete", spec)
    assert world.resources() == set()
    assert world.billed() == []


def goes_off(world: World) -> None:
    """`down` switches it off, and leaves the rest."""
    world.succeed("down", SPEC)
    assert world.machines() == [(NAME, REGION, "deallocated")]
    assert world.resources() == parts(NAME)
    assert world.billed() == []


# Stories


def test_up(made: list[World], say: Say) -> None:
    def afterwards(world: World, _: Boundary) -> None:
        runs(world)
        goes(world)

    kill_everywhere(made, Story(("up", SPEC), nothing, afterwards), say, one_of=3)


def test_up_and_then_down(made: list[World], say: Say) -> None:
    """Whoever has had enough of a machine that is half made gets rid of it without making it first."""
    kill_everywhere(made, Story(("up", SPEC), nothing, lambda world, _: goes(world)), say, reads_first=False, one_of=2)


def test_down_with_delete(made: list[World], say: Say) -> None:
    def afterwards(world: World, boundary: Boundary) -> None:
        if boundary.method or boundary.number % 10 == 0:
            runs(world)
        goes(world)

    kill_everywhere(made, Story(("down", "--delete", SPEC), running, afterwards), say, one_of=3)


def test_down(made: list[World], say: Say) -> None:
    kill_everywhere(made, Story(("down", SPEC), running, lambda world, _: goes_off(world)), say, one_of=2)


def test_up_of_a_machine_that_is_off(made: list[World], say: Say) -> None:
    kill_everywhere(made, Story(("up", SPEC), off, lambda world, _: runs(world)), say, one_of=2)


def test_failover(made: list[World], say: Say) -> None:
    """The first region has no room, just once: the next `up` may find some there, or where the last one went."""

    def afterwards(world: World, boundary: Boundary) -> None:
        runs(world, MOVED_SPEC, (REGION, OTHER_REGION), plans=boundary.method is not None)
        goes(world, MOVED_SPEC)

    # The same requests twice over: a few of the moments between them tell as much, in a fraction of the time.
    kill_everywhere(made, Story(("up", MOVED_SPEC), nothing, afterwards, meanwhile=full), say, one_of=6)


# While something goes on in Azure that the killed program began

SPEED, LONG = 60.0, 180
"""So an operation of three minutes takes three seconds."""
GOING_ON = [
    ("networkSecurityGroups", "PUT"),
    ("virtualNetworks", "PUT"),
    ("publicIPAddresses", "PUT"),
    ("virtualMachines", "PUT"),
    ("virtualMachines", "DELETE"),
    ("virtualNetworks", "DELETE"),
    ("resourceGroups", "DELETE"),
    ("virtualMachines", "POST"),
]


@pytest.mark.parametrize("then", ["up", "down --delete"])
def test_what_goes_on_is_followed(made: list[World], then: str) -> None:
    def check(world: World, case: tuple[str, str]) -> None:
        kind, method = case
        words = {"PUT": ("up",), "DELETE": ("down", "--delete"), "POST": ("down",)}[method]
        (nothing if method == "PUT" else running)(world)
        world.clock(SPEED)
        try:
            world.arm("hold-after", type=kind, method=method)
            world.arm("slow", operation=True, type=kind, method=method, seconds=LONG)
            child = world.start(*words, SPEC)
            assert world.wait_until_held(child), world.end(child).said
            world.kill(child)
            world.clear()
            assert "InProgress" in [each["status"] for each in world.operations()], "it is over already"
            (runs if then == "up" else goes)(world)
        finally:
            world.clock(1)

    failures = for_every(made, GOING_ON, check)
    assert not failures, "\n\n".join(failures)
