"""Switch the machine off: ask its jobs to end, then ask Azure to deallocate it, until Azure accepts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from gpuinfra.remote.agent.azure import Azure, AzureError, Clock
from gpuinfra.remote.agent.decide import STOP_SECONDS, Facts
from gpuinfra.remote.agent.runs import Runs
from gpuinfra.remote.run_folder import EVICTED

GRACE_SECONDS = 20.0
EVICTION_GRACE_SECONDS, EVICTION_STOP_SECONDS = 15.0, 20.0
# A job needs some of the guest's own time to end, however fast Azure's clock runs.
SHORTEST_GRACE = 2.0
FIRST_BACK_OFF, LONGEST_BACK_OFF = 1.0, 60.0
ACCEPTED_SECONDS = 600.0


def back_off(failures: int) -> float:
    """Return the pause after this number of failures."""
    return min(LONGEST_BACK_OFF, FIRST_BACK_OFF * 2.0 ** min(failures - 1, 16))


class Teardown:
    """One end of the machine, from its first decision until the machine is off or the end is called off."""

    def __init__(self, azure: Azure, runs: Runs, clock: Clock, log: Callable[[str, str], None]) -> None:
        self._azure, self._runs, self._clock, self._log = azure, runs, clock, log
        self._began = time.monotonic()
        self._asked: list[str] = []
        self._failures = 0
        self._next_try = 0.0
        self._accepted: float | None = None
        self._acknowledged: str | None = None
        self.cause = ""
        self.error: str | None = None
        self.is_stopping = True
        """Whether jobs have not ended yet, and still have time to."""

    def is_accepted(self, now: float) -> bool:
        """Return whether Azure has accepted to deallocate the machine. If that takes too long, it is asked again."""
        if self._accepted is None:
            return False
        if 0 <= now - self._accepted < ACCEPTED_SECONDS:
            return True
        self._log("end", "Azure accepted it, but this machine is still on: asking again")
        self._accepted = None
        return False

    def proceed(self, cause: str, detail: str, facts: Facts, machine: Mapping[str, Any]) -> bool:
        """Do what is due now, and return whether jobs are still stopping."""
        self.cause = cause
        self._log("end", f"{cause}: {detail}")
        self._stop_jobs(detail, facts)
        if self.is_stopping:
            return True
        if cause == EVICTED:
            self._acknowledge(facts.notice)
        # Azure evicts it within a minute. If it stays on after its jobs have ended, do not wait forever.
        if cause != EVICTED or time.monotonic() - self._began >= ACCEPTED_SECONDS:
            self._deallocate(machine)
        return False

    def _stop_jobs(self, detail: str, facts: Facts) -> None:
        """Ask every job to end, including new ones, and note whether to wait for one."""
        grace, limit = GRACE_SECONDS, STOP_SECONDS
        if self.cause == EVICTED:
            grace, limit = EVICTION_GRACE_SECONDS, EVICTION_STOP_SECONDS
        # Azure's time is what is billed.
        grace, limit = max(grace / facts.rate, SHORTEST_GRACE), max(limit / facts.rate, 2 * SHORTEST_GRACE)
        alive = [run for run in facts.runs if run.alive]
        for run in alive:
            if run.id not in self._asked:
                self._asked.append(run.id)
                self._log(f"job {run.id}", f"run {run.id} is asked to end within {grace:.0f} s")
                self._runs.end(run, self.cause, detail, grace)
        if not alive or time.monotonic() - self._began >= limit:
            self.is_stopping = False

    def _acknowledge(self, notice: str | None) -> None:
        if notice is None or self._acknowledged == notice:
            return
        try:
            self._azure.acknowledge(notice)
        except AzureError as error:
            self.error = str(error)
            self._log("azure", f"the eviction is not acknowledged: {error}")
            return
        self._acknowledged, self.error = notice, None
        self._log("azure", "the eviction may go on")

    def _deallocate(self, machine: Mapping[str, Any]) -> None:
        now = self._clock.now()
        # A clock that was set back must not extend the wait.
        if self._next_try - LONGEST_BACK_OFF <= now < self._next_try:
            return
        try:
            self._azure.deallocate(str(machine.get("resourceId") or ""), str(machine.get("azEnvironment") or ""))
        except AzureError as error:
            self._failures += 1
            wait = back_off(self._failures)
            self._next_try = now + wait
            self.error = str(error)
            self._log("azure", f"not switched off, try {self._failures}; the next in {wait:.0f} s: {error}")
            return
        self._accepted, self._failures, self._next_try, self.error = self._clock.now(), 0, 0.0, None
        self._log("azure", "Azure has accepted to deallocate this machine")
