"""What a machine was, and when: size, region, spot or not, and the price of an hour."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from gpuinfra.models.cost import Certainty, Source

_END = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a machine is, as far as its price goes."""

    size: str | None = None
    region: str | None = None
    spot: bool = False
    price: float | None = None
    """US dollars an hour, where it was written down at the time."""

    def is_same_kind(self, other: Facts) -> bool:
        """Whether both are billed by the same line of Azure's price list."""
        return _kind(self) == _kind(other)


Pricing = Callable[[Facts], float | None]
"""Returns US dollars an hour: as written down, or by a list."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What a machine was from a moment on, and who says so."""

    at: datetime
    facts: Facts | None
    """None for a change of unknown content."""
    source: Source
    is_new: bool = False
    """The machine was created then: a machine before it was another one."""


class FactsTimeline:
    """What a machine was at each moment, and how sure that is.

    Azure's log shows every change and what the machine was after it. The ledger knows the size that this program asked
    for, and the price at that time; where the log does not reach, or lags, the ledger decides.
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
        """The present facts, from the moment at which they began. Where they are not news, they only confirm."""
        last = self._known[-1] if self._known else None
        if last is None or last.facts is None or present.facts is None:
            return present
        return replace(present, at=_END if last.facts.is_same_kind(present.facts) else max(present.at, last.at))

    def latest(self) -> Facts:
        """What it was last, as far as is known."""
        return self._known[-1].facts or Facts() if self._known else Facts()

    def at(self, moment: datetime) -> tuple[Facts, Certainty]:
        """What it was at a moment, with the price that was written down for it, and how sure that is."""
        facts, sure = self._at(moment)
        return self._with_price(facts, moment), sure

    def cuts(self, start: datetime, end: datetime) -> list[datetime]:
        """The moments within a span at which the machine, its price, or what is known of it became another."""
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
            # Without any other sample, nothing has changed it for as far back as the log goes.
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
        """Before the first sample: the same, unless that sample is of a change."""
        if first is None or first.facts is None or first.is_new:
            return Facts(), Certainty.ESTIMATED
        is_changed = first.source is Source.LOG or any(moment < each <= first.at for each in self._unknown)
        return first.facts, Certainty.ESTIMATED if is_changed or self._log_since is None else Certainty.EXACT

    def _with_price(self, facts: Facts, moment: datetime) -> Facts:
        same = [each for each in self._recorded if each.facts and each.facts.is_same_kind(facts)]
        before = [each for each in same if each.at <= moment]
        found = before[-1] if before else same[0] if same else None
        return replace(facts, price=found.facts.price) if found and found.facts else facts


def _kind(facts: Facts) -> tuple[str, str, bool]:
    return (facts.size or "").casefold(), (facts.region or "").casefold(), facts.spot


def _is_logged(sample: Sample, log: Sequence[Sample]) -> bool:
    """Whether the log says the same: a ledger has the moment of the request, the log that of the change."""
    if sample.facts is None:
        return True
    before = [each.facts for each in log if each.at <= sample.at]
    after = [each.facts for each in log if each.at > sample.at]
    candidates = [*before[-1:], *after]
    return any(each is not None and each.is_same_kind(sample.facts) for each in candidates)
