"""The simulated clock, which can run faster than real time, and how long operations take by it."""

import math
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime

from gpuinfra.sandbox.kernel.store import Store

_NAME = "clock"


class Clock:
    """Simulated seconds since 1970."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.on_change: Callable[[], None] = lambda: None
        """Called when the speed or the time was set: what waits for a time has to look again."""
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

    def restart(self, now: float | None = None) -> None:
        """Set this time, or the computer's, and normal speed. Only an empty sandbox may go back in time."""
        self._rebase(time.time() if now is None else now)
        self.speed = 1.0
        self.keep()

    def keep(self) -> None:
        """Save the time, so that the next server continues from here."""
        self.store.set_setting(_NAME, {"speed": self.speed, "now": self.now()})

    def real(self, seconds: float) -> float:
        return seconds / self.speed

    def _rebase(self, now: float) -> None:
        self._base, self._started = now, time.monotonic()
        self.on_change()


def stamp_z(seconds: float) -> str:
    """Format a time as Azure's other services do: with Z instead of an offset."""
    return stamp(seconds).replace("+00:00", "Z")


def stamp(seconds: float) -> str:
    """Format a time as Microsoft.Compute does: seven decimals and an offset."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond:06d}0+00:00"


PROFILES = ("instant", "realistic")
# Median and 90th percentile in seconds, by kind of operation.
_REALISTIC: dict[str, tuple[float, float]] = {
    "vm-create": (80, 137),
    "vm-update": (8, 30),
    "vm-tag": (1, 2),
    "vm-deallocate": (17, 26),
    "vm-start": (11, 14),
    "vm-power-off": (11, 19),
    "vm-restart": (10, 72),
    "vm-redeploy": (115, 125),
    "vm-delete": (22, 29),
    "vm-run-command": (10, 20),
    "guest-boot": (25, 45),
    "nic-put": (1, 2),
    "nic-delete": (11, 12),
    "address-put": (1, 2),
    "address-delete": (10, 11),
    "network-put": (4, 14),
    "network-delete": (10, 12),
    "subnet-put": (2, 4),
    "subnet-delete": (4, 10),
    "security-group-put": (2, 11),
    "security-group-delete": (2, 11),
    "rule-put": (10, 10),
    "rule-delete": (10, 10),
    "disk-put": (2, 5),
    "disk-delete": (2, 5),
    "group-delete": (46, 63),
    "deployment-start": (1, 2),
    "deployment-delete": (10, 20),
    "provider-register": (20, 60),
}
_SIGMAS_TO_90 = 1.2816


class Latency:
    """Durations of the chosen profile, drawn from a log-normal distribution; the same for the same seed."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.restart()

    def restart(self) -> None:
        """Start the sequence of durations again."""
        self._random = random.Random(self.store.setting("seed", 1))  # noqa: S311 no secret hangs on it

    @property
    def profile(self) -> str:
        """The profile: `instant` or `realistic`."""
        return str(self.store.setting("profile", "instant"))

    def seconds(self, kind: str) -> float:
        """Return how long an operation of this kind takes this time, in simulated seconds."""
        median, ninetieth = _REALISTIC[kind]
        if self.profile == "instant":
            return 0.0
        if ninetieth <= median:
            return median
        sigma = math.log(ninetieth / median) / _SIGMAS_TO_90
        return median * math.exp(sigma * max(-2.0, min(2.0, self._random.gauss(0, 1))))
