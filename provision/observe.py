"""Observe a machine once no operation on it is in progress."""

from __future__ import annotations

from gpuinfra.models.resource import Ref
from gpuinfra.provision.cloud import Cloud
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.observed import Observed
from gpuinfra.provision.waiting.deadline import Deadline
from gpuinfra.provision.waiting.progress import Progress
from gpuinfra.provision.waiting.retry import wait_until

SETTLE_SECONDS = 2400.0


def observe_settled(cloud: Cloud, name: str, group: str | None, progress: Progress, deadline: Deadline) -> Observed:
    """What there is once it holds still: a run that was killed, or another's, may have something under way."""
    observed = cloud.observe(name, group, thorough=True)
    while moving := [part for part in observed.ours() if not part.is_settled]:
        for part in moving:
            _wait(cloud, part.ref, part.state, progress, deadline.within(SETTLE_SECONDS))
        observed = cloud.observe(name, observed.group, thorough=True)
    return observed


def _wait(cloud: Cloud, ref: Ref, state: str, progress: Progress, deadline: Deadline) -> None:
    progress.begin(str(ref), f"waiting while it is {state}")

    def is_settled() -> bool:
        part = cloud.look(ref)
        return part is None or part.is_settled

    if not wait_until(is_settled, deadline, cloud.interrupt.sleep):
        progress.fail(str(ref), f"still {state}")
        raise CloudError(Fault.TIMEOUT, "Timeout", f"it stays {state}", subject=str(ref))
    progress.end(str(ref), "settled")
