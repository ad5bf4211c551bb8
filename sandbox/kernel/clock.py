"""Time in the embedded Azure: it can run faster than the wall, be stepped, and stands still while nothing serves it."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from gpuinfra.sandbox.kernel.store import Store

_NAME = "clock"


class Clock:
    """Seconds since 1970, of simulated time."""

    def __init__(self, store: Store) -> None:
        self.store = store
        kept = store.setting(_NAME, {})
        self.speed: float = kept.get("speed", 1.0)
        # A killed server wrote the time down a while before its end; nothing in its state may lie in the future.
        self._base: float = max(kept["now"], store.latest_moment()) if kept else time.time()
        self._started = time.monotonic()

    def now(self) -> float:
        """The simulated time."""
        return self._base + (time.monotonic() - self._started) * self.speed

    def set_speed(self, speed: float) -> None:
        """From now on so many simulated seconds pass in one real second."""
        self._rebase(self.now())
        self.speed = speed
        self.keep()

    def advance(self, seconds: float) -> None:
        """Step forward."""
        self._rebase(self.now() + seconds)
        self.keep()

    def restart(self) -> None:
        """Begin again at the computer's time and speed. Only an empty sandbox can go back in time."""
        self._rebase(time.time())
        self.speed = 1.0
        self.keep()

    def keep(self) -> None:
        """Write the time down, so that a server started later goes on from here."""
        self.store.set_setting(_NAME, {"speed": self.speed, "now": self.now()})

    def real(self, seconds: float) -> float:
        """How many real seconds so many simulated ones take."""
        return seconds / self.speed

    def _rebase(self, now: float) -> None:
        self._base, self._started = now, time.monotonic()


def stamp(seconds: float) -> str:
    """A time as Microsoft.Compute writes it: seven digits and an offset."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond:06d}0+00:00"
