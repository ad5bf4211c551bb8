"""The service: every tick it reads the VM's tags, looks for activity, decides, and acts.

It deallocates with the VM's own identity. It never shuts the guest down, because a stopped VM is billed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from gpuinfra.remote.agent.azure import Azure, AzureError, read_notice
from gpuinfra.remote.agent.decide import Decision, Facts, Memory, Run, decide
from gpuinfra.remote.agent.guest import (
    Clock,
    Program,
    booted_at,
    guest_seconds,
    read_file,
    read_object,
    read_utilization,
    write_json,
)
from gpuinfra.remote.agent.runs import Runs
from gpuinfra.remote.agent.teardown import AgentTeardown
from gpuinfra.remote.agent.terms import read_config, read_hold, read_moment, read_terms, stamp
from gpuinfra.remote.run_folder import LEASE_OVER

WATCHING, WARNING, STOPPING, DEALLOCATING = "watching", "warning", "stopping-jobs", "deallocating"

TICK = 5.0
# Azure recommends polling scheduled events once a second. Changed tags are noticed as fast.
MAX_PAUSE, MIN_PAUSE = 1.0, 0.1
# Start programs at most this often: with an accelerated Azure clock they would use all the time.
MIN_LOOK_SECONDS = 0.3
FIRST_ANSWER_SECONDS = 30.0
# After a gap this long between samples, idle time is unknown and starts from zero.
MAX_GAP = 120.0
NEVER = (-1e12, -1e12)


def pause_for(rate: float) -> float:
    """Return the pause between two ticks in the guest's seconds, if Azure's clock runs at this rate."""
    return min(MAX_PAUSE, guest_seconds(TICK, max(rate, 1.0), at_least=MIN_PAUSE))


class Agent:
    """The agent, which looks, decides and acts in every tick."""

    def __init__(self, config: str, run: str, home: str, environment: Mapping[str, str]) -> None:
        self._folder = run
        self._terms, own_home = read_config(read_file(config) or "")
        self.clock = Clock()
        self._azure = Azure(self.clock, environment)
        self._runs = Runs(home or own_home or os.path.expanduser("~"), booted_at(run))
        self._sessions = Program(["ss", "-Htn", "state", "established", "( sport = :22 )"])
        self._gpus = Program(["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"])
        self._wall: subprocess.Popen[bytes] | None = None
        self._machine: dict[str, Any] = {}
        self._notice: dict[str, Any] | None = None
        self._power_on: float | None = None
        self._memory = Memory()
        self._teardown: AgentTeardown | None = None
        self._error: str | None = None
        self._logged: dict[str, str] = {}
        self._looked_at = NEVER
        self._found: tuple[tuple[Run, ...], int, int | None] = ((), 0, None)

    def work(self) -> None:
        """Run until the process is stopped."""
        self.wait_for_azure()
        while True:
            try:
                pause = self.tick()
            except Exception as error:
                # Continue after every error: without the agent, the machine stays billed.
                self.log("tick", f"a tick failed: {type(error).__name__}: {error}")
                pause = MAX_PAUSE
            time.sleep(pause)

    def wait_for_azure(self) -> None:
        """Wait briefly for Azure's time, because the network may come up later."""
        deadline = time.monotonic() + FIRST_ANSWER_SECONDS
        self._ask_azure()
        while not self.clock.is_set and time.monotonic() < deadline:
            time.sleep(MAX_PAUSE)
            self._ask_azure()

    def tick(self) -> float:
        """Look, decide, act once, and return the pause before the next tick."""
        self._ask_azure()
        facts = self._facts()
        decision = decide(facts, self._memory)
        if decision.cause and self._teardown is None:
            # Look again, so that a login or job since the last look is not missed.
            self._looked_at = NEVER
            facts = self._facts()
            decision = decide(facts, self._memory)
        self._memory = decision.memory
        for cause, moment in decision.warnings:
            self._warn(cause, moment, facts.now)
        action = self._act(facts, decision)
        self._write_state(facts, decision, action)
        return MIN_PAUSE if action == STOPPING else pause_for(self.clock.rate())

    # Look

    def _ask_azure(self) -> None:
        """Read metadata and events from Azure. Without an answer, the last ones stay valid."""
        try:
            self._machine = self._azure.compute()
            if str(self._machine.get("priority")).lower() == "spot":
                self._notice = read_notice(self._azure.events(), str(self._machine.get("name")))
            self._fail(None)
        except AzureError as error:
            self._fail(str(error))

    def _tags(self) -> dict[str, str]:
        found = self._machine.get("tagsList")
        entries = [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
        return {str(each.get("name")).lower(): str(each.get("value")) for each in entries}

    def _facts(self) -> Facts:
        now, tags = self.clock.now(), self._tags()
        power_on = self._power_on_at(now)
        runs, sessions, gpu = self._signs(now)
        return Facts(
            now=now,
            power_on=power_on,
            terms=read_terms(tags.get("gpuinfra:terms", ""), self._terms),
            lease_until=read_moment(tags.get("gpuinfra:lease-until")),
            on_since=read_moment(tags.get("gpuinfra:on-since")),
            hold=read_hold(tags.get("gpuinfra:on-for", "")),
            runs=runs,
            sessions=sessions,
            gpu=gpu,
            notice=str(self._notice["EventId"]) if self._notice else None,
            rate=self.clock.rate(),
        )

    def _power_on_at(self, now: float) -> float:
        """Return when an agent first ran in this boot. A file in `/run` stores it for a restarted agent."""
        if self._power_on is None:
            file = os.path.join(self._folder, "power-on.json")
            known = read_moment((read_object(file) or {}).get("powerOn"))
            self._power_on = now if known is None else min(known, now)
            self._memory = self._remembered(now)
            if known is None:
                self._write(file, {"powerOn": stamp(self._power_on)})
        return self._power_on

    def _remembered(self, now: float) -> Memory:
        """Return what the last agent of this boot knew, unless that is too old."""
        found = read_object(os.path.join(self._folder, "agent.json")) or {}
        at = read_moment(found.get("at"))
        if at is None or now < at or guest_seconds(now - at, self.clock.rate()) > MAX_GAP:
            return Memory()
        return Memory(read_moment(found.get("idleSince")))

    def _signs(self, now: float) -> tuple[tuple[Run, ...], int, int | None]:
        """Return activity of jobs, users and GPUs. A failed query counts as inactive, so that the machine goes off."""
        at, moment = self._looked_at
        if self._teardown and self._teardown.is_stopping:
            # Only jobs matter now, and they are checked in every tick.
            self._found = (self._runs.look(), *self._found[1:])
        elif abs(now - moment) >= TICK - MAX_PAUSE / 2 and time.monotonic() - at >= MIN_LOOK_SECONDS:
            sessions = self._sessions.ask()
            count = len((sessions or "").splitlines())
            self._found = (self._runs.look(), count, read_utilization(self._gpus.ask() or ""))
            self._looked_at = (time.monotonic(), now)
            self.log("ss", "" if sessions is not None else "`ss` does not run: logins are not detected")
        return self._found

    # Act

    def _act(self, facts: Facts, decision: Decision) -> str:
        if self._teardown and self._teardown.is_accepted(facts.now):
            return DEALLOCATING
        if decision.cause is None:
            if self._teardown:
                self.log("end", f"called off: on until {stamp(decision.until)}")
            self._teardown = None
            return WARNING if decision.is_warning else WATCHING
        if self._teardown is None:
            self._teardown = AgentTeardown(self._azure, self._runs, self.clock, self.log)
        is_stopping = self._teardown.proceed(decision.cause, decision.detail, facts, self._machine)
        return STOPPING if is_stopping else DEALLOCATING

    def _warn(self, cause: str, moment: float, now: float) -> None:
        minutes = max(1, round((moment - now) / 60))
        text = f"gpuinfra: this machine is switched off at {stamp(moment)}, in about {minutes} min: {cause}."
        if cause == LEASE_OVER:
            text += " To extend the lease: gpuinfra lease NAME --extend 2h"
        self.log("wall", text)
        if self._wall is not None and self._wall.poll() is None:
            return  # the last message is stuck at a terminal
        null = subprocess.DEVNULL
        with contextlib.suppress(OSError):
            self._wall = subprocess.Popen(["wall", text], stdin=null, stdout=null, stderr=null)  # noqa: S603, S607

    # Report

    def _write_state(self, facts: Facts, decision: Decision, action: str) -> None:
        """Write the state for users, `gpuinfra status`, and the next agent of this boot."""
        idle_since = decision.memory.idle_since
        state = {
            "schemaVersion": 1,
            "at": stamp(facts.now),
            "powerOn": stamp(facts.power_on),
            "until": stamp(decision.until),
            "cause": (self._teardown.cause if self._teardown else decision.cause) or decision.limit,
            "idleSince": None if idle_since is None else stamp(idle_since),
            "idleUntil": None if decision.idle_until is None else stamp(decision.idle_until),
            "endsWith": list(decision.ends_with),
            "finishedUntil": None if decision.finished_until is None else stamp(decision.finished_until),
            "heldFor": decision.held[0] if decision.held else None,
            "heldUntil": stamp(decision.held[1]) if decision.held else None,
            "jobs": [run.id for run in facts.runs if run.alive],
            "sessions": facts.sessions,
            "gpuUtilization": facts.gpu,
            "action": action,
            "lastError": (self._teardown.error if self._teardown else None) or self._error,
            "evictionNotice": facts.notice is not None,
        }
        self._write(os.path.join(self._folder, "agent.json"), state)

    def _write(self, file: str, value: Any) -> None:
        """Write a file. A failure is only reported, because the machine must still go off."""
        try:
            os.makedirs(self._folder, mode=0o755, exist_ok=True)
            write_json(file, value)
            self.log("state", "")
        except OSError as error:
            self.log("state", f"the state cannot be written: {error}")

    def _fail(self, error: str | None) -> None:
        self._error = error
        self.log("error", error or "")

    def log(self, about: str, text: str) -> None:
        """Print a line to the journal, unless it repeats the last one on this subject."""
        if self._logged.get(about, "") == text:
            return
        self._logged[about] = text
        if text:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(f"{text}\n")
                sys.stderr.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the service."""
    parser = argparse.ArgumentParser(description="Deallocates this VM when nothing needs it.")
    parser.add_argument("--config", default="/etc/gpuinfra/agent.json")
    parser.add_argument("--run", default="/run/gpuinfra")
    parser.add_argument("--home", default="")
    chosen = parser.parse_args(arguments)
    Agent(chosen.config, chosen.run, chosen.home, os.environ).work()
    return 0
