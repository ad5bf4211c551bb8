"""How often, in the words of those who keep time."""

from __future__ import annotations

from dataclasses import dataclass

HOUR, DAY = 60, 24 * 60
# Both kinds of calendar count anew at each full hour, or at midnight: only what divides them comes round evenly.
EVEN = (*(n for n in range(1, HOUR) if HOUR % n == 0), *(n * HOUR for n in range(1, 25) if 24 % n == 0))


@dataclass(frozen=True)
class Interval:
    """A number of minutes that divides an hour, or of hours that divides a day."""

    minutes: int

    def __post_init__(self) -> None:
        if self.minutes not in EVEN:
            raise ValueError(self.minutes)

    def __str__(self) -> str:
        if self.minutes == DAY:
            return "1d"
        return f"{self.minutes // HOUR}h" if self.minutes >= HOUR else f"{self.minutes}m"

    def cron(self, minute: int = 0) -> str:
        """Five fields; the first run of an hour is at this minute, or earlier where it comes round before."""
        if self.minutes < HOUR:
            first = minute % self.minutes
            return f"{f'{first}-59' if first else '*'}/{self.minutes} * * * *"
        return f"{minute} {self._hours('*/')} * * *"

    def calendar(self) -> str:
        """The same for `OnCalendar=`."""
        if self.minutes < HOUR:
            return f"*-*-* *:0/{self.minutes}:00"
        return f"*-*-* {self._hours('0/')}:00:00"

    def _hours(self, step: str) -> str:
        hours = self.minutes // HOUR
        return {1: "*", 24: "0" if step == "*/" else "00"}.get(hours, f"{step}{hours}")


def nearest(minutes: float) -> Interval:
    """The one that comes round evenly and is nearest."""
    return Interval(min(EVEN, key=lambda even: (abs(even - minutes), even)))
