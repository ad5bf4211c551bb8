"""The guest agent's ticks: what it looks at, decides, writes down, and survives."""

import fcntl
import json
import time
from typing import Any

import pytest

from gpuinfra.models.machine import parse_agent_state
from gpuinfra.remote.agent import main
from gpuinfra.remote.agent.terms import stamp
from tests.unit.remote.agent.world import HOUR, ON, World, make_home, make_run, replace_in_agent


def test_tick_follows_azures_clock() -> None:
    assert [main.pause_for(rate) for rate in (0.0, 1.0, 10.0, 600.0)] == [1.0, 1.0, 0.5, 0.1]


def test_state_file_has_every_value(world: World) -> None:
    world.logins = "0 0 127.0.0.1:22 127.0.0.1:5000\n"
    state = world.tick(0.0)
    assert (state.action, state.cause, state.sessions, state.jobs) == ("watching", "lease over", 1, ())
    assert (state.until - state.power_on).total_seconds() == 3600
    assert (state.idle_since, state.gpu_utilization, state.last_error) == (None, None, None)
    assert oct((world.folder / "run" / "agent.json").stat().st_mode)[-3:] == "644"
    # The model and the agent write the same.
    assert state.as_json() == json.loads((world.folder / "run" / "agent.json").read_text())


def test_last_minute_login_keeps_an_idle_machine_on(world: World) -> None:
    world.tick(0.0)
    assert world.tick(1190.0).action == "warning"
    world.logins = "a login\n"
    state = world.tick(30.0)
    assert (state.action, state.idle_since, world.azure.calls) == ("watching", None, [])
    world.logins = ""
    world.tick()
    assert world.tick(1200.0).cause == "idle"
    assert world.azure.calls == ["deallocate /vm"]


def test_last_minute_job_keeps_an_idle_machine_on(world: World) -> None:
    home = make_home(world.folder / "home")
    world.tick(0.0)
    world.tick(1196.0)
    folder = make_run(home, "r1", state={"kind": "process", "started": time.time()})
    with (folder / "alive").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # No look is due so soon after the last one.
        state = world.tick(4.0)
    assert (state.action, state.jobs, world.azure.calls) == ("watching", ("r1",), [])
    assert not (folder / "ending.json").exists()


def test_configured_lease_applies_without_metadata(world: World) -> None:
    world.azure.down = True
    world.logins = "a login\n"
    state = world.tick(0.0)
    assert (state.action, state.last_error) == ("watching", "no answer")
    assert world.tick(3600.0).action == "deallocating"


def test_last_known_lease_applies_without_metadata(world: World) -> None:
    world.logins = "a login\n"
    world.azure.tags = {"GpuInfra:Lease-Until": stamp(ON + 2 * HOUR), "gpuinfra:terms": "lease=4h idle=20m"}
    world.tick(0.0)
    world.azure.down = True
    assert world.tick(1.5 * HOUR).action == "watching"
    assert world.tick(0.5 * HOUR).action == "deallocating"


def test_restarted_agent_keeps_its_idle_window(world: World) -> None:
    world.tick(0.0)
    world.tick(1000.0)
    world.agent = world.start()
    state = world.tick(5.0)
    assert (state.power_on.timestamp(), state.idle_since and state.idle_since.timestamp()) == (ON, ON)
    assert world.tick(195.0).cause == "idle"
    assert world.azure.calls == ["deallocate /vm"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"at": 7, "powerOn": "x", "idleSince": {}}', "\0" * 100])
def test_corrupt_state_is_rewritten(world: World, text: str) -> None:
    world.tick(0.0)
    for name in ("agent.json", "power-on.json"):
        (world.folder / "run" / name).write_text(text)
    world.agent = world.start()
    assert world.tick(60.0).power_on.timestamp() == ON + 60


def test_agent_continues_after_a_failed_tick(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks: list[int] = []

    def fails() -> float:
        ticks.append(1)
        raise RuntimeError("a mistake")

    def pauses(seconds: float) -> None:
        if len(ticks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(world.agent, "tick", fails)
    monkeypatch.setattr(world.agent, "wait_for_azure", lambda: None)
    replace_in_agent(monkeypatch, time, sleep=pauses)
    with pytest.raises(KeyboardInterrupt):
        world.agent.work()
    assert len(ticks) == 3


def test_full_disk_does_not_prevent_the_deallocation(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: str, value: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(main, "write_json", full)
    world.agent.tick()
    world.now += 3600.0
    world.agent.tick()
    assert world.azure.calls == ["deallocate /vm"]


@pytest.mark.parametrize(
    "text",
    [
        *("", "{}", "[]", "null", "{", "[" * 20_000, " " * 100_000),
        *(
            json.dumps(value)
            for value in (
                {"schemaVersion": 1},
                {"schemaVersion": 2, "action": "watching"},
            )
        ),
    ],
)
def test_malformed_state_is_none(text: str) -> None:
    assert parse_agent_state(text) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("at", value) for value in (7, None, "yesterday", "0001-01-01T00:00:00+23:59")),
        *(("jobs", value) for value in (None, "r1", [7])),
        *(("sessions", value) for value in (-1, True, "1", None)),
        *(("action", value) for value in ("sleeping", None)),
        ("lastError", 7),
    ],
)
def test_state_with_a_wrong_value_is_none(world: World, name: str, value: Any) -> None:
    world.tick(0.0)
    state = json.loads((world.folder / "run" / "agent.json").read_text())
    assert parse_agent_state(json.dumps(state)) is not None
    assert parse_agent_state(json.dumps({**state, name: value})) is None


def test_control_characters_are_removed_from_the_state(world: World) -> None:
    world.tick(0.0)
    state = json.loads((world.folder / "run" / "agent.json").read_text())
    found = parse_agent_state(json.dumps({**state, "cause": "idle\x1b[2J\n", "more": 1}))
    assert found is not None
    assert found.cause == "idle [2J "
