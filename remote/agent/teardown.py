"""Turn the machine off: ask its jobs to end, then ask Azure to deallocate it until Azure accepts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from gpuinfra.remote.agent.azure import Azure, AzureError
from gpuinfra.remote.agent.decide import STOP_SECONDS, Facts
from gpuinfra.remote.agent.guest import Clock, guest_seconds
from gpuinfra.remote.agent.runs import Runs
from gpuinfra.remote.run_folder import EVICTED

GRACE_SECONDS = 20.0
EVICTION_GRACE_SECONDS, EVICTION_STOP_SECONDS = 15.0, 20.0
# A job needs some of the guest's time to end, however fast Azure's clock runs.
MIN_GRACE = 2.0
FIRST_BACK_OFF, MAX_BACK_OFF = 1.0, 60.0
ACCEPTED_SECONDS = 600.0


def back_off(failures: int) -> float:
    """Return the pause after this number of failures."""
    return min(MAX_BACK_OFF, FIRST_BACK_OFF * 2.0 ** min(failures - 1, 16))


class AgentTeardown:
    """Turns the machine off, from the first decision until the machine is off or the decision is revoked."""

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
        """Whether jobs still run and have time left to end."""

    def is_accepted(self, now: float) -> bool:
        """Return whether Azure has accepted the deallocation. After too long without effect, ask it again."""
        if self._accepted is None:
            return False
        if 0 <= now - self._accepted < ACCEPTED_SECONDS:
            return True
        self._log("end", "Azure accepted the deallocation, but this machine is still on: asking again")
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
        # Azure evicts the VM within a minute. If it does not, deallocate it.
        if cause != EVICTED or time.monotonic() - self._began >= ACCEPTED_SECONDS:
            self._deallocate(machine)
        return False

    def _stop_jobs(self, detail: str, facts: Facts) -> None:
        """Ask every running job to end, and note whether to wait for one."""
        grace, limit = GRACE_SECONDS, STOP_SECONDS
        if self.cause == EVICTED:
            grace, limit = EVICTION_GRACE_SECONDS, EVICTION_STOP_SECONDS
        grace = guest_seconds(grace, facts.rate, at_least=MIN_GRACE)
        limit = guest_seconds(limit, facts.rate, at_least=2 * MIN_GRACE)
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
            self._log("azure", f"cannot acknowledge the eviction: {error}")
            return
        self._acknowledged, self.error = notice, None
        self._log("azure", "the eviction is acknowledged")

    def _deallocate(self, machine: Mapping[str, Any]) -> None:
        now = self._clock.now()
        # A clock that was set back must not extend the wait.
        if self._next_try - MAX_BACK_OFF <= now < self._next_try:
            return
        try:
            self._azure.deallocate(str(machine.get("resourceId") or ""), str(machine.get("azEnvironment") or ""))
        except AzureError as error:
            self._failures += 1
            wait = back_off(self._failures)
            self._next_try = now + wait
            self.error = str(error)
            self._log("azure", f"deallocation failed, attempt {self._failures}; next attempt in {wait:.0f} s: {error}")
            return
        self._accepted, self._failures, self._next_try, self.error = self._clock.now(), 0, 0.0, None
        self._log("azure", "Azure has accepted the deallocation of this machine")
