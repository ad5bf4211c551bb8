"""The simulated clock: it can run faster than real time, be advanced, and stands still while no server runs."""

import time
from datetime import UTC, datetime

from gpuinfra.sandbox.kernel.store import Store

_NAME = "clock"


class Clock:
    """Simulated seconds since 1970."""

    def __init__(self, store: Store) -> None:
        self.store = store
        kept = store.setting(_NAME, {})
        self.speed: float = kept.get("speed", 1.0)
        # A killed server saved the time some moments before its end; its state must not be in the future.
        self._base: float = max(kept["now"], store.latest_time()) if kept else time.time()
        self._started = time.monotonic()

    def now(self) -> float:
        return self._base + (time.monotonic() - self._started) * self.speed

    def set_speed(self, speed: float) -> None:
        """Set how many simulated seconds pass in one real second."""
        self._rebase(self.now())
        self.speed = speed
        self.keep()

    def advance(self, seconds: float) -> None:
        self._rebase(self.now() + seconds)
        self.keep()

    def restart(self) -> None:
        """Return to the computer's time and normal speed. Only an empty sandbox may go back in time."""
        self._rebase(time.time())
        self.speed = 1.0
        self.keep()

    def keep(self) -> None:
        """Save the time, so that the next server continues from here."""
        self.store.set_setting(_NAME, {"speed": self.speed, "now": self.now()})

    def real(self, seconds: float) -> float:
        return seconds / self.speed

    def _rebase(self, now: float) -> None:
        self._base, self._started = now, time.monotonic()


def stamp_z(seconds: float) -> str:
    """Format a time as Azure's other services do: with Z instead of an offset."""
    return stamp(seconds).replace("+00:00", "Z")


def stamp(seconds: float) -> str:
    """Format a time as Microsoft.Compute does: seven decimals and an offset."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond:06d}0+00:00"
