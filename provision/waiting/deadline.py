"""Deadlines for waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Deadline:
    """A point in time on a monotonic clock."""

    at: float
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def after(cls, seconds: float, clock: Callable[[], float] = time.monotonic) -> Deadline:
        """Return the deadline `seconds` from now."""
        return cls(clock() + seconds, clock)

    @property
    def left(self) -> float:
        """The seconds until the deadline, or 0 after it."""
        return max(0.0, self.at - self.clock())

    @property
    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return self.clock() >= self.at

    def within(self, seconds: float) -> Deadline:
        """Return this deadline, or one `seconds` from now if that is earlier."""
        return Deadline(min(self.at, self.clock() + seconds), self.clock)
