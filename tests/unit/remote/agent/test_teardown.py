"""How the guest agent switches the machine off: jobs first, then Azure, until it accepts."""

import fcntl
import json
import time

from gpuinfra.remote.agent.teardown import back_off
from gpuinfra.remote.agent.terms import stamp
from tests.unit.remote.agent.world import HOUR, ON, World, make_home, make_run


def test_retry_delay_grows_up_to_a_limit() -> None:
    assert [back_off(failures) for failures in (1, 2, 3, 6, 7, 5000)] == [1, 2, 4, 32, 60, 60]


def test_expired_lease_deallocates_and_retries(world: World) -> None:
    world.logins = "a login\n"
    world.tick(0.0)
    assert world.tick(3595.0).action == "warning"
    assert [words[0] for words in world.walls] == ["wall"]
    assert world.tick().action == "deallocating"
    for _ in range(5):
        assert world.tick(100.0).action == "deallocating"
    assert world.azure.calls == ["deallocate /vm"]
    assert world.tick(100.0).action == "deallocating"
    assert world.azure.calls == ["deallocate /vm", "deallocate /vm"]


def test_refused_deallocation_is_retried_without_limit(world: World) -> None:
    world.azure.refusals = 9
    world.tick(0.0)
    world.tick(3600.0)
    for _ in range(300):
        state = world.tick(1.0)
        if state.last_error is None:
            break
        assert (state.action, state.last_error) == ("deallocating", "503")
    assert len(world.azure.calls) == 10
    # 1, 2, 4, … 60 s: pauses grow with each failure.
    assert 1 + 2 + 4 + 8 + 16 + 32 + 3 * 60 <= world.now - ON - 3600 < 260


def test_extended_lease_cancels_the_deallocation(world: World) -> None:
    world.azure.refusals = 10
    world.logins = "a login\n"
    world.tick(0.0)
    assert world.tick(3600.0).action == "deallocating"
    world.azure.tags["gpuinfra:lease-until"] = stamp(world.now + HOUR)
    state = world.tick()
    assert (state.action, state.last_error) == ("watching", None)
    assert len(world.azure.calls) == 1
    # The next end works like the first.
    world.tick(HOUR)
    assert len(world.azure.calls) == 2


def test_eviction_is_acknowledged_once_without_deallocation(world: World) -> None:
    world.azure.priority = "Spot"
    world.azure.scheduled = [{"EventType": "Preempt", "EventId": "E1", "Resources": ["vm"]}]
    state = world.tick(0.0)
    assert (state.cause, state.eviction_notice) == ("evicted", True)
    world.tick(1.0)
    assert world.azure.calls == ["acknowledge E1"]


def test_machine_is_deallocated_when_the_eviction_does_not_happen(world: World) -> None:
    world.azure.priority = "Spot"
    world.azure.scheduled = [{"EventType": "Preempt", "EventId": "E1", "Resources": ["vm"]}]
    world.tick(0.0)
    world.tick(599.0)
    assert world.azure.calls == ["acknowledge E1"]
    world.tick(1.0)
    world.tick(1.0)
    assert world.azure.calls == ["acknowledge E1", "deallocate /vm"]


def test_jobs_get_their_grace_period_and_no_longer(world: World) -> None:
    folder = make_run(make_home(world.folder / "home"), "r1", state={"kind": "process", "started": time.time()})
    world.logins = "a login\n"
    with (folder / "alive").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert world.tick(0.0).jobs == ("r1",)
        assert world.tick(3600.0).action == "stopping-jobs"
        assert json.loads((folder / "ending.json").read_text())["how"] == "lease over"
        assert world.tick(29.0).action == "stopping-jobs"
        assert world.azure.calls == []
        assert world.tick(1.0).action == "deallocating"
    assert world.azure.calls == ["deallocate /vm"]


def test_job_that_ends_early_is_not_waited_for(world: World) -> None:
    folder = make_run(make_home(world.folder / "home"), "r1", state={"kind": "process", "started": time.time()})
    with (folder / "alive").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        world.tick(0.0)
        world.tick(3600.0)
    assert world.tick(0.2).action == "deallocating"
