"""The cost of a machine, from the activity log, the ledger and its current state."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpuinfra.models.cost import Amounts, Certainty, CostReport, Source
from gpuinfra.models.receipt import LedgerEntry, LedgerEntryKind
from gpuinfra.models.sizes import SIZES, Rate
from gpuinfra.provision import tags
from gpuinfra.provision.costing.activity import Event
from gpuinfra.provision.costing.evidence import Evidence
from gpuinfra.provision.costing.history import CostHistory, Present, cost_history
from gpuinfra.provision.costing.report import (
    RECORDED,
    SHIPPED,
    TODAY,
    UNKNOWN,
    Job,
    PriceBook,
    by_machine,
    by_run,
    by_tag,
)
from gpuinfra.provision.costing.timeline import Facts, Sample, StateChange, Turn
from gpuinfra.provision.market import Prices, shipped_prices

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
LONG_AGO, LATER = NOON - timedelta(days=400), NOON + timedelta(days=400)
SIZE, LARGER = "Standard_NC4as_T4_v3", "Standard_NC8as_T4_v3"
FACTS = Facts(SIZE, "eastus")
BOOK = PriceBook(Prices({(SIZE, "eastus"): Rate(1.0, 0.25), (LARGER, "eastus"): Rate(2.0)}), Prices())
ENTRY = LedgerEntry(LedgerEntryKind.ON, NOON, "m", "gpuinfra-m", size=SIZE, region="eastus", price_per_hour=1.0)


def at(hours: float) -> datetime:
    return NOON + timedelta(hours=hours)


def log(*words: str) -> list[StateChange]:
    """`on 1` is on an hour after noon."""
    found = (word.split() for word in words)
    return [StateChange(at(float(hours)), Turn(turn), Source.LOG) for turn, hours in found]


def on(hours: float, **fields: Any) -> LedgerEntry:
    return replace(ENTRY, at=at(hours), **fields)


def off(since: float | None, hours: float, **fields: Any) -> LedgerEntry:
    given = {"what": LedgerEntryKind.OFF, "since": None if since is None else at(since), **fields}
    return replace(ENTRY, at=at(hours), **given)


def make_history(
    *entries: LedgerEntry,
    events: list[StateChange] | None = None,
    covered: bool | None = None,
    present: Present | None = None,
    now: float = 24,
    samples: tuple[Sample, ...] = (),
) -> CostHistory:
    """Return a history; the log covers everything where there are events, unless specified otherwise."""
    is_covered = events is not None if covered is None else covered
    return cost_history(
        "gpuinfra-m/m",
        log=events or [],
        log_since=LONG_AGO if is_covered else None,
        entries=entries,
        present=present,
        now=at(now),
        pricing=BOOK,
        samples=samples,
    )


def stretches(found: CostHistory) -> list[tuple[float, float]]:
    return hours_of(found, is_certain=True)


def possible(found: CostHistory) -> list[tuple[float, float]]:
    """When the machine may have been on."""
    return hours_of(found, is_certain=False)


def hours_of(found: CostHistory, *, is_certain: bool) -> list[tuple[float, float]]:
    own = [each for each in found.within(LONG_AGO, LATER) if each.is_certain is is_certain]
    hours = [(each.start - NOON, each.end - NOON) for each in own]
    return [(start.total_seconds() / 3600, end.total_seconds() / 3600) for start, end in hours]


def certainty_of(found: CostHistory) -> Certainty:
    return found.compute_sure(LONG_AGO, LATER)


ON_NOW = Present(FACTS, is_on=True, on_since=NOON)
OFF_NOW = Present(FACTS)


# Time on


def test_log_alone_gives_exact_intervals() -> None:
    created = Sample(at(0), FACTS, Source.LOG, is_new=True)
    found = make_history(events=log("born 0", "on 1", "off 3", "on 5", "off 6", "gone 7"), samples=(created,))
    assert stretches(found) == [(1, 3), (5, 6)]
    assert (found.sources(LONG_AGO, LATER), certainty_of(found)) == ((Source.LOG,), Certainty.EXACT)


def test_disk_that_had_another_price_is_an_estimate() -> None:
    present = replace(OFF_NOW, disk_per_month=MONTH, address_per_month=MONTH, created=at(1))

    def sure(disks: Sequence[tuple[datetime, float]], *entries: LedgerEntry) -> Certainty:
        return cost_history(
            "gpuinfra-m/m",
            log=log("born 1", "on 1", "off 3"),
            log_since=LONG_AGO,
            entries=entries,
            present=present,
            now=at(24),
            pricing=BOOK,
            samples=(Sample(at(1), FACTS, Source.LOG, is_new=True),),
            disks=disks,
        ).sure(LONG_AGO, LATER)

    assert sure([(at(1), MONTH), (at(2), MONTH)]) is Certainty.EXACT
    assert sure([(at(1), MONTH / 2), (at(2), MONTH)]) is Certainty.ESTIMATED
    assert sure([], on(1, disk_per_month=MONTH / 2)) is Certainty.ESTIMATED
    assert sure([(at(0), MONTH / 2)]) is Certainty.EXACT, "an earlier machine of this name"


def test_log_without_sizes_is_an_estimate() -> None:
    found = make_history(events=log("born 0", "on 1", "off 3", "gone 7"))
    assert (found.amounts(LONG_AGO, LATER).unpriced, certainty_of(found)) == (2 * 3600, Certainty.ESTIMATED)


# The machine is on from hour 1 to 5. Samples of its size, its cost, and its certainty.
S = Source
SIZES_OVER_TIME: list[tuple[list[tuple[float, str | None, Source]], float, Certainty]] = [
    ([(0, SIZE, S.LOG), (3, LARGER, S.LOG)], 2 * 1.0 + 2 * 2.0, Certainty.EXACT),
    # One change is unknown, and the machine is as before: it was most likely another tag.
    ([(0, SIZE, S.LOG), (2, None, S.LOG), (4, SIZE, S.LOG)], 4 * 1.0, Certainty.EXACT),
    ([(0, SIZE, S.LOG), (2, None, S.LOG), (4, LARGER, S.LOG)], 3 * 1.0 + 1 * 2.0, Certainty.ESTIMATED),
    # Its size before the first change is unknown.
    ([(3, LARGER, S.LOG)], 4 * 2.0, Certainty.ESTIMATED),
    ([(0, SIZE, S.LOG)], 4 * 1.0, Certainty.EXACT),
]


@pytest.mark.parametrize(("given", "cost", "expected"), SIZES_OVER_TIME)
def test_each_interval_has_the_price_of_its_size(
    given: list[tuple[float, str | None, Source]], cost: float, expected: Certainty
) -> None:
    samples = tuple(Sample(at(hours), Facts(size, "eastus") if size else None, source) for hours, size, source in given)
    found = make_history(events=log("on 1", "off 5"), samples=samples, present=None, now=6)
    assert found.amounts(LONG_AGO, LATER).compute == pytest.approx(cost)
    assert certainty_of(found) is expected


def test_ledger_alone_gives_recorded_intervals() -> None:
    found = make_history(on(1), off(1, 3), on(5), off(5, 6, what=LedgerEntryKind.GONE))
    assert stretches(found) == [(1, 3), (5, 6)]
    assert (found.sources(LONG_AGO, LATER), certainty_of(found)) == ((Source.LEDGER,), Certainty.RECORDED)


def test_end_entry_implies_its_start() -> None:
    assert stretches(make_history(off(1, 3), present=OFF_NOW)) == [(1, 3)]


def test_log_and_ledger_count_nothing_twice() -> None:
    # Requested at 1, on a little later, and seen off a little after its end.
    events = log("born 1", "on 1.1", "off 3")
    found = make_history(on(1), off(1, 3.1), events=events, present=OFF_NOW)
    assert (stretches(found), certainty_of(found)) == ([(1.1, 3)], Certainty.EXACT)


def test_log_times_win_over_ledger_times() -> None:
    found = make_history(
        on(1), off(1, 2.9999, what=LedgerEntryKind.GONE), events=log("born 1", "on 1.1", "off 3", "gone 3")
    )
    assert (stretches(found), certainty_of(found)) == ([(1.1, 3)], Certainty.EXACT)
    assert [each.stretch.end for each in found.holdings] == [at(3)]


def test_ledger_fills_in_a_start_missing_in_the_log() -> None:
    found = make_history(on(1), off(1, 3.1), on(5), events=log("on 1.1", "off 3"), present=ON_NOW)
    assert stretches(found) == [(1.1, 3), (5, 24)]


def test_ledger_fills_in_an_end_missing_in_the_log() -> None:
    assert stretches(make_history(on(1), off(1, 3), events=log("on 1.1"), present=OFF_NOW)) == [(1.1, 3)]


def test_ledger_covers_the_time_before_the_log() -> None:
    found = cost_history(
        "gpuinfra-m/m",
        log=log("on 12", "off 13"),
        log_since=at(12),
        entries=[on(1), off(1, 2), on(5), off(5, 6)],
        present=OFF_NOW,
        now=at(24),
        pricing=BOOK,
    )
    assert stretches(found) == [(1, 2), (5, 6), (12, 13)]
    assert certainty_of(found) is Certainty.RECORDED


GRACE = 35 / 60
"""Azure's schedule stops a machine so long after its lease."""


@pytest.mark.parametrize(
    ("first", "lease", "seen", "certain", "uncertain"),
    [
        # Its agent stopped it at an unknown time, and the daily schedule fired on it after the log begins.
        ("off 13", 9, [], [], [(5, 9 + GRACE)]),
        ("off 13", None, [], [], [(5, 13)]),
        # The log has the end of a longer lease.
        ("off 13", 20, [], [], [(5, 13)]),
        # A run shows that the machine was on, and renewed its lease.
        ("off 13", 6, [8], [(5, 8)], [(8, 9 + GRACE)]),
        # It was started again, or it was on already.
        ("on 13", 9, [], [(13, 24)], [(5, 9 + GRACE)]),
        ("on 13", None, [], [(13, 24)], [(5, 13)]),
        ("born 13", 9, [], [], [(5, 9 + GRACE)]),
        ("gone 13", 9, [], [], [(5, 9 + GRACE)]),
    ],
)
def test_end_before_the_log_is_between_the_last_time_seen_on_and_the_end_of_the_lease(
    first: str,
    lease: float | None,
    seen: list[float],
    certain: list[tuple[float, float]],
    uncertain: list[tuple[float, float]],
) -> None:
    found = cost_history(
        "gpuinfra-m/m",
        log=log(first),
        log_since=at(12),
        entries=[on(5, lease_until=None if lease is None else at(lease))],
        present=Present(FACTS, is_on=first == "on 13"),
        now=at(24),
        pricing=BOOK,
        seen=[at(each) for each in seen],
    )
    assert (stretches(found), possible(found)) == (certain, uncertain)
    amounts = found.amounts(LONG_AGO, LATER)
    hours = [sum(end - start for start, end in each) for each in (certain, uncertain)]
    assert amounts.ranges["computeUsd"] == pytest.approx((hours[0], sum(hours)))
    assert found.sure(LONG_AGO, LATER) is Certainty.ESTIMATED


@pytest.mark.parametrize("end", [13 - 0.5 / 3600, 13.1])
def test_receipt_shows_that_the_machine_was_on_until_its_first_event_in_the_log(end: float) -> None:
    entries = [on(5, lease_until=at(6)), off(5, end)]
    found = cost_history(
        "gpuinfra-m/m", log=log("off 13"), log_since=at(12), entries=entries, present=None, now=at(24), pricing=BOOK
    )
    assert (stretches(found), possible(found)) == ([(5, 13)], [])


def test_first_event_of_an_unknown_machine_may_repeat_its_end() -> None:
    found = cost_history(
        "gpuinfra-m/m",
        log=log("off 13", "gone 20"),
        log_since=at(12),
        entries=[],
        present=None,
        now=at(24),
        pricing=BOOK,
    )
    assert (stretches(found), possible(found)) == ([], [(12, 13)])


def test_tags_show_the_last_time_on_before_the_log() -> None:
    present = replace(OFF_NOW, on_since=at(1), lease_until=at(3), changed=at(13))
    found = cost_history(
        "gpuinfra-m/m", log=log("off 13"), log_since=at(12), entries=[], present=present, now=at(24), pricing=BOOK
    )
    assert (stretches(found), possible(found)) == ([], [(1, 3 + GRACE)])
    found = make_history(present=present)
    assert (stretches(found), possible(found)) == ([], [(1, 3 + GRACE)])


def test_end_that_the_log_does_not_have_yet_is_minutes_ago() -> None:
    found = make_history(events=log("on 1"), present=replace(OFF_NOW, changed=at(23.9)))
    assert (stretches(found), possible(found)) == ([(1, 24 - 20 / 60)], [(24 - 20 / 60, 23.9)])


def test_running_machine_is_counted_until_now() -> None:
    assert stretches(make_history(events=log("on 1"), present=ON_NOW)) == [(1, 24)]
    assert certainty_of(make_history(events=log("on 1"), present=ON_NOW)) is Certainty.EXACT


def test_running_machine_is_counted_from_its_tag() -> None:
    found = make_history(present=replace(ON_NOW, on_since=at(20)))
    assert (stretches(found), certainty_of(found)) == ([(20, 24)], Certainty.ESTIMATED)


def test_unrecorded_start_is_azures_last_change() -> None:
    # The tag is from an earlier start.
    found = make_history(off(0, 2), present=replace(ON_NOW, changed=at(10)))
    assert (stretches(found), certainty_of(found)) == ([(0, 2), (10, 24)], Certainty.ESTIMATED)
    assert possible(found) == [(2, 10)]


def test_unrecorded_end_is_azures_last_change_at_the_latest() -> None:
    found = make_history(on(1, lease_until=at(5)), present=replace(OFF_NOW, changed=at(2)))
    assert (stretches(found), certainty_of(found)) == ([], Certainty.ESTIMATED)
    assert possible(found) == [(1, 2)]


def test_unrecorded_end_is_the_end_of_the_lease_at_the_latest() -> None:
    assert possible(make_history(on(1, lease_until=at(5)))) == [(1, 5 + GRACE)]
    assert possible(make_history(on(1))) == [(1, 24)]


@pytest.mark.parametrize("second", [on(10), off(10, 11), off(None, 11, what=LedgerEntryKind.GONE)])
def test_second_start_implies_an_end_before_it(second: LedgerEntry) -> None:
    found = make_history(on(1, lease_until=at(5)), second, present=OFF_NOW)
    assert possible(found)[0] == (1, 5 + GRACE)
    assert certainty_of(found) is Certainty.ESTIMATED


def test_log_overrides_the_end_of_a_renewed_lease() -> None:
    found = make_history(on(1, lease_until=at(5)), on(10), events=log("on 1.1", "off 8", "on 10"), present=ON_NOW)
    assert (stretches(found), certainty_of(found)) == ([(1.1, 8), (10, 24)], Certainty.EXACT)


def test_estimated_end_does_not_override_the_log() -> None:
    # The last minutes are not in the log yet.
    assert stretches(make_history(on(1, lease_until=at(5)), on(23.9), events=log("on 1.1"), present=ON_NOW)) == [
        (1.1, 24)
    ]


def test_log_does_not_move_a_start_before_its_range() -> None:
    found = cost_history(
        "gpuinfra-m/m",
        log=log("on 13"),
        log_since=at(12),
        entries=[on(1)],
        present=ON_NOW,
        now=at(24),
        pricing=BOOK,
    )
    assert (stretches(found), possible(found)) == ([(13, 24)], [(1, 13)])


def test_machine_deleted_by_the_log_and_on_now_is_on_again() -> None:
    found = make_history(events=log("on 1", "gone 5"), present=replace(ON_NOW, on_since=at(20)))
    assert stretches(found) == [(1, 5), (20, 24)]


LATE_END = [on(1, lease_until=at(2)), on(5), off(1, 5.1)]


def test_end_written_after_the_next_start_belongs_to_the_time_before() -> None:
    assert stretches(make_history(*LATE_END, present=ON_NOW)) == [(1, 5), (5, 24)]
    assert certainty_of(make_history(*LATE_END, present=ON_NOW)) is Certainty.RECORDED


def test_end_written_after_the_next_start_does_not_change_the_log() -> None:
    found = make_history(*LATE_END, events=log("on 1.1", "off 4", "on 5.2"), present=ON_NOW)
    assert (stretches(found), certainty_of(found)) == ([(1.1, 4), (5.2, 24)], Certainty.EXACT)


@pytest.mark.parametrize("delay", [1 / 3600, 0.1])
def test_end_with_the_start_time_of_the_log_belongs_to_the_requested_start(delay: float) -> None:
    """`down` writes the start as the log has it: seconds to minutes after `up` asked for it."""
    start = (at(1 + delay) - NOON).total_seconds() / 3600
    found = make_history(on(1, lease_until=at(2)), off(start, 4), present=OFF_NOW)
    assert (stretches(found), certainty_of(found)) == ([(start, 4)], Certainty.RECORDED)
    found = make_history(on(1, lease_until=at(2)), on(5), off(start, 5.1), present=ON_NOW)
    assert (stretches(found), certainty_of(found)) == ([(start, 5), (5, 24)], Certainty.RECORDED)


def test_end_of_a_start_hours_later_means_that_the_machine_was_off_in_between() -> None:
    found = make_history(on(1, lease_until=at(2)), off(3, 4), present=OFF_NOW)
    assert (stretches(found), certainty_of(found)) == ([(3, 4)], Certainty.ESTIMATED)
    assert possible(found) == [(1, 2 + GRACE)]


def test_second_start_within_minutes_means_that_the_machine_was_off_in_between() -> None:
    found = make_history(on(1), on(1.1), off(1.1, 4), present=OFF_NOW)
    assert (stretches(found), certainty_of(found)) == ([(1.1, 4)], Certainty.ESTIMATED)
    assert possible(found) == [(1, 1.1)]


def test_deletion_written_after_the_next_start_belongs_to_the_machine_before() -> None:
    entries = [*LATE_END[:2], replace(LATE_END[2], what=LedgerEntryKind.GONE)]
    found = make_history(*entries, present=ON_NOW)
    assert [(each.stretch.start, each.stretch.end) for each in found.holdings] == [(at(1), at(5)), (at(5), at(24))]


def test_future_times_are_not_counted() -> None:
    present = replace(ON_NOW, on_since=at(25), changed=at(25), created=at(25), disk_per_month=730.0)
    for events in ([], log("on 25"), log("on 1", "off 25"), log("born 25", "on 26")):
        found = make_history(events=events, present=present)
        assert all(each.end == at(24) for each in found.within(LONG_AGO, LATER))
        assert all(each.stretch.start <= each.stretch.end <= at(24) for each in found.holdings)
    assert stretches(make_history(events=log("on 1", "off 25"), present=present)) == [(1, 24)]


# Prices


def test_price_is_the_one_recorded_at_the_start() -> None:
    found = make_history(on(1, price_per_hour=3.0), off(1, 3, price_per_hour=9.0))
    assert found.amounts(LONG_AGO, LATER).compute == 6.0


def test_resized_machine_costs_more_from_the_resize_on() -> None:
    larger = on(2, what=LedgerEntryKind.CHANGED, size=LARGER, price_per_hour=2.0)
    found = make_history(on(1), larger, off(1, 4, size=LARGER, price_per_hour=2.0))
    assert stretches(found) == [(1, 2), (2, 4)]
    assert found.amounts(LONG_AGO, LATER).compute == 5.0
    assert found.facts.size == LARGER


def test_current_price_applies_without_a_ledger() -> None:
    spot = replace(OFF_NOW, facts=replace(FACTS, spot=True))
    assert make_history(events=log("on 1", "off 3"), present=spot).amounts(LONG_AGO, LATER).compute == 0.5


def test_time_without_a_price_is_reported_and_not_charged() -> None:
    amounts = make_history(events=log("on 1", "off 3")).amounts(LONG_AGO, LATER)
    assert (amounts.seconds, amounts.unpriced, amounts.compute) == (7200, 7200, 0)


def test_machine_recreated_elsewhere_has_its_own_price() -> None:
    now = Present(Facts(LARGER, "eastus"), is_on=True, on_since=at(10))
    found = make_history(
        on(1), off(1, 3, what=LedgerEntryKind.GONE), events=log("on 1", "off 3", "gone 3", "on 10"), present=now
    )
    assert found.amounts(LONG_AGO, LATER).compute == 2 + 28


def test_prices_have_their_sources() -> None:
    book = PriceBook(Prices({(SIZE, "eastus"): Rate(1.0)}), Prices({(LARGER, "eastus"): Rate(2.0)}))
    assert book(Facts(SIZE, "eastus", price=5.0)) == 5.0
    assert list(book.used) == [RECORDED]
    assert book(Facts(SIZE.upper(), "eastus")) == 1.0
    assert book(Facts(LARGER, "eastus")) == 2.0
    assert book(Facts(LARGER, "eastus", spot=True)) is None
    assert list(book.used) == [RECORDED, TODAY, SHIPPED, UNKNOWN]


def test_shipped_price_list_has_every_size() -> None:
    rates = shipped_prices().rates
    assert {size for size, _ in rates} == set(SIZES)
    assert shipped_prices().price("Standard_NC4as_T4_v3", "southcentralus") == 0.631
    assert all(rate.regular and 0.1 < rate.regular < 100 and rate.spot is None for rate in rates.values())


# Costs that do not depend on power

MONTH = 730.0


def test_disk_and_address_cost_while_they_exist() -> None:
    present = replace(OFF_NOW, disk_per_month=MONTH, address_per_month=2 * MONTH, created=at(0))
    amounts = make_history(events=log("born 0", "on 1", "off 3"), present=present, now=10).amounts(LONG_AGO, LATER)
    assert (round(amounts.disk, 9), round(amounts.address, 9)) == (10, 20)
    assert (amounts.always_on, amounts.saved, round(amounts.total, 9)) == (10, 8, 32)


def test_deleted_disk_and_address_cost_until_their_deletion() -> None:
    found = make_history(
        on(1, disk_per_month=MONTH, address_per_month=MONTH), off(1, 3), off(None, 7, what=LedgerEntryKind.GONE)
    )
    amounts = found.amounts(LONG_AGO, LATER)
    assert (round(amounts.disk, 9), round(amounts.address, 9), amounts.always_on) == (6, 6, 6)


@pytest.mark.parametrize("known", [["born 1", "gone 3"], ["born 1", "on 1", "off 2", "gone 3"]])
@pytest.mark.parametrize("seen", [1, 2.5, 3])
def test_disk_and_address_are_paid_for_once_when_azure_still_lists_a_deleted_machine(
    known: list[str], seen: float
) -> None:
    # Azure's log has the deletion; the list that was read at the same time still has the machine.
    listed = Present(FACTS, is_on=True, changed=at(seen), disk_per_month=MONTH, address_per_month=2 * MONTH)
    found = make_history(
        on(1, disk_per_month=MONTH, address_per_month=2 * MONTH), events=log(*known), present=listed, now=3.5
    )
    assert [(each.stretch.start, each.stretch.end) for each in found.holdings] == [(at(1), at(3))]
    amounts = found.amounts(LONG_AGO, LATER)
    assert (round(amounts.disk, 9), round(amounts.address, 9), amounts.always_on) == (2, 4, 2)


def test_machine_deleted_before_it_was_on_is_held_once() -> None:
    found = make_history(events=log("born 1", "gone 3"), present=Present(FACTS, is_on=True, changed=at(1)), now=3)
    assert [(each.stretch.start, each.stretch.end) for each in found.holdings] == [(at(1), at(3))]


def test_missing_machine_that_never_ran_costs_nothing() -> None:
    found = make_history(events=log("born 1"))
    assert found.amounts(LONG_AGO, LATER) == Amounts()
    assert [(each.stretch.start, each.stretch.end) for each in found.holdings] == [(at(1), at(1))]


def test_leftover_disk_keeps_costing() -> None:
    present = Present(disk_per_month=MONTH, created=at(0))
    amounts = make_history(events=log("born 0", "on 1", "off 2", "gone 2"), present=present, now=10).amounts(
        LONG_AGO, LATER
    )
    assert (round(amounts.disk, 9), amounts.address) == (10, 0)


@pytest.mark.parametrize("events", [["born 0", "on 1", "off 2", "gone 3"], ["born 0", "on 1", "gone 3"]])
@pytest.mark.parametrize("now", [10, 1000])
def test_disk_that_a_deleted_machine_left_saves_nothing(events: list[str], now: float) -> None:
    left = Present(disk_per_month=MONTH, created=at(0))
    amounts = make_history(events=log(*events), samples=(CREATED,), present=left, now=now).amounts(LONG_AGO, LATER)
    assert (amounts.always_on, amounts.there, round(amounts.disk, 9)) == (3, 3 * 3600, now)


def test_disk_whose_machine_was_deleted_at_an_unknown_time_saves_nothing() -> None:
    left = Present(disk_per_month=MONTH, created=at(0))
    found = make_history(on(0), off(0, 2), present=left, now=100).amounts(LONG_AGO, LATER)
    assert (found.off, found.saved, round(found.disk, 9)) == (0, 0, 100)
    alone = make_history(present=left, now=100).amounts(LONG_AGO, LATER)
    assert (alone.off, alone.saved, round(alone.disk, 9)) == (0, 0, 100)


def test_time_between_two_machines_on_one_disk_saves_nothing() -> None:
    present = replace(OFF_NOW, disk_per_month=MONTH, created=at(0))
    events = log("born 0", "on 0", "gone 2", "born 6", "on 6", "off 7")
    amounts = make_history(events=events, samples=(CREATED,), present=present, now=10).amounts(LONG_AGO, LATER)
    assert (amounts.always_on, amounts.there, amounts.off, round(amounts.disk, 9)) == (6, 6 * 3600, 3 * 3600, 10)


def test_span_counts_only_its_own_share() -> None:
    found = make_history(events=log("on 1", "off 3"), present=replace(OFF_NOW, disk_per_month=MONTH, created=at(0)))
    amounts = found.amounts(at(2), at(4))
    assert (amounts.seconds, amounts.compute, round(amounts.disk, 9)) == (3600, 1.0, 2)
    assert found.amounts(at(3), at(4)).seconds == 0


# What is said of it: `exact` only where compute, disk and address are known

CREATED = Sample(at(0), FACTS, Source.LOG, is_new=True)
LIFE = ["born 0", "on 1", "off 3"]
PAID = Present(FACTS, disk_per_month=MONTH, address_per_month=MONTH, created=at(0))


def said(found: CostHistory, since: datetime = LONG_AGO, until: datetime = LATER) -> tuple[Certainty, tuple[str, ...]]:
    return found.sure(since, until), found.amounts(since, until).missing


def test_cost_is_exact_when_compute_disk_and_address_are_known() -> None:
    assert said(make_history(events=log(*LIFE), samples=(CREATED,), present=PAID)) == (Certainty.EXACT, ())
    noted = on(0, disk_per_month=MONTH, address_per_month=MONTH)
    assert said(make_history(noted, events=log(*LIFE, "gone 5"), samples=(CREATED,))) == (Certainty.EXACT, ())


@pytest.mark.parametrize(
    ("present", "missing"),
    [
        (replace(PAID, disk_per_month=None), ("disk",)),
        (replace(PAID, address_per_month=None), ("address",)),
        (replace(PAID, disk_per_month=None, address_per_month=None), ("disk", "address")),
        # Of a machine that is gone only the log knows.
        (None, ("disk", "address")),
    ],
)
def test_cost_is_not_exact_without_disk_or_address(present: Present | None, missing: tuple[str, ...]) -> None:
    events = log(*LIFE, *(() if present else ("gone 5",)))
    found = make_history(events=events, samples=(CREATED,), present=present)
    assert certainty_of(found) is Certainty.EXACT
    assert said(found) == (Certainty.ESTIMATED, missing)


def test_machine_that_was_off_all_the_time_is_not_exact_without_its_disk() -> None:
    found = make_history(events=log(*LIFE), samples=(CREATED,), present=replace(PAID, disk_per_month=None))
    assert said(found, at(5), at(7)) == (Certainty.ESTIMATED, ("disk",))
    (row,) = by_machine([found], at(5), at(7))
    assert (row.amounts.seconds, row.sources) == (0, (Source.AZURE,))
    alone = replace(PAID, disk_per_month=None, address_per_month=None)
    (row,) = by_machine([make_history(events=[], present=alone)], at(5), at(7))
    assert row.amounts.missing == ("disk", "address")


def test_address_of_a_deleted_machine_whose_disk_is_left_is_not_known() -> None:
    left = Present(disk_per_month=MONTH, created=at(0))
    found = make_history(events=log(*LIFE, "gone 5"), samples=(CREATED,), present=left)
    assert said(found) == (Certainty.ESTIMATED, ("address",))
    # After the deletion there is only the disk.
    assert said(found, at(5), at(7)) == (Certainty.EXACT, ())


def test_disk_before_the_first_known_start_is_not_known() -> None:
    noted = on(1, disk_per_month=MONTH, address_per_month=MONTH)
    found = make_history(noted, events=log("on 1", "off 3", "gone 5"))
    assert (certainty_of(found), said(found)[0]) == (Certainty.EXACT, Certainty.ESTIMATED)


def test_run_is_as_sure_as_its_compute_and_the_rest_as_its_disk() -> None:
    found = make_history(events=log(*LIFE), samples=(CREATED,), present=replace(PAID, disk_per_month=None))
    run, idle = by_run([found], [job("a", 1, 2)], LONG_AGO, LATER)
    assert (run.sure, run.amounts.missing) == (Certainty.RECORDED, ())
    assert (idle.sure, idle.amounts.missing) == (Certainty.ESTIMATED, ("disk",))


# By machine, run and tag


def job(name: str, started: float, ended: float, machine: str = "m") -> Job:
    return Job(name, machine, at(started), at(ended))


def test_run_is_charged_for_its_job_and_the_rest_is_idle() -> None:
    present = replace(OFF_NOW, disk_per_month=MONTH, created=at(0))
    found = [make_history(on(0), off(0, 10), present=present, now=10)]
    rows = by_run(found, [job("a", 1, 3), job("b", 9, 12), job("c", 1, 3, "other"), job("d", 11, 12)], LONG_AGO, LATER)
    assert [(row.label, row.amounts.compute) for row in rows] == [("a", 2), ("b", 1), ("m (idle)", 7)]
    assert [round(row.amounts.disk, 9) for row in rows] == [0, 0, 10]


def test_savings_are_equal_by_run_and_by_machine() -> None:
    found = [make_history(on(0), off(0, 6), present=replace(OFF_NOW, created=at(0)), now=10)]
    (whole,) = by_machine(found, LONG_AGO, LATER)
    rows = by_run(found, [job("a", 1, 3)], LONG_AGO, LATER)
    assert [(row.label, row.amounts.saved) for row in rows] == [("a", 0), ("m (idle)", whole.amounts.saved)]
    assert sum(row.amounts.always_on for row in rows) == whole.amounts.always_on == 10


def test_concurrent_runs_share_the_cost() -> None:
    rows = by_run([make_history(on(0), off(0, 10))], [job("a", 0, 4), job("b", 2, 4)], LONG_AGO, LATER)
    assert [(row.label, row.amounts.compute) for row in rows] == [("a", 3), ("b", 1), ("m (idle)", 6)]


def test_cost_by_tag_has_one_row_per_value() -> None:
    found = [
        replace(make_history(on(0), off(0, 1)), tags={"Project": "mnist"}),
        replace(make_history(on(0), off(0, 2)), tags={"project": "mnist"}),
        make_history(on(0), off(0, 4)),
    ]
    rows = by_tag(found, "project", LONG_AGO, LATER)
    assert [(row.label, row.amounts.compute) for row in rows] == [("-", 4), ("mnist", 3)]


def test_machines_without_cost_in_the_span_have_no_row() -> None:
    ended = make_history(on(0), off(0, 1, what=LedgerEntryKind.GONE))
    assert by_machine([ended], at(2), at(3)) == []
    assert [row.label for row in by_machine([ended], at(0), at(3))] == ["m"]


def test_disk_of_a_machine_that_was_deleted_at_an_unknown_time_may_have_cost_more() -> None:
    found = make_history(on(0, disk_per_month=MONTH, address_per_month=0.0), off(0, 2), now=10)
    amounts = found.amounts(LONG_AGO, LATER)
    assert amounts.ranges["diskUsd"] == pytest.approx((2, 10))
    assert amounts.ranges["totalUsd"] == pytest.approx((4, 12))
    assert (found.sure(LONG_AGO, LATER), amounts.off) == (Certainty.ESTIMATED, 0)


def test_total_is_the_sum_of_the_rows() -> None:
    rows = by_machine([make_history(on(0), off(0, 1)), make_history(on(0), off(0, 2))], LONG_AGO, LATER)
    report = CostReport(LONG_AGO, LATER, "machine", tuple(rows))
    assert (report.total.compute, report.total.seconds) == (3.0, 3 * 3600)
    assert report.as_json()["total"]["computeUsd"] == 3.0
    assert CostReport(LONG_AGO, LATER, "machine", ()).total == Amounts()


# Ownership

GROUP = "/subscriptions/s/resourceGroups/{}/providers/Microsoft.{}"


def event(machine: str, group: str, hours: float, verb: str) -> Event:
    return Event(at(hours), GROUP.format(group, f"Compute/virtualMachines/{machine}").casefold(), verb, "Started", verb)


def machine(name: str, group: str, power: str = "running") -> dict[str, Any]:
    return {
        "id": GROUP.format(group, f"Compute/virtualMachines/{name}"),
        "name": name,
        "location": "eastus",
        "tags": {tags.NAME: name, tags.ON_SINCE: "2026-11-16T12:00:00Z", "project": "mnist"},
        "properties": {
            "hardwareProfile": {"vmSize": SIZE},
            "instanceView": {
                "statuses": [
                    {"code": "ProvisioningState/succeeded", "time": "2026-11-16T14:00:00.1234567+00:00"},
                    {"code": f"PowerState/{power}"},
                ]
            },
        },
    }


def test_foreign_machines_are_not_counted() -> None:
    events = [event("theirs", "team", 0, "start"), event("mine", "GPUINFRA-mine", 0, "start")]
    found = Evidence(at(1), events, LONG_AGO).histories(BOOK)
    assert [each.key for each in found] == ["gpuinfra-mine/mine"]


@pytest.mark.parametrize(("disk", "found"), [("mine-disk", ["team/mine"]), ("theirs-disk", [])])
def test_deleted_machine_in_a_shared_group_is_ours_if_the_log_shows_how_it_was_made(
    disk: str, found: list[str]
) -> None:
    body = machine("mine", "team")
    nic = {"id": GROUP.format("team", "Network/networkInterfaces/mine-nic"), "properties": {"deleteOption": "Delete"}}
    system = {"computerName": "mine", "linuxConfiguration": {"disablePasswordAuthentication": True}}
    storage = {"osDisk": {"name": disk, "diskSizeGB": 150, "managedDisk": {"storageAccountType": "StandardSSD_LRS"}}}
    body["properties"] |= {
        "networkProfile": {"networkInterfaces": [nic]},
        "osProfile": system,
        "storageProfile": storage,
    }
    write = replace(event("mine", "team", 0, "write"), status="Accepted", made=True, response=body)
    done = replace(event("mine", "team", 0, "write"), status="Succeeded")
    histories = Evidence(at(4), [write, done, event("mine", "team", 1, "delete")], LONG_AGO).histories(BOOK)
    assert [each.key for each in histories] == found
    for each in histories:
        assert each.tags == {"project": "mnist"}
        assert each.holdings[0].disk_per_month == 19.2
        assert each.amounts(LONG_AGO, LATER).missing == ("compute", "address")


def test_log_shows_that_a_disk_was_resized() -> None:
    kind = "StandardSSD_LRS"
    body = machine("m", "gpuinfra-m")
    body["properties"]["storageProfile"] = {"osDisk": {"diskSizeGB": 150, "managedDisk": {"storageAccountType": kind}}}
    events = [replace(event("m", "gpuinfra-m", 0, "write"), made=True, response=body)]
    for size, sure in ((150, Certainty.EXACT), (1000, Certainty.ESTIMATED)):
        disk = {
            "id": GROUP.format("gpuinfra-m", "Compute/disks/m-disk"),
            "name": "m-disk",
            "tags": {tags.NAME: "m"},
            "sku": {"name": kind},
            "properties": {"diskSizeGB": size, "timeCreated": "2026-11-16T12:00:00Z"},
        }
        evidence = Evidence(at(4), events, LONG_AGO, machines=[machine("m", "gpuinfra-m")], disks=[disk])
        (found,) = evidence.histories(BOOK)
        assert {each.stretch.sure for each in found.holdings} == {sure}


def test_machine_is_matched_in_all_sources_without_case() -> None:
    evidence = Evidence(
        now=at(10),
        events=[event("M", "Team", 1, "start")],
        log_since=LONG_AGO,
        entries=[replace(ENTRY, machine="m", group="TEAM")],
        machines=[machine("m", "team")],
        disks=[
            {
                "id": GROUP.format("team", "Compute/disks/m-disk"),
                "sku": {"name": "StandardSSD_LRS"},
                "tags": {tags.NAME: "M"},
                "properties": {"diskSizeGB": 150, "timeCreated": "2026-11-16T12:00:00.1234567+00:00"},
            }
        ],
        addresses=[{"id": GROUP.format("team", "Network/publicIPAddresses/x"), "tags": {tags.NAME: "m"}}],
    )
    assert evidence.sizes() == (SIZE,)
    (found,) = evidence.histories(BOOK)
    assert stretches(found) == [(1, 10)]
    assert (found.is_on, found.tags) == (True, {"project": "mnist"})
    holding = found.holdings[-1]
    assert (holding.disk_per_month, holding.address_per_month) == (19.2, 3.65)
    assert holding.stretch.start.replace(microsecond=0) == NOON


def test_end_of_a_deallocated_machine_is_azures_last_change() -> None:
    (found,) = Evidence(at(10), entries=[ENTRY], machines=[machine("m", "gpuinfra-m", "deallocated")]).histories(BOOK)
    (piece,) = found.pieces
    assert piece.stretch.end.replace(microsecond=0) == at(2)


@pytest.mark.parametrize("group", ["team", "gpuinfra-m"])
def test_entry_without_a_group_belongs_to_the_only_machine_of_that_name(group: str) -> None:
    entries = [replace(ENTRY, group=group), off(None, 5, group=None, what=LedgerEntryKind.GONE)]
    assert [each.key for each in Evidence(at(10), entries=entries).histories(BOOK)] == [f"{group}/m"]
