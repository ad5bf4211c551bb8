"""Whether it pays to compress: a fast link is quicker without, and so is content that does not get smaller."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable

LEVEL = 1
SAMPLE = 8 << 10
# What zlib does on a slow core; measured as soon as it has something to do.
SPEED = 50e6
# No content that is worth a thought gets smaller than this.
BEST_RATIO = 0.2
# It has to win something for the work on the remote side.
WORTH = 0.9
# How much the latest measurement counts against those before it.
WEIGHT = 0.2
# What is sent first only goes into buffers and windows on the way, and says nothing of the link.
BUFFERED = 4 << 20
# A first guess by the time that a message needs: a machine next door, or one across the country.
NEAR_SECONDS, NEAR_RATE, FAR_RATE = 0.002, 500e6, 12e6


def pays(link: float, speed: float, ratio: float) -> bool:
    """Whether to compress at this speed, to this part of the size, is quicker than not to. Rates in bytes a second."""
    return 1 / speed + ratio / link < WORTH / link


class Squeeze:
    """Decides for each part of a stream, by what the parts before it took."""

    def __init__(self, delay: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._link = NEAR_RATE if delay < NEAR_SECONDS else FAR_RATE
        self._speed = SPEED
        self._sent = 0

    @property
    def link(self) -> float:
        """The rate of the link, in bytes a second, as far as is known."""
        return self._link

    def compress(self, data: memoryview) -> bytes | None:
        """The part, smaller; None where it had better be sent as it is."""
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

    def sent(self, count: int, seconds: float) -> None:
        """So many bytes left in this time."""
        self._sent += count
        if self._sent <= BUFFERED:
            return
        # By times, not by rates: a rate that was infinitely high once would count for ever.
        self._link = 1 / ((1 - WEIGHT) / self._link + WEIGHT * max(seconds, 1e-6) / count)
