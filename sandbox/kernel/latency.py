"""How long operations take: no time, or as long as in recordings of Azure."""

import math
import random

from gpuinfra.sandbox.kernel.store import Store

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
