"""A guest agent with its folder, a fake Azure and a manual clock."""

import json
import subprocess
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gpuinfra.models.machine import AgentState, parse_agent_state
from gpuinfra.remote.agent import main, runs, teardown
from gpuinfra.remote.agent.azure import AzureError
from gpuinfra.remote.agent.guest import Program
from gpuinfra.remote.agent.main import Agent

HOUR, MINUTE = 3600.0, 60.0
ON = 1_800_000_000.0


def make_run(home: Path, name: str, **files: Any) -> Path:
    folder = home / ".gpuinfra" / "runs" / name
    folder.mkdir()
    for stem, value in files.items():
        (folder / f"{stem}.json").write_text(json.dumps(value))
    return folder


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
    for user in (main, runs, teardown):
        monkeypatch.setattr(user, module.__name__, stand_in, raising=False)


class World:
    """An agent with its folder, its Azure and a manual clock."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.azure, self.now, self.seconds = folder, FakeAzure(), ON, 1000.0
        self.logins = ""
        monkeypatch.setattr(Program, "ask", lambda program: self.logins if "ss" in program._words else None)
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


def make_home(home: Path) -> Path:
    (home / ".gpuinfra" / "runs").mkdir(parents=True)
    return home
