"""Two who want the same machine at the same time: one makes it, the other follows; and one who wants it gone."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.provision.kill_help import Child, Done, World, parts, worlds

NAME, REGION = "twice", "southcentralus"
SPEC = f"{NAME}.yaml"
pytestmark = pytest.mark.timeout(600)

KINDS = (
    "resourceGroups",
    "networkSecurityGroups",
    "virtualNetworks",
    "publicIPAddresses",
    "networkInterfaces",
    "virtualMachines",
    "schedules",
)
MACHINE = "virtualMachines"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with worlds(tmp_path_factory.mktemp("two") / "worlds", 1) as (world,):
        world.spec(NAME, regions=[REGION])
        (world.folder / "elsewhere").mkdir()
        yield world


@pytest.fixture
def world(made: World) -> Iterator[World]:
    made.reset()
    yield made
    made.clear()
    made.clock(1)


def start(world: World, *words: str, elsewhere: bool = False) -> Child:
    """A command in this workspace, or in another one: the other may sit at another computer."""
    where = ("--workspace", "elsewhere") if elsewhere else ()
    return world.start(*words, *where)


def is_clean(done: Done) -> bool:
    """Whatever came of it, it is not a mistake in the program."""
    return "Traceback" not in done.err and "internal error" not in done.err


def one_machine_runs(world: World) -> None:
    assert world.machines() == [(NAME, REGION, "running")]
    assert world.billed() == [NAME]
    assert world.resources() == parts(NAME)
    planned = world.run("plan", "--detailed-exitcode", SPEC)
    assert planned.code == 0, planned.said


def nothing_is_left(world: World) -> None:
    world.succeed("down", "--delete", SPEC)
    assert world.resources() == set()
    assert world.billed() == []


def both_succeed(world: World, first: Child, second: Child) -> tuple[Done, Done]:
    ended = world.end(first), world.end(second)
    for done in ended:
        assert done.code == 0, "\n".join(each.said for each in ended)
    return ended


# Two `up`


@pytest.mark.parametrize(("later", "elsewhere"), [(0.0, False), (0.1, True), (0.3, False), (0.6, True)])
def test_two_up(world: World, later: float, elsewhere: bool) -> None:
    first = start(world, "up", SPEC)
    world.pause(later)
    second = start(world, "up", SPEC, elsewhere=elsewhere)
    both_succeed(world, first, second)
    one_machine_runs(world)
    nothing_is_left(world)


@pytest.mark.parametrize("kind", KINDS)
def test_both_have_seen_nothing_and_make_the_same(world: World, kind: str) -> None:
    """Each comes as far as the same request, and from there on they go together."""
    for _ in range(2):
        world.arm("hold-before", method="PUT", type=kind)
    first, second = start(world, "up", SPEC), start(world, "up", SPEC, elsewhere=True)
    assert world.wait_until_held(second, faults=2 if kind != "schedules" else 1), world.end(second).said
    world.clear()
    both_succeed(world, first, second)
    one_machine_runs(world)
    nothing_is_left(world)


def test_the_one_that_comes_second_says_that_it_follows(world: World) -> None:
    for _ in range(2):
        world.arm("hold-before", method="PUT", type=MACHINE)
    first, second = start(world, "up", SPEC), start(world, "up", SPEC, elsewhere=True)
    assert world.wait_until_held(second, faults=2)
    world.clear()
    ended = both_succeed(world, first, second)
    assert sorted("following" in done.err for done in ended) == [False, True], "\n".join(each.said for each in ended)
    sent = [each["status"] for each in world.requests() if _is_machine_put(each)]
    assert sorted(sent) == [0, 0, 201, 412], "one made it; of the other Azure wants none"
    # Whichever of the two made the machine, both know the key that it really has.
    written = {(world.folder / folder / "aml_config" / f"{NAME}.compute").read_text() for folder in (".", "elsewhere")}
    assert len(written) == 1


def _is_machine_put(request: dict[str, object]) -> bool:
    # What is given to a machine, such as a role, has its path before its own.
    return request["method"] == "PUT" and str(request["path"]).split("/")[-2] == MACHINE


@pytest.mark.parametrize("kind", KINDS[1::2])
def test_an_answer_is_lost_while_the_other_goes_on(world: World, kind: str) -> None:
    world.arm("hold-after", method="PUT", type=kind)
    first = start(world, "up", SPEC)
    assert world.wait_until_held(first)
    world.succeed("up", SPEC, "--workspace", "elsewhere")
    one_machine_runs(world)
    world.clear()
    done = world.end(first)
    assert done.code == 0, done.said
    one_machine_runs(world)
    nothing_is_left(world)


def test_the_second_waits_while_the_first_makes_it(world: World) -> None:
    world.clock(60)
    world.arm("slow", operation=True, type=MACHINE, seconds=240)
    first = start(world, "up", SPEC)
    while not world.machines():
        world.pause(0.05)
    second = start(world, "up", SPEC, elsewhere=True)
    ended = both_succeed(world, first, second)
    assert "waiting while it is Creating" in ended[1].err, ended[1].said
    assert sum(_is_machine_put(each) for each in world.requests()) == 1
    one_machine_runs(world)
    nothing_is_left(world)


@pytest.mark.parametrize("later", [0.0, 0.3])
def test_the_first_fails_while_the_second_follows(world: World, later: float) -> None:
    """Once, there is no room. One of them clears up, and does not take away what the other has made."""
    world.clock(60)
    world.arm("AllocationFailed", type=MACHINE)
    first = start(world, "up", SPEC)
    world.pause(later)
    second = start(world, "up", SPEC, elsewhere=True)
    ended = world.end(first), world.end(second)
    assert all(is_clean(done) for done in ended), "\n".join(each.said for each in ended)
    # While one clears up, its disk may be all that the other sees: that is not deleted unasked.
    assert all(done.code in {0, 1} or "this would lose what is on the disk" in done.said for done in ended)
    if 0 in {done.code for done in ended}:
        one_machine_runs(world)
    else:
        assert world.billed() == []
    world.succeed("up", SPEC)
    one_machine_runs(world)
    nothing_is_left(world)


# `up` and `down --delete`

PATIENCE = 8.0
"""Whoever waits for a machine that another has deleted waits in vain, and is interrupted after as many seconds."""


def end_however(world: World, *children: Child) -> str:
    """Both come to an end, in words."""
    ended = [world.end(child) if world.has_ended(child, PATIENCE) else world.interrupt(child) for child in children]
    said = "\n".join(each.said for each in ended)
    assert all(is_clean(done) for done in ended), said
    assert {done.code for done in ended} <= {0, 1, 4, 130}, said
    return said


@pytest.mark.parametrize("later", [0.0, 0.3, 0.8])
@pytest.mark.parametrize("first", ["up", "down"])
def test_up_and_down(world: World, first: str, later: float) -> None:
    commands = [("up", SPEC), ("down", "--delete", SPEC)]
    if first == "down":
        world.succeed("up", SPEC)
        commands.reverse()
    one = start(world, *commands[0])
    world.pause(later)
    other = start(world, *commands[1], elsewhere=True)
    said = end_however(world, one, other)
    converges(world, said)


def converges(world: World, said: str) -> None:
    """The next commands make it so."""
    try:
        world.succeed("up", SPEC)
        one_machine_runs(world)
        nothing_is_left(world)
    except AssertionError as error:
        raise AssertionError(f"{error}\n\nThe two had said:\n{said}") from None


# What is held before, and what after: each kind once for each of the two stories.
HELD = [*zip(itertools.cycle(["hold-before", "hold-after"]), KINDS)]
HELD_OTHERWISE = [*zip(itertools.cycle(["hold-after", "hold-before"]), KINDS)]


@pytest.mark.parametrize(("hold", "kind"), HELD)
def test_down_while_up_is_on_its_way(world: World, hold: str, kind: str) -> None:
    world.arm(hold, method="PUT", type=kind)
    going = start(world, "up", SPEC)
    assert world.wait_until_held(going)
    down = world.run("down", "--delete", SPEC, "--workspace", "elsewhere")
    world.clear()
    said = end_however(world, going)
    assert is_clean(down), down.said
    converges(world, f"{down.said}\n{said}")


@pytest.mark.parametrize(("hold", "kind"), HELD_OTHERWISE[1::2])
def test_up_while_down_is_on_its_way(world: World, hold: str, kind: str) -> None:
    world.succeed("up", SPEC)
    world.arm(hold, method="DELETE", type=kind)
    going = start(world, "down", "--delete", SPEC)
    assert world.wait_until_held(going)
    other = start(world, "up", SPEC, elsewhere=True)
    world.pause(1.5)
    world.clear()
    converges(world, end_however(world, going, other))


# What one has just looked at, the other changes

MEMBERS: dict[str, Any] = {"method": "GET", "type": "resources", "skip": 1}
"""`down --delete` asks for what carries the tag, and then for all that is in the group: the second is held."""


def test_what_was_made_meanwhile_makes_no_stranger_of_the_group(world: World) -> None:
    world.arm("hold-before", method="PUT", type="networkInterfaces")
    half = start(world, "up", SPEC)
    assert world.wait_until_held(half)
    world.kill(half)
    world.clear()
    world.arm("hold-before", **MEMBERS)
    down = start(world, "down", "--delete", SPEC)
    assert world.wait_until_held(down)
    world.succeed("up", SPEC, "--workspace", "elsewhere")
    world.clear()
    said = end_however(world, down)
    assert "was not made for this machine" not in said, said
    converges(world, said)


def test_what_another_has_deleted_meanwhile_is_gone(world: World) -> None:
    world.succeed("up", SPEC)
    world.arm("hold-before", **MEMBERS)
    down = start(world, "down", "--delete", SPEC)
    assert world.wait_until_held(down)
    world.succeed("down", "--delete", SPEC, "--workspace", "elsewhere")
    assert world.resources() == set()
    world.clear()
    done = world.end(down)
    assert done.code == 0, done.said


@pytest.mark.parametrize("words", [("down",), ("down", "--delete")], ids=" ".join)
def test_nobody_waits_for_a_machine_that_was_switched_off(world: World, words: tuple[str, ...]) -> None:
    world.arm("ssh-refuses")
    up = start(world, "up", SPEC)
    while "waiting for SSH" not in up.err.read_text("utf-8"):
        assert not world.has_ended(up, 0.05), world.end(up).said
    world.succeed(*words, SPEC, "--workspace", "elsewhere")
    has_noticed = world.has_ended(up, 15)
    done = world.end(up) if has_noticed else world.interrupt(up)
    assert has_noticed
    assert done.code == 1, done.said


def test_the_one_that_fails_takes_nothing_from_the_other(world: World) -> None:
    """Both come as far as the machine; one makes it, the other is refused."""
    for _ in range(2):
        world.arm("hold-before", method="PUT", type=MACHINE)
    first, second = start(world, "up", SPEC), start(world, "up", SPEC, elsewhere=True)
    assert world.wait_until_held(second, faults=2)
    world.clear()
    world.arm("RequestDisallowedByPolicy", method="PUT", type=MACHINE, skip=1)
    ended = world.end(first), world.end(second)
    said = "\n".join(each.said for each in ended)
    assert sorted(done.code for done in ended) in ([0, 1], [0, 4]), said
    one_machine_runs(world)
    nothing_is_left(world)


# Two `down`


@pytest.mark.parametrize("words", [("down",), ("down", "--delete")], ids=" ".join)
@pytest.mark.parametrize("later", [0.0, 0.2])
def test_two_down(world: World, words: tuple[str, ...], later: float) -> None:
    world.succeed("up", SPEC)
    first = start(world, *words, SPEC)
    world.pause(later)
    second = start(world, *words, SPEC, elsewhere=True)
    both_succeed(world, first, second)
    assert world.billed() == []
    assert world.resources() == (set() if "--delete" in words else parts(NAME))
