"""Determine what a machine was at each time: size, region, spot or not, and the price per hour."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from gpuinfra.models.cost import Certainty, Source

_END = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Facts:
    """The properties of a machine that decide its price."""

    size: str | None = None
    region: str | None = None
    spot: bool = False
    price: float | None = None
    """US dollars per hour, if recorded at the time."""

    def is_same_kind(self, other: Facts) -> bool:
        """Return whether both are billed by the same entry in Azure's price list."""
        return _kind(self) == _kind(other)


Pricing = Callable[[Facts], float | None]
"""A function that returns US dollars per hour, as recorded or from a price list."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The properties of a machine from a certain time on, with the source."""

    at: datetime
    facts: Facts | None
    """None for a change with unknown content."""
    source: Source
    is_new: bool = False
    """Whether the machine was created then, so that any earlier machine was another one."""


class FactsTimeline:
    """A machine's properties over time, each with its certainty.

    Azure's log shows every change and the properties after it. The ledger has the size that gpuinfra requested and the
    price at that time. Where the log does not reach, or lags, the ledger applies.
    """

    def __init__(
        self,
        log: Iterable[Sample],
        ledger: Sequence[Sample],
        present: Sample | None,
        log_since: datetime | None,
    ) -> None:
        self._log_since = log_since
        logged = sorted(log, key=lambda each: each.at)
        self._recorded = [each for each in ledger if each.facts and each.facts.price is not None]
        kept = [each for each in ledger if not _is_logged(each, logged)]
        samples = sorted([*logged, *kept], key=lambda each: each.at)
        self._known = [each for each in samples if each.facts]
        self._unknown = [each.at for each in samples if each.facts is None]
        if present and present.facts:
            self._known.append(self._from_present(present))

    def _from_present(self, present: Sample) -> Sample:
        """Return the present properties from when they began; if unchanged, they only confirm the last sample."""
        last = self._known[-1] if self._known else None
        if last is None or last.facts is None or present.facts is None:
            return present
        return replace(present, at=_END if last.facts.is_same_kind(present.facts) else max(present.at, last.at))

    def latest(self) -> Facts:
        """Return the last known properties."""
        return next((each.facts for each in reversed(self._known) if each.facts), Facts())

    def at(self, moment: datetime) -> tuple[Facts, Certainty]:
        """Return the properties at a time, with the recorded price if there is one, and their certainty."""
        facts, sure = self._at(moment)
        return self._with_price(facts, moment), sure

    def cuts(self, start: datetime, end: datetime) -> list[datetime]:
        """Return the times within a span at which the properties, the price or the certainty changed."""
        known = [*(each.at for each in (*self._known, *self._recorded)), *self._unknown]
        moments = sorted({each for each in known if start < each < end})
        found = [self.at(moment) for moment in (start, *moments)]
        return [moment for moment, before, after in zip(moments, found, found[1:], strict=False) if before != after]

    def _at(self, moment: datetime) -> tuple[Facts, Certainty]:
        before = [each for each in self._known if each.at <= moment]
        after = next((each for each in self._known if each.at > moment), None)
        if not before:
            return self._earlier(moment, after)
        last = before[-1]
        facts = last.facts or Facts()
        if last.source is Source.AZURE:
            # Without another sample, the properties did not change since the beginning of the log.
            is_proven = self._log_since is not None and len(before) == 1 and not self._unknown
            return facts, Certainty.EXACT if is_proven else Certainty.ESTIMATED
        is_same_after = after is not None and after.facts is not None and facts.is_same_kind(after.facts)
        if any(last.at < each <= moment for each in self._unknown):
            return facts, Certainty.EXACT if is_same_after else Certainty.ESTIMATED
        if last.source is Source.LEDGER:
            is_covered = self._log_since is not None and last.at >= self._log_since
            is_contradicted = any(each.source is Source.LOG for each in before)
            is_exact = (is_covered and not is_contradicted) or is_same_after
            return facts, Certainty.EXACT if is_exact else Certainty.RECORDED
        return facts, Certainty.EXACT

    def _earlier(self, moment: datetime, first: Sample | None) -> tuple[Facts, Certainty]:
        """Return the properties before the first sample: the same, unless that sample is a change."""
        if first is None or first.facts is None or first.is_new:
            return Facts(), Certainty.ESTIMATED
        is_changed = first.source is Source.LOG or any(moment < each <= first.at for each in self._unknown)
        return first.facts, Certainty.ESTIMATED if is_changed or self._log_since is None else Certainty.EXACT

    def _with_price(self, facts: Facts, moment: datetime) -> Facts:
        same = [each for each in self._recorded if each.facts and each.facts.is_same_kind(facts)]
        # The last one before this time, or the first one after it.
        found = next((each for each in reversed(same) if each.at <= moment), next(iter(same), None))
        return replace(facts, price=found.facts.price) if found and found.facts else facts


def _kind(facts: Facts) -> tuple[str, str, bool]:
    return (facts.size or "").casefold(), (facts.region or "").casefold(), facts.spot


def _is_logged(sample: Sample, log: Sequence[Sample]) -> bool:
    """Return whether the log confirms a ledger sample. The ledger has the request's time, the log the change's time."""
    if sample.facts is None:
        return True
    before = [each.facts for each in log if each.at <= sample.at]
    after = [each.facts for each in log if each.at > sample.at]
    candidates = [*before[-1:], *after]
    return any(each is not None and each.is_same_kind(sample.facts) for each in candidates)
