"""Determine when a machine was on, from all sources, without counting any second twice."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from gpuinfra.models.cost import Certainty, Source


class Turn(StrEnum):
    """A change of a machine's state."""

    BORN = "born"
    ON = "on"
    OFF = "off"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class StateChange:
    """A change of state at a certain time, with its source."""

    at: datetime
    turn: Turn
    source: Source
    guessed: bool = False
    who: str = ""
    """Who caused the change, if known."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A period in which a machine was on, or existed."""

    start: datetime
    end: datetime
    sources: tuple[Source, ...] = ()
    sure: Certainty = Certainty.EXACT

    def seconds(self, since: datetime, until: datetime) -> float:
        """Return how many seconds of the period are in a span."""
        return max(0.0, (min(self.end, until) - max(self.start, since)).total_seconds())


def merged(log: Iterable[StateChange], ledger: Iterable[StateChange], log_since: datetime | None) -> list[StateChange]:
    """Return the changes of both sources in order. If both report the same beginning or end, the log's time counts.

    The ledger has the time of the request, and the log the time when the machine was actually on. But the log may lag
    by minutes or not reach back far enough. So a change that is only in the ledger stays, unless it is a guess about a
    time that the log covers.
    """
    written = [each for each in ledger if not (each.guessed and log_since and each.at >= log_since)]
    rank = {Source.LOG: 0, Source.LEDGER: 1, Source.AZURE: 2}
    everything = sorted((*log, *written), key=lambda change: (change.at, rank[change.source]))
    return [
        change
        for place, change in enumerate(everything)
        if not _is_reported_later(change, everything[place + 1 :], log_since)
    ]


def _is_reported_later(change: StateChange, rest: Sequence[StateChange], log_since: datetime | None) -> bool:
    """Return whether the log covers this time and reports the same change a little later."""
    if change.source is not Source.LEDGER or log_since is None or change.at < log_since:
        return False
    begins, is_created = change.turn is Turn.ON, False
    for each in rest:
        if each.turn is Turn.BORN:
            is_created = True
            continue
        if (each.turn is Turn.ON) is not begins:
            # Either the opposite change came first, or the log shows that the machine was created and never on.
            return begins and is_created and each.source is Source.LOG
        if each.source is Source.LOG and (change.turn is not Turn.GONE or each.turn is Turn.GONE):
            return True
    return False


def on_stretches(changes: Iterable[StateChange], now: datetime) -> list[Stretch]:
    """Return when the machine was on. If nothing ended the last period, it lasts until now."""
    return _stretches(changes, {Turn.ON}, {Turn.OFF, Turn.GONE}, now)


def there_stretches(changes: Iterable[StateChange], now: datetime) -> list[Stretch]:
    """Return when the machine existed, on or off, because its disk and public IP cost money.

    If the log lacks the creation, the machine existed before its first start, for an unknown time.
    """
    known = (replace(each, guessed=each.guessed or _starts_by_log(each)) for each in changes)
    return _stretches(known, {Turn.BORN, Turn.ON}, {Turn.GONE}, now)


def _starts_by_log(change: StateChange) -> bool:
    return change.turn is Turn.ON and change.source is Source.LOG


def _stretches(changes: Iterable[StateChange], begins: set[Turn], ends: set[Turn], now: datetime) -> list[Stretch]:
    found: list[Stretch] = []
    began: StateChange | None = None
    for change in changes:
        if began is None and change.turn in begins:
            began = change
        elif began is not None and change.turn in ends:
            found.append(_stretch(began, change))
            began = None
    if began is not None and began.at < now:
        found.append(_stretch(began, StateChange(now, Turn.OFF, began.source, began.guessed)))
    return found


def _stretch(began: StateChange, ended: StateChange) -> Stretch:
    sources = tuple(dict.fromkeys((began.source, ended.source)))
    if began.guessed or ended.guessed or Source.AZURE in sources:
        sure = Certainty.ESTIMATED
    else:
        sure = Certainty.EXACT if sources == (Source.LOG,) else Certainty.RECORDED
    return Stretch(began.at, max(began.at, ended.at), sources, sure)
