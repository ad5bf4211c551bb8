"""How much of a step is done: percent, bytes, rate and time left."""

from __future__ import annotations

import math

from gpuinfra.views.cells import length

UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
# A rate forgets what was so many seconds ago: it moves with the network, and does not flicker.
MEMORY_SECONDS = 3.0
SHORTEST = 0.1
BAR_WIDTH = 12


class Amount:
    """Bytes of one step. Being told is one assignment, from whatever thread; all else is for whoever looks."""

    def __init__(self, now: float, done: int, total: int | None) -> None:
        self.told = (done, total)
        # What was there at the beginning, as of an upload that goes on, is nobody's speed.
        self._seen, self._at = done, now
        self._rate: float | None = None

    @property
    def is_whole(self) -> bool:
        """Whether all is done."""
        done, total = self.told
        return total is not None and done >= total

    @property
    def has_total(self) -> bool:
        """Whether anybody knows how much it will be."""
        return self.told[1] is not None

    def look(self, now: float) -> None:
        """Measure the rate since the last look."""
        done, elapsed = self.told[0], now - self._at
        if done < self._seen:  # it began again
            self._seen, self._at, self._rate = done, now, None
        elif elapsed >= SHORTEST:
            rate, weight = (done - self._seen) / elapsed, 1 - math.exp(-elapsed / MEMORY_SECONDS)
            self._rate = rate if self._rate is None else self._rate + weight * (rate - self._rate)
            self._seen, self._at = done, now

    def bar(self, full: str, empty: str) -> str:
        """Always as wide."""
        cells = math.floor(self._share * BAR_WIDTH)
        return full * cells + empty * (BAR_WIDTH - cells)

    def parts(self) -> list[str]:
        """`42 %`, `12.0/28.6 MiB`, `3.1 MiB/s`, `5 s left`: what of it is known."""
        done, total = self.told
        found = [f"{math.floor(self._share * 100)} %", _both(done, total)] if total is not None else [size(done)]
        if self._rate is not None and not self.is_whole:
            found.append(f"{size(self._rate)}/s")
            if total is not None and self._rate >= 1:
                found.append(f"{length(math.ceil((total - done) / self._rate))} left")
        return found

    @property
    def _share(self) -> float:
        done, total = self.told
        return min(1.0, max(0.0, done / total)) if total else 1.0


def size(count: float) -> str:
    """`512 B`, `12.0 KiB`, `28.6 MiB`."""
    unit = _unit(count)
    return f"{count / unit[1]:.1f} {unit[0]}" if unit else f"{round(count)} B"


def _both(done: int, total: int) -> str:
    unit = _unit(total)
    return f"{done / unit[1]:.1f}/{total / unit[1]:.1f} {unit[0]}" if unit else f"{done}/{total} B"


def _unit(count: float) -> tuple[str, int] | None:
    # Gibibytes only where there are several: with one digit they move too slowly.
    return next(((name, each) for name, each in UNITS if count >= (each if name != "GiB" else 10 * each)), None)
