"""Observe a machine once no operation on it is in progress."""

from __future__ import annotations

from gpuinfra.models.resource import Ref
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.observed import Observed
from gpuinfra.provision.task import Task

SETTLE_SECONDS = 2400.0


def observe_settled(task: Task, name: str, group: str | None) -> Observed:
    """Return the current state once no operation is in progress: a killed run, or another client, may have left one."""
    observed = task.cloud.observe(name, group, thorough=True)
    while moving := [part for part in observed.ours() if not part.is_settled]:
        for part in moving:
            _wait(task.within(SETTLE_SECONDS), part.ref, part.state)
        observed = task.cloud.observe(name, observed.group, thorough=True)
    return observed


def _wait(task: Task, ref: Ref, state: str) -> None:
    task.progress.begin(str(ref), f"waiting while it is {state}")
    if not task.wait_until_settled(ref):
        task.progress.fail(str(ref), f"still {state}")
        raise CloudError(Fault.TIMEOUT, "Timeout", f"it stays {state}", subject=str(ref))
    task.progress.end(str(ref), "settled")
