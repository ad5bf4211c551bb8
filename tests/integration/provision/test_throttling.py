"""Azure says 429: as long as it asks for is waited, as long as there is time for it, and the wait is shown."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from tests.integration.provision.kill_help import World, parts, worlds

NAME = "slowed"
SPEC = f"{NAME}.yaml"
MACHINE = "virtualMachines"
RETRY_AFTER, COUNT = 2, 3
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with worlds(tmp_path_factory.mktemp("throttling") / "worlds", 1) as (world,):
        world.spec(NAME)
        yield world


@pytest.fixture
def world(made: World) -> Iterator[World]:
    made.reset()
    yield made
    made.clear()


def pauses(requests: list[dict[str, Any]]) -> list[float]:
    """Seconds from every refusal to the next request for the same."""
    found = []
    for number, refused in enumerate(requests):
        if refused["status"] == 429:
            same = [each for each in requests[number + 1 :] if _key(each) == _key(refused)]
            assert same, f"nobody has asked again: {_key(refused)}"
            found.append(_moment(same[0]["start"]) - _moment(refused["end"]))
    return found


def _key(request: dict[str, Any]) -> tuple[str, str, str]:
    return request["method"], request["path"], request["query"]


def _moment(text: str) -> float:
    return datetime.fromisoformat(text[:26] + text[27:]).timestamp()  # Azure has one digit more than Python


WHERE = {
    "any GET": {"method": "GET"},
    "the machine": {"method": "PUT", "type": MACHINE},
    "the group": {"method": "PUT", "type": "resourceGroups"},
    "its operation": {"method": "GET", "type": "Microsoft.Compute/locations/operations"},
}


@pytest.mark.parametrize("where", WHERE)
def test_up_waits_as_long_as_it_is_asked_to(world: World, where: str) -> None:
    world.arm("TooManyRequests", retryAfter=RETRY_AFTER, count=COUNT, **WHERE[where])
    done = world.succeed("up", SPEC)
    waited = pauses(world.requests())
    assert len(waited) == COUNT
    # The header has whole seconds.
    assert all(RETRY_AFTER - 0.1 <= seconds < RETRY_AFTER + 2 for seconds in waited), waited
    assert "waiting 2 s: Azure is throttling" in done.err.replace("2.0 s", "2 s"), done.said
    assert world.resources() == parts(NAME)
    assert world.billed() == [NAME]


@pytest.mark.parametrize("words", [("down",), ("down", "--delete")], ids=" ".join)
def test_down_waits_as_well(world: World, words: tuple[str, ...]) -> None:
    world.succeed("up", SPEC)
    last = world.last_request()
    method = "DELETE" if "--delete" in words else "POST"
    world.arm("TooManyRequests", retryAfter=RETRY_AFTER, count=COUNT, method=method, type=MACHINE)
    done = world.succeed(*words, SPEC)
    assert "Azure is throttling" in done.err
    assert [seconds >= RETRY_AFTER - 0.1 for seconds in pauses(world.requests(last))] == [True] * COUNT
    assert world.billed() == []


@pytest.mark.parametrize("where", ["any GET", "the machine", "the group"])
def test_a_wait_that_is_too_long_is_an_error(world: World, where: str) -> None:
    """Nothing is waited for that cannot be had in time; and what was made on the way is deleted again."""
    world.arm("TooManyRequests", retryAfter=600, count=0 if where != "any GET" else 1, **WHERE[where])
    done = world.run("up", SPEC, "--timeout", "1m")
    assert done.code == 1, done.said
    assert done.seconds < 30
    assert "error: throttled by Azure" in done.err
    assert "600 s" in done.err
    assert "try again" in done.err
    assert world.resources() == set()
    assert world.billed() == []


@pytest.mark.parametrize("where", ["any GET", "the machine"])
def test_the_code_is_throttled(world: World, where: str) -> None:
    world.arm("TooManyRequests", retryAfter=600, count=0 if where != "any GET" else 1, **WHERE[where])
    done = world.run("up", SPEC, "--timeout", "1m", "--json")
    assert done.code == 1, done.said
    assert '"code": "throttled"' in done.out
    assert world.resources() == set()


def test_many_short_waits_end_with_the_deadline(world: World) -> None:
    """Being asked to wait again and again does not go on for ever."""
    world.arm("TooManyRequests", retryAfter=15, count=0, method="PUT", type=MACHINE)
    done = world.run("up", SPEC, "--timeout", "1m")
    assert done.code == 1, done.said
    assert 30 < done.seconds < 75
    assert "error: throttled by Azure" in done.err
    assert world.resources() == set()
