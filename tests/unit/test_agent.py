"""Decisions of the guest agent, and that nothing on a machine prevents them."""

import ast
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gpuinfra.models.agent import AgentState, parse_agent_state
from gpuinfra.templates import agent
from gpuinfra.templates.agent import (
    COST_CAP,
    EVICTED,
    FINISHED,
    IDLE,
    LEASE_OVER,
    Agent,
    AzureError,
    Facts,
    Memory,
    Run,
    Runs,
    Terms,
    decide,
)

FILE = Path(agent.__file__)
HOUR, MINUTE = 3600.0, 60.0
ON = 1_800_000_000.0
TERMS = Terms(lease=4 * HOUR, idle=20 * MINUTE)


def facts(after: float = 0.0, **changes: Any) -> Facts:
    """Facts this many seconds after power-on, with a login unless other activity is given."""
    return Facts(**{"now": ON + after, "power_on": ON, "terms": TERMS, "sessions": 1, **changes})


def finished_run(**changes: Any) -> Run:
    values = {"id": "r1", "after_run": "deallocate", "heartbeat_age": 46.0, "ended_age": 60.0}
    return Run(**{**values, **changes})


@pytest.mark.parametrize(
    ("given", "until", "limit"),
    [
        ({}, ON + 4 * HOUR, LEASE_OVER),
        ({"lease_until": ON + HOUR}, ON + HOUR, LEASE_OVER),
        ({"lease_until": ON + 9 * HOUR}, ON + 9 * HOUR, LEASE_OVER),
        # From an earlier power-on: a machine started in the portal gets a lease too.
        ({"lease_until": ON}, ON + 4 * HOUR, LEASE_OVER),
        ({"lease_until": ON - 1, "on_since": ON - 50 * HOUR}, ON + 4 * HOUR, LEASE_OVER),
        ({"terms": Terms(4 * HOUR, HOUR, cap=2 * HOUR)}, ON + 2 * HOUR, COST_CAP),
        ({"terms": Terms(4 * HOUR, HOUR, cap=4 * HOUR)}, ON + 4 * HOUR, COST_CAP),
        ({"terms": Terms(4 * HOUR, HOUR, cap=4 * HOUR), "lease_until": ON + 3 * HOUR}, ON + 3 * HOUR, LEASE_OVER),
        # The tag has whole minutes: a cap that ends within the tag's minute decided it.
        (
            {"terms": Terms(4 * HOUR, HOUR, 2 * HOUR + 59), "lease_until": ON + 2 * HOUR, "on_since": ON},
            ON + 2 * HOUR,
            COST_CAP,
        ),
        # The cap counts from the start of billing, also over a reboot, but not from an earlier power-on.
        (
            {"terms": Terms(4 * HOUR, HOUR, 2 * HOUR), "lease_until": ON + 3 * HOUR, "on_since": ON - HOUR},
            ON + HOUR,
            COST_CAP,
        ),
        (
            {"terms": Terms(4 * HOUR, HOUR, 2 * HOUR), "lease_until": ON - HOUR, "on_since": ON - 50 * HOUR},
            ON + 2 * HOUR,
            COST_CAP,
        ),
        # Any user can write a tag: one from the future does not extend the time.
        (
            {"terms": Terms(4 * HOUR, HOUR, 2 * HOUR), "lease_until": ON + 9 * HOUR, "on_since": ON + 8 * HOUR},
            ON + 2 * HOUR,
            COST_CAP,
        ),
    ],
)
def test_earliest_limit_ends_the_machine(given: Mapping[str, Any], until: float, limit: str) -> None:
    for after, cause in ((0.0, None), (until - ON - 0.5, None), (until - ON, limit), (until - ON + 9 * HOUR, limit)):
        decision = decide(facts(after, **given), Memory())
        assert (decision.until, decision.limit, decision.cause) == (until, limit, cause)


def test_jobs_are_stopped_before_the_shutdown_schedule_fires() -> None:
    job = {"runs": (Run("r1", alive=True),), "lease_until": ON + HOUR}
    assert decide(facts(HOUR - 31, **job), Memory()).cause is None
    begun = decide(facts(HOUR - 30, **job), Memory())
    assert begun.cause == LEASE_OVER
    # The deallocation continues after the job has ended, unless the lease was extended.
    assert decide(facts(HOUR - 29, lease_until=ON + HOUR), begun.memory).cause == LEASE_OVER
    assert decide(facts(HOUR - 29, lease_until=ON + 2 * HOUR), begun.memory).cause is None
    assert decide(facts(HOUR - 29, lease_until=ON + HOUR), Memory()).cause is None


@pytest.mark.parametrize(
    ("given", "is_idle"),
    [
        ({"sessions": 0}, True),
        ({"sessions": 1}, False),
        ({"sessions": 0, "gpu": 4}, True),
        ({"sessions": 0, "gpu": 5}, False),
        ({"sessions": 0, "gpu": None}, True),
        ({"sessions": 0, "runs": (Run("r1", alive=True),)}, False),
        ({"sessions": 0, "runs": (Run("r1"), Run("r2", ended_age=9.0))}, True),
    ],
)
def test_idle_machine_goes_off_after_its_window(given: Mapping[str, Any], is_idle: bool) -> None:
    memory = Memory()
    for second in range(0, 21 * 60, 5):
        decision = decide(facts(second, **given), memory)
        memory = decision.memory
        assert decision.cause == (IDLE if is_idle and second >= 20 * MINUTE else None), second
    assert (decision.memory.idle_since == ON) == is_idle


def test_activity_restarts_the_idle_window() -> None:
    memory = Memory(idle_since=ON)
    assert decide(facts(20 * MINUTE, sessions=0), memory).cause == IDLE
    decision = decide(facts(20 * MINUTE, sessions=0, gpu=80), memory)
    assert decision.cause is None
    assert decision.memory.idle_since is None
    after = decide(facts(20 * MINUTE + 5, sessions=0), decision.memory)
    assert (after.cause, after.idle_until) == (None, ON + 40 * MINUTE + 5)


def test_clock_change_neither_ends_nor_prolongs_the_idle_window() -> None:
    # Nothing is known about an unobserved window: the first look begins it.
    assert decide(facts(3 * HOUR, sessions=0), Memory()).cause is None
    back = decide(facts(5.0, sessions=0), Memory(idle_since=ON + 2 * HOUR))
    assert back.idle_until == ON + 5.0 + 20 * MINUTE
    # Nor does it count from before power-on.
    assert decide(facts(5.0, sessions=0), Memory(idle_since=ON - HOUR)).idle_until == ON + 20 * MINUTE


def test_heartbeat_of_a_preparing_client_is_activity() -> None:
    idle = Memory(idle_since=ON)
    for run in (Run("r1", heartbeat_age=3.0), Run("r1", heartbeat_age=3.0, detached=True)):
        assert decide(facts(HOUR, sessions=0, runs=(run,)), idle).cause is None
    assert decide(facts(HOUR, sessions=0, runs=(Run("r1", heartbeat_age=46.0),)), idle).cause == IDLE


FINISHED_RUNS: list[tuple[tuple[Run, ...], bool]] = [
    ((finished_run(),), True),
    ((finished_run(after_run="delete"),), True),
    ((finished_run(after_run="keep"),), False),
    ((finished_run(after_run=None),), False),
    ((finished_run(heartbeat_age=44.0),), False),
    # Its client was lost before the job began.
    ((finished_run(ended_age=None),), True),
    ((finished_run(ended_age=None, heartbeat_age=10.0),), False),
    ((finished_run(alive=True, ended_age=None),), False),
    ((finished_run(of_this_boot=False),), False),
    # A detached client is not waited for; the job's end counts.
    ((finished_run(detached=True, heartbeat_age=9000.0, ended_age=44.0),), False),
    ((finished_run(detached=True, heartbeat_age=46.0, ended_age=45.0),), True),
    # A client followed it after the detach and left, so it no longer counts as detached.
    ((finished_run(heartbeat_age=9000.0, ended_age=44.0),), False),
    ((finished_run(heartbeat_age=9000.0, ended_age=45.0),), True),
    # A client has returned, and fetches its outputs.
    ((finished_run(detached=True, heartbeat_age=1.0, ended_age=900.0),), False),
    ((finished_run(detached=True, heartbeat_age=9000.0, ended_age=None, alive=True),), False),
    # Other runs are active.
    ((finished_run(), Run("r2", alive=True)), False),
    ((finished_run(), Run("r2", heartbeat_age=3.0)), False),
    # A detached job has just ended. An older finished run does not shorten the wait for its client.
    ((finished_run(), Run("r2", heartbeat_age=3.0, detached=True, ended_age=3.0)), False),
    ((finished_run(), Run("r2", heartbeat_age=9000.0, detached=True, ended_age=3.0)), False),
    ((finished_run(), finished_run(id="r2", heartbeat_age=9000.0, detached=True, ended_age=3.0)), False),
    ((finished_run(), finished_run(id="r2", heartbeat_age=9000.0, detached=True, ended_age=45.0)), True),
    ((finished_run(), Run("r2", heartbeat_age=9000.0, ended_age=3.0)), False),
    # A client that will detach is active while it prepares the job: it sends files and builds an environment.
    ((finished_run(), Run("r2", heartbeat_age=3.0, detached=True)), False),
    ((finished_run(), Run("r2", heartbeat_age=300.0, detached=True)), True),
    ((finished_run(), Run("r2", heartbeat_age=300.0)), True),
    # A clock that was set back leaves a heartbeat in the future: its client would have sent another since.
    ((finished_run(heartbeat_age=-3600.0),), True),
    ((finished_run(heartbeat_age=-3.0),), False),
]


@pytest.mark.parametrize(("runs", "goes_off"), FINISHED_RUNS)
def test_forecast_after_a_finished_run_holds(runs: tuple[Run, ...], goes_off: bool) -> None:
    decision = decide(facts(HOUR, runs=runs), Memory())
    if any(run.alive or run.attended for run in runs):
        assert decision.finished_until is None
        assert set(decision.ends_with) <= {run.id for run in runs if run.alive or run.attended}
        return
    assert goes_off == (decision.finished_until is not None and decision.finished_until <= ON + HOUR)
    if decision.finished_until is not None and not goes_off:
        later = decision.finished_until - (ON + HOUR)
        aged = tuple(
            replace(
                run,
                heartbeat_age=None if run.heartbeat_age is None else run.heartbeat_age + later,
                ended_age=None if run.ended_age is None else run.ended_age + later,
            )
            for run in runs
        )
        assert decide(facts(HOUR + later, runs=aged), Memory()).cause == FINISHED


@pytest.mark.parametrize(("runs", "goes_off"), FINISHED_RUNS)
def test_machine_goes_off_after_its_finished_run(runs: tuple[Run, ...], goes_off: bool) -> None:
    assert decide(facts(HOUR, runs=runs), Memory()).cause == (FINISHED if goes_off else None)


def test_eviction_takes_precedence() -> None:
    decision = decide(facts(9 * HOUR, runs=(finished_run(),), notice="E1"), Memory())
    assert decision.cause == EVICTED


def test_warning_is_sent_once_and_again_after_a_change() -> None:
    lease = {"lease_until": ON + HOUR}
    early = decide(facts(HOUR - 301, **lease), Memory())
    assert (early.warnings, early.is_warning) == ((), False)
    first = decide(facts(HOUR - 300, **lease), early.memory)
    assert (first.warnings, first.is_warning) == (((LEASE_OVER, ON + HOUR),), True)
    second = decide(facts(HOUR - 295, **lease), first.memory)
    assert (second.warnings, second.is_warning) == ((), True)
    moved = {"lease_until": ON + HOUR + 60}
    assert decide(facts(HOUR - 200, **moved), second.memory).warnings == ((LEASE_OVER, ON + HOUR + 60),)
    # A change away and back also warns again.
    remote = decide(facts(HOUR - 290, lease_until=ON + 3 * HOUR), second.memory)
    assert not remote.is_warning
    assert decide(facts(HOUR - 285, **lease), remote.memory).warnings == ((LEASE_OVER, ON + HOUR),)


def test_short_window_warns_from_its_half() -> None:
    terms = Terms(4 * HOUR, idle=4 * MINUTE)
    memory = Memory(idle_since=ON)
    assert not decide(facts(MINUTE, sessions=0, terms=terms), memory).is_warning
    assert decide(facts(2 * MINUTE, sessions=0, terms=terms), memory).warnings == ((IDLE, ON + 4 * MINUTE),)


def test_tick_follows_azures_clock() -> None:
    assert [agent.pause_for(rate) for rate in (0.0, 1.0, 10.0, 600.0)] == [1.0, 1.0, 0.5, 0.1]


def test_retry_delay_grows_up_to_a_limit() -> None:
    assert [agent.back_off(failures) for failures in (1, 2, 3, 6, 7, 5000)] == [1, 2, 4, 32, 60, 60]


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-11-16T08:00:00Z", 1_794_816_000.0),
        ("2026-11-16T08:00:00.1234567+00:00", 1_794_816_000.0),
        ("2026-11-16T08:00:00", 1_794_816_000.0),
        *((text, None) for text in ("", "tomorrow", "2026-13-16T08:00:00Z", "2026-11-16T08:00:00+05:00", None, 7)),
    ],
)
def test_time_in_a_tag_is_read(text: Any, moment: float | None) -> None:
    assert agent.read_moment(text) == moment
    assert moment is None or agent.stamp(moment) == "2026-11-16T08:00:00Z"


@pytest.mark.parametrize(
    ("tag", "terms"),
    [
        ("lease=4h idle=20m cap=9h30m", Terms(4 * HOUR, 20 * MINUTE, 9.5 * HOUR)),
        ("lease=2d1h idle=1m", Terms(49 * HOUR, MINUTE)),
        *((tag, Terms(1, 2, 3)) for tag in ("", "lease=4h", "lease= idle=", "lease=0m idle=0m", "idle lease", "=;=")),
    ],
)
def test_terms_in_a_tag_are_read(tag: str, terms: Terms) -> None:
    assert agent.read_terms(tag, Terms(1, 2, 3)) == terms


def test_terms_written_by_provision_are_read_by_the_agent() -> None:
    from datetime import timedelta

    from gpuinfra.provision.lifecycle import terms

    written = terms.Terms(timedelta(days=1, minutes=5), timedelta(minutes=20), timedelta(hours=9, minutes=30))
    assert agent.read_terms(terms.to_tag(written), Terms()) == Terms(86700.0, 1200.0, 34200.0)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"lease": 60, "idle": 30, "cap": null, "home": "/home/a"}', (Terms(60, 30), "/home/a")),
        ('{"lease": 60, "idle": 30, "cap": 90}', (Terms(60, 30, 90), "")),
        *((text, (Terms(), "")) for text in ("", "[]", "{", '{"lease": "4h", "idle": true, "cap": -1, "home": 7}')),
    ],
)
def test_invalid_configuration_is_ignored(text: str, found: tuple[Terms, str]) -> None:
    assert agent.read_config(text) == found


@pytest.mark.parametrize(
    ("output", "percent"), [("0\n", 0), ("3\n97\n", 97), ("[N/A]\n", None), ("[N/A]\n7\n", 7), ("", None)]
)
def test_utilization_is_that_of_the_busiest_gpu(output: str, percent: int | None) -> None:
    assert agent.read_utilization(output) == percent


@pytest.mark.parametrize(
    ("events", "event_id"),
    [
        ([{"EventType": "Preempt", "EventId": "E", "Resources": ["My-VM"]}], "E"),
        ([{"EventType": "Preempt", "EventId": "E", "Resources": ["_my-vm"]}], "E"),
        ([{"EventType": "Preempt", "EventId": "E", "Resources": ["other"]}], None),
        ([{"EventType": "Reboot", "EventId": "E", "Resources": ["my-vm"]}], None),
        ([{"EventType": "Preempt", "Resources": ["my-vm"]}, 7, None], None),
        ({}, None),
        (None, None),
    ],
)
def test_eviction_notice_of_this_machine_is_found(events: Any, event_id: str | None) -> None:
    found = agent.read_notice({"Events": events}, "my-vm")
    assert (found["EventId"] if found else None) == event_id
    assert agent.read_notice(events, "my-vm") is None


# Run folders


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / ".gpuinfra" / "runs").mkdir(parents=True)
    return tmp_path


@pytest.fixture
def no_docker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent.Program, "ask", lambda self: None)


def make_run(home: Path, name: str, **files: Any) -> Path:
    folder = home / ".gpuinfra" / "runs" / name
    folder.mkdir()
    for stem, value in files.items():
        (folder / f"{stem}.json").write_text(json.dumps(value))
    return folder


@pytest.mark.usefixtures("no_docker")
def test_process_job_is_alive_while_its_supervisor_holds_the_lock(home: Path) -> None:
    folder = make_run(home, "r1", state={"kind": "process", "started": time.time()}, attended={"afterRun": "delete"})
    runs = Runs(str(home), booted=time.time() - 60)
    assert [run.alive for run in runs.look()] == [False]
    with (folder / "alive").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (run,) = runs.look()
        assert (run.alive, run.after_run, run.of_this_boot, run.ended_age) == (True, "delete", True, None)
        (folder / "state.json").write_text(json.dumps({"kind": "process", "ended": time.time() - 50, "started": 7}))
        (run,) = runs.look()
    assert not run.alive
    assert run.ended_age == pytest.approx(50, abs=5)
    assert not run.of_this_boot


@pytest.mark.parametrize(
    ("said", "booted", "alive"),
    [
        ("gpuinfra-r1\ngpuinfra-of-another-machine\n", 0.0, [True, False, False]),
        ("gpuinfra-r1\ngpuinfra-r2\n", 9e9, [True, True, False]),
        ("", 0.0, [False, False, False]),
        # A silent engine may still have its containers, except those of an earlier boot.
        (None, 0.0, [True, False, False]),
        (None, 9e9, [False, False, False]),
    ],
)
def test_container_job_is_alive_while_the_engine_says_so(
    home: Path, monkeypatch: pytest.MonkeyPatch, said: str | None, booted: float, alive: list[bool]
) -> None:
    monkeypatch.setattr(agent.Program, "ask", lambda self: said)
    make_run(home, "r1", state={"kind": "container", "started": time.time()})
    make_run(home, "r2")
    make_run(home, "r3", state={"kind": "container", "started": time.time(), "ended": time.time()})
    found = Runs(str(home), booted).look()
    assert [run.alive for run in found] == alive
    assert [run.container for run in found if run.alive] == [True] * sum(alive)


def test_job_is_alive_until_its_end_is_recorded(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent.Program, "ask", lambda self: "")
    folder = make_run(home, "r1", state={"kind": "container", "started": 7.0})
    with (folder / "alive").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (run,) = Runs(str(home), 0.0).look()
    assert run.alive


@pytest.mark.usefixtures("no_docker")
def test_invalid_run_folders_are_ignored(home: Path) -> None:
    folder = home / ".gpuinfra" / "runs"
    (folder / "a-file").write_text("x")
    (folder / "a-link").symlink_to("/nowhere")
    (folder / ".gone-r9").mkdir()
    (folder / "b\udcff").mkdir()
    for number, text in enumerate(("{", "[]", '"x"', "[" * 50_000, "\0", '{"ended": {}}', '{"started": 1e400}')):
        make_run(home, f"r{number}")
        (folder / f"r{number}" / "state.json").write_text(text)
        (folder / f"r{number}" / "attended.json").write_text(text)
    pipes = make_run(home, "pipes")
    for name in ("state.json", "attended.json", "alive", "control"):
        os.mkfifo(pipes / name)
    (make_run(home, "folders") / "state.json").mkdir()
    found = Runs(str(home), booted=0.0).look()
    assert {"a-file", "a-link", ".gone-r9"}.isdisjoint(run.id for run in found)
    assert not [run for run in found if run.alive or run.seconds_to_finish is not None]
    assert len(found) == 10


def test_stop_request_and_reason_are_sent_to_a_job(home: Path) -> None:
    folder = make_run(home, "r1")
    os.mkfifo(folder / "control")
    listener = os.open(folder / "control", os.O_RDWR | os.O_NONBLOCK)
    try:
        Runs(str(home), 0.0).end(Run("r1", alive=True), "lease over", "at noon", 20.0)
        assert os.read(listener, 100) == b"20\n"
    finally:
        os.close(listener)
    assert json.loads((folder / "ending.json").read_text()) == {"how": "lease over", "detail": "at noon"}
    # A job whose folder was deleted meanwhile does not stop the rest.
    Runs(str(home), 0.0).end(Run("r2", alive=True), "lease over", "at noon", 20.0)


# The whole agent, with a fake Azure


class FakeAzure:
    """Returns what the test says, and counts calls."""

    def __init__(self) -> None:
        self.tags: dict[str, str] = {}
        self.priority = ""
        self.scheduled: list[dict[str, Any]] = []
        self.down = False
        self.refusals = 0
        self.calls: list[str] = []

    def compute(self) -> dict[str, Any]:
        if self.down:
            raise AzureError("no answer")
        tags = [{"name": name, "value": value} for name, value in self.tags.items()]
        return {"name": "vm", "resourceId": "/vm", "priority": self.priority, "tagsList": tags}

    def events(self) -> Any:
        return {"Events": self.scheduled}

    def acknowledge(self, event: str) -> None:
        self.calls.append(f"acknowledge {event}")

    def deallocate(self, machine: str, cloud: str) -> None:
        self.calls.append(f"deallocate {machine}")
        if self.refusals:
            self.refusals -= 1
            raise AzureError("503")


def replace_in_agent(monkeypatch: pytest.MonkeyPatch, module: ModuleType, **functions: Any) -> None:
    """Replace functions of a module for the agent alone.

    Threads of other tests use the module too: an event loop that sees another time once may then wait for hours.
    """
    stand_in = SimpleNamespace(**{**vars(module), **functions})
    monkeypatch.setattr(f"gpuinfra.templates.agent.{module.__name__}", stand_in)


class World:
    """An agent with its folder, its Azure and a manual clock."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.azure, self.now, self.seconds = folder, FakeAzure(), ON, 1000.0
        self.logins = ""
        monkeypatch.setattr(agent.Program, "ask", lambda program: self.logins if "ss" in program._words else None)
        replace_in_agent(monkeypatch, time, monotonic=lambda: self.seconds)
        replace_in_agent(monkeypatch, subprocess, Popen=self._begin)
        self.walls: list[list[str]] = []
        (folder / "config.json").write_text('{"lease": 3600, "idle": 1200, "cap": null}')
        self.agent = self.start()

    def _begin(self, words: list[str], **_: Any) -> "_Done":
        self.walls.append(words)
        return _Done()

    def start(self) -> Agent:
        found = Agent(str(self.folder / "config.json"), str(self.folder / "run"), str(self.folder / "home"), {})
        found._azure = self.azure  # type: ignore[assignment]
        found.clock.now = lambda: self.now  # type: ignore[method-assign]
        return found

    def tick(self, after: float = 5.0) -> AgentState:
        self.now, self.seconds = self.now + after, self.seconds + after
        self.agent.tick()
        state = parse_agent_state((self.folder / "run" / "agent.json").read_text())
        assert state is not None
        return state


class _Done:
    def poll(self) -> int:
        return 0


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def test_state_file_has_every_value(world: World) -> None:
    world.logins = "0 0 127.0.0.1:22 127.0.0.1:5000\n"
    state = world.tick(0.0)
    assert (state.action, state.cause, state.sessions, state.jobs) == ("watching", "lease over", 1, ())
    assert (state.until - state.power_on).total_seconds() == 3600
    assert (state.idle_since, state.gpu_utilization, state.last_error) == (None, None, None)
    assert oct((world.folder / "run" / "agent.json").stat().st_mode)[-3:] == "644"
    # The model and the agent write the same.
    assert state.as_json() == json.loads((world.folder / "run" / "agent.json").read_text())


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
    world.azure.tags["gpuinfra:lease-until"] = agent.stamp(world.now + HOUR)
    state = world.tick()
    assert (state.action, state.last_error) == ("watching", None)
    assert len(world.azure.calls) == 1
    # The next end works like the first.
    world.tick(HOUR)
    assert len(world.azure.calls) == 2


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
    home = _made(world.folder / "home")
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
    world.azure.tags = {"GpuInfra:Lease-Until": agent.stamp(ON + 2 * HOUR), "gpuinfra:terms": "lease=4h idle=20m"}
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
    folder = make_run(_made(world.folder / "home"), "r1", state={"kind": "process", "started": time.time()})
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
    folder = make_run(_made(world.folder / "home"), "r1", state={"kind": "process", "started": time.time()})
    with (folder / "alive").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        world.tick(0.0)
        world.tick(3600.0)
    assert world.tick(0.2).action == "deallocating"


def test_agent_continues_after_a_failed_tick(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks: list[int] = []

    def fails() -> float:
        ticks.append(1)
        raise RuntimeError("a mistake")

    def pauses(seconds: float) -> None:
        if len(ticks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(world.agent, "tick", fails)
    monkeypatch.setattr(world.agent, "meet", lambda: None)
    replace_in_agent(monkeypatch, time, sleep=pauses)
    with pytest.raises(KeyboardInterrupt):
        world.agent.work()
    assert len(ticks) == 3


def test_full_disk_does_not_prevent_the_deallocation(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: str, value: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(agent, "write_whole", full)
    world.agent.tick()
    world.now += 3600.0
    world.agent.tick()
    assert world.azure.calls == ["deallocate /vm"]


def _made(home: Path) -> Path:
    (home / ".gpuinfra" / "runs").mkdir(parents=True)
    return home


# Reading the state elsewhere


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


# Packaging


def test_agent_runs_on_python_3_8_with_the_standard_library() -> None:
    tree = ast.parse(FILE.read_text(), feature_version=(3, 8))
    newer = {"removeprefix", "removesuffix", "UTC", "batched", "pairwise", "file_digest", "zoneinfo", "tomllib"}
    assert not newer & {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names = [each.name for node in ast.walk(tree) if isinstance(node, ast.Import) for each in node.names]
    names += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names
    assert "from __future__ import annotations" in FILE.read_text()


@pytest.mark.parametrize(
    ("cloud", "manager"),
    [
        ("AzurePublicCloud", "https://management.azure.com"),
        ("AzureUSGovernmentCloud", "https://management.usgovcloudapi.net"),
        ("AzureChinaCloud", "https://management.chinacloudapi.cn"),
        ("", "https://management.azure.com"),
    ],
)
def test_resource_manager_is_that_of_the_cloud_in_the_metadata(cloud: str, manager: str) -> None:
    assert agent.manager_of(cloud) == manager
