"""What every step of a change in Azure needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from gpuinfra.models.resource import Ref
from gpuinfra.provision.cloud import Cloud
from gpuinfra.provision.errors import CloudError
from gpuinfra.provision.journal import Journal
from gpuinfra.provision.market.port import Market
from gpuinfra.provision.progress import Progress
from gpuinfra.provision.waiting import Deadline, retry, wait_until

Result = TypeVar("Result")


@dataclass(frozen=True)
class Task:
    """The change of one machine: the cloud, where steps are reported and recorded, and until when they may take."""

    cloud: Cloud
    market: Market
    progress: Progress
    journal: Journal
    deadline: Deadline

    def within(self, seconds: float) -> Task:
        """Return this task with a deadline at most `seconds` from now."""
        return replace(self, deadline=self.deadline.within(seconds))

    @contextmanager
    def step(self, ref: Ref, doing: str, done: str) -> Iterator[None]:
        """Report and record the steps in this block, and their failure. `doing` and `done` are as in Progress."""
        self.progress.begin(str(ref), doing)
        self.journal.intend(doing, ref)
        try:
            yield
        except CloudError as error:
            self.progress.fail(str(ref), error.code)
            self.journal.failed(doing, ref, error.code)
            raise
        self.progress.end(str(ref), done)
        self.journal.did(doing, ref)

    def retry(self, attempt: Callable[[], Result], unreachable_seconds: float) -> Result:
        """Return the result of `attempt`, which is retried until the deadline: see `retry`."""
        return retry(attempt, self.deadline, self.cloud.interrupt.sleep, unreachable_seconds=unreachable_seconds)

    def wait_until(self, condition: Callable[[], bool]) -> bool:
        """Return whether the condition became true before the deadline."""
        return wait_until(condition, self.deadline, self.cloud.interrupt.sleep)

    def wait_until_settled(self, ref: Ref) -> bool:
        """Return whether no operation on the resource is in progress, or it is gone, before the deadline."""

        def is_settled() -> bool:
            found = self.cloud.look(ref)
            return found is None or found.is_settled

        return self.wait_until(is_settled)
