"""Decide which parts of an upload to compress, from the speed of the connection and of compression."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable

LEVEL = 1
SAMPLE = 8 << 10
# The speed of zlib on a slow core, in bytes per second, until it is measured.
SPEED = 50e6
# The best ratio to expect; a sample is compressed only if this would pay.
BEST_RATIO = 0.2
# Compression must save at least a tenth of the time, for the work of the target.
MAX_TIME_RATIO = 0.9
# The weight of a new measurement in the average.
WEIGHT = 0.2
# The first bytes only fill buffers on the way, so their rate is not measured.
BUFFERED = 4 << 20
# The first estimate of the rate, from the delay of a message: a machine nearby or a distant one.
NEAR_SECONDS, NEAR_RATE, FAR_RATE = 0.002, 500e6, 12e6


def pays(link: float, speed: float, ratio: float) -> bool:
    """Return whether compression at this speed and ratio saves time on this link. Rates are in bytes per second."""
    return 1 / speed + ratio / link < MAX_TIME_RATIO / link


class Compressor:
    """Compresses the parts of a stream if that saves time, as measured with earlier parts."""

    def __init__(self, delay: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._link = NEAR_RATE if delay < NEAR_SECONDS else FAR_RATE
        self._speed = SPEED
        self._sent = 0

    @property
    def link(self) -> float:
        """Return the measured or estimated rate of the link, in bytes per second."""
        return self._link

    def compress(self, data: memoryview) -> bytes | None:
        """Return the compressed part, or None to send it uncompressed."""
        if len(data) < SAMPLE // 8 or not pays(self._link, self._speed, BEST_RATIO):
            return None
        middle = max(0, len(data) // 2 - SAMPLE // 2)
        sample = data[middle : middle + SAMPLE]
        if not pays(self._link, self._speed, len(zlib.compress(sample, LEVEL)) / len(sample)):
            return None
        began = self._clock()
        small = zlib.compress(data, LEVEL)
        self._speed += WEIGHT * (len(data) / max(self._clock() - began, 1e-6) - self._speed)
        return small if len(small) < len(data) else None

    def note_sent(self, count: int, seconds: float) -> None:
        """Note how long it took to send this number of bytes."""
        self._sent += count
        if self._sent <= BUFFERED:
            return
        # Average times instead of rates, because one infinite rate would dominate forever.
        self._link = 1 / ((1 - WEIGHT) / self._link + WEIGHT * max(seconds, 1e-6) / count)
