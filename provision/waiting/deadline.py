"""Every wait has an end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Deadline:
    """A moment on a clock that nobody sets back."""

    at: float
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def after(cls, seconds: float, clock: Callable[[], float] = time.monotonic) -> Deadline:
        """So many seconds from now."""
        return cls(clock() + seconds, clock)

    @property
    def left(self) -> float:
        """Seconds until then; 0 once it is over."""
        return max(0.0, self.at - self.clock())

    @property
    def is_over(self) -> bool:
        """Nothing is left."""
        return self.clock() >= self.at

    def within(self, seconds: float) -> Deadline:
        """The earlier of this and so many seconds from now."""
        return Deadline(min(self.at, self.clock() + seconds), self.clock)
