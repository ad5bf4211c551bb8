"""Azure's time, which billing and leases use.

The sandbox can run Azure's clock faster than the guest's. `rate` and `guest_seconds` are the only code for that; with
Azure itself, the rate is 1.
"""

from __future__ import annotations

import email.utils
import time
from collections import deque


class Clock:
    """Azure's time, from its responses; the guest's time before the first one."""

    def __init__(self) -> None:
        self._responses: deque[tuple[float, float]] = deque(maxlen=20)

    def note(self, date: str | None) -> None:
        """Note a response's `Date`."""
        parsed = email.utils.parsedate_tz(date) if date else None
        if parsed:
            self._responses.append((time.monotonic(), float(email.utils.mktime_tz(parsed))))

    @property
    def is_set(self) -> bool:
        """Return whether a response was received."""
        return bool(self._responses)

    def now(self) -> float:
        """Return seconds since 1970."""
        if not self._responses:
            return time.time()
        at, moment = self._responses[-1]
        return moment + (time.monotonic() - at)

    def rate(self) -> float:
        """Return Azure's seconds per second of the guest."""
        if len(self._responses) < 2:
            return 1.0
        (first, before), (last, after) = self._responses[0], self._responses[-1]
        # Responses have whole seconds.
        return max(1.0, (after - before - 1.0) / max(last - first, 0.05))


def guest_seconds(seconds: float, rate: float, at_least: float = 0.0) -> float:
    """Convert seconds of Azure's clock to seconds of the guest's."""
    return max(at_least, seconds / rate)
