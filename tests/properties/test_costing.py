"""Costs of machines: no second is counted twice, and parts add up to the whole."""

from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpuinfra.models.cost import Amounts, Source
from gpuinfra.models.receipt import LedgerEntry, LedgerEntryKind
from gpuinfra.models.sizes import Rate
from gpuinfra.provision.costing.history import CostHistory, Present, cost_history
from gpuinfra.provision.costing.report import Job, PriceBook, by_run
from gpuinfra.provision.costing.timeline import Facts, StateChange, Turn
from gpuinfra.provision.market import Prices

START = datetime(2026, 11, 1, tzinfo=UTC)
MINUTES = 3000
NOW = START + timedelta(minutes=MINUTES)
BOOK = PriceBook(Prices({("small", "eastus"): Rate(1.0), ("large", "eastus"): Rate(3.0)}), Prices())


def at(minute: float) -> datetime:
    return START + timedelta(minutes=minute)


minutes = st.integers(0, MINUTES)
# Azure's clocks may be ahead of the local one.
moments = st.integers(0, MINUTES + 10).map(at)


@st.composite
def entries(draw: st.DrawFn) -> list[LedgerEntry]:
    """Any ledger, including inconsistent ones."""
    found = [
        LedgerEntry(
            what=draw(st.sampled_from(LedgerEntryKind)),
            at=draw(moments),
            machine="m",
            group="g",
            region="eastus",
            size=draw(st.sampled_from(["small", "large", None])),
            price_per_hour=draw(st.sampled_from([None, 2.0])),
            disk_per_month=draw(st.sampled_from([None, 19.2])),
            address_per_month=3.65,
            since=draw(st.none() | moments),
            lease_until=draw(st.none() | moments),
        )
        for _ in range(draw(st.integers(0, 6)))
    ]
    return sorted(found, key=lambda entry: entry.at)


@st.composite
def histories(draw: st.DrawFn) -> CostHistory:
    """Any machine with partial information."""
    turns = st.builds(StateChange, moments, st.sampled_from(Turn), st.just(Source.LOG))
    facts = st.builds(Facts, st.sampled_from(["small", "large"]), st.just("eastus"))
    present = st.builds(
        Present,
        facts=st.none() | facts,
        is_on=st.booleans(),
        on_since=st.none() | moments,
        lease_until=st.none() | moments,
        changed=st.none() | moments,
        disk_per_month=st.none() | st.just(19.2),
        created=st.none() | moments,
    )
    return cost_history(
        "g/m",
        log=sorted(draw(st.lists(turns, max_size=8)), key=lambda change: change.at),
        log_since=draw(st.none() | moments),
        entries=draw(entries()),
        present=draw(st.none() | present),
        now=NOW,
        pricing=BOOK,
        seen=draw(st.lists(moments, max_size=3)),
    )


def same(one: Amounts, other: Amounts) -> bool:
    return all(abs(getattr(one, each.name) - getattr(other, each.name)) < 1e-6 for each in fields(Amounts))


@settings(max_examples=80, deadline=None)
@given(histories(), st.lists(st.integers(-100, MINUTES + 100), max_size=6))
def test_amounts_of_parts_add_up_to_the_whole(found: CostHistory, cuts: list[int]) -> None:
    bounds = [at(minute) for minute in sorted({-100, MINUTES + 100, *cuts})]
    parts = [found.amounts(one, other) for one, other in pairwise(bounds)]
    assert same(sum(parts, Amounts()), found.amounts(bounds[0], bounds[-1]))


@settings(max_examples=80, deadline=None)
@given(histories())
def test_time_is_counted_once_and_not_in_the_future(found: CostHistory) -> None:
    for stretches in ([each.stretch for each in found.pieces], [each.stretch for each in found.holdings]):
        assert all(one.end <= other.start for one, other in pairwise(stretches))
        assert all(each.start <= each.end <= NOW for each in stretches)
    amounts = found.amounts(at(0), NOW)
    assert min(getattr(amounts, each.name) for each in fields(Amounts)) >= 0
    assert all(low <= high for low, high in amounts.ranges.values())


@settings(max_examples=60, deadline=None)
@given(
    histories(),
    st.lists(st.tuples(minutes, minutes).map(sorted), max_size=5),
    st.tuples(minutes, minutes).map(sorted),
)
def test_runs_and_idle_time_add_up_to_the_machine(found: CostHistory, spans: list[list[int]], span: list[int]) -> None:
    jobs = [Job(str(number), "m", at(one), at(other)) for number, (one, other) in enumerate(spans)]
    since, until = at(span[0]), at(span[1])
    rows = by_run([found], jobs, since, until)
    whole = found.amounts(since, until)
    if rows:
        assert same(sum((row.amounts for row in rows), Amounts()), whole)
    else:
        assert whole.seconds == whole.total == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=2, max_size=20), st.lists(st.floats(0, 0.9), min_size=20, max_size=20))
# The second start is requested before the first end is recorded.
@example([1, 1, 1], [0.0, 0.75, 0.875])
def test_ledger_next_to_a_log_changes_nothing(gaps: list[int], late: list[float]) -> None:
    """The log has each start and each stop; the ledger has each start a little earlier, and each end a little off."""
    moments, minute = list[float](), 10.0
    for gap in gaps:
        minute += gap
        moments.append(minute)
    log, ledger = list[StateChange](), list[LedgerEntry]()
    for place, moment in enumerate(moments):
        is_on, rest = place % 2 == 0, late[place]
        log.append(StateChange(at(moment), Turn.ON if is_on else Turn.OFF, Source.LOG))
        asked = at(moment - rest) if is_on else ledger[-1].at
        entry = LedgerEntry(LedgerEntryKind.ON, asked, "m", "g", size="small", region="eastus")
        ledger.append(
            entry if is_on else replace(entry, what=LedgerEntryKind.OFF, since=asked, at=at(moment + rest - 0.5))
        )
    present = Present(Facts("small", "eastus"), is_on=len(moments) % 2 == 1)
    both, alone = (
        cost_history("g/m", log=log, log_since=START, entries=known, present=present, now=NOW, pricing=BOOK)
        for known in (sorted(ledger, key=lambda entry: entry.at), [])
    )
    assert [each.stretch for each in both.pieces] == [each.stretch for each in alone.pieces]
