"""When a machine was on, from all that is known of it: no second is counted twice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from gpuinfra.models.cost import Certainty, Source


class Turn(StrEnum):
    """What became of a machine at a moment."""

    BORN = "born"
    ON = "on"
    OFF = "off"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Change:
    """A moment at which something became so, and who says it."""

    at: datetime
    turn: Turn
    source: Source
    guessed: bool = False
    who: str = ""
    """Who did it, where that is known."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time for which a machine was on, or was there."""

    start: datetime
    end: datetime
    sources: tuple[Source, ...] = ()
    sure: Certainty = Certainty.EXACT

    def seconds(self, since: datetime, until: datetime) -> float:
        """How much of it lies in a span."""
        return max(0.0, (min(self.end, until) - max(self.start, since)).total_seconds())


def merged(log: Iterable[Change], ledger: Iterable[Change], log_since: datetime | None) -> list[Change]:
    """Both sources in order. What the log says of a beginning, or an end, stands before what the ledger says of it.

    The ledger has the second at which a machine was asked for; the log has the moment at which it came on. But it may
    lag by minutes, or not reach back far enough: what only the ledger has stays, unless it is a guess that the log
    would know better.
    """
    written = [each for each in ledger if not (each.guessed and log_since and each.at >= log_since)]
    rank = {Source.LOG: 0, Source.LEDGER: 1, Source.AZURE: 2}
    everything = sorted((*log, *written), key=lambda change: (change.at, rank[change.source]))
    return [
        change
        for place, change in enumerate(everything)
        if not _is_told_later(change, everything[place + 1 :], log_since)
    ]


def _is_told_later(change: Change, rest: Sequence[Change], log_since: datetime | None) -> bool:
    """Whether the log, which covers this moment, tells of the same a little later."""
    if change.source is not Source.LEDGER or log_since is None or change.at < log_since:
        return False
    begins, is_created = change.turn is Turn.ON, False
    for each in rest:
        if each.turn is Turn.BORN:
            is_created = True
            continue
        if (each.turn is Turn.ON) is not begins:
            # It was over before; or it was created and never came on, which the log knows.
            return begins and is_created and each.source is Source.LOG
        if each.source is Source.LOG and (change.turn is not Turn.GONE or each.turn is Turn.GONE):
            return True
    return False


def on_stretches(changes: Iterable[Change], now: datetime) -> list[Stretch]:
    """When it was on; the last one goes on until now where nothing ends it."""
    return _stretches(changes, {Turn.ON}, {Turn.OFF, Turn.GONE}, now)


def there_stretches(changes: Iterable[Change], now: datetime) -> list[Stretch]:
    """When it was there, on or off: its disk and its address are paid for."""
    return _stretches(changes, {Turn.BORN, Turn.ON}, {Turn.GONE}, now)


def _stretches(changes: Iterable[Change], begins: set[Turn], ends: set[Turn], now: datetime) -> list[Stretch]:
    found: list[Stretch] = []
    began: Change | None = None
    for change in changes:
        if began is None and change.turn in begins:
            began = change
        elif began is not None and change.turn in ends:
            found.append(_stretch(began, change))
            began = None
    if began is not None and began.at < now:
        found.append(_stretch(began, Change(now, Turn.OFF, began.source, began.guessed)))
    return found


def _stretch(began: Change, ended: Change) -> Stretch:
    sources = tuple(dict.fromkeys((began.source, ended.source)))
    if began.guessed or ended.guessed or Source.AZURE in sources:
        sure = Certainty.ESTIMATED
    else:
        sure = Certainty.EXACT if sources == (Source.LOG,) else Certainty.RECORDED
    return Stretch(began.at, max(began.at, ended.at), sources, sure)
