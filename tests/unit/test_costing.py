"""What a machine has cost, from a log, a ledger and what is there now."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpuinfra.models.cost import Amounts, Certainty, CostReport, Source
from gpuinfra.models.entry import Entry, EntryKind
from gpuinfra.models.offer import Rate
from gpuinfra.models.sizes import SIZES
from gpuinfra.provision import tags
from gpuinfra.provision.costing.activity import Event
from gpuinfra.provision.costing.evidence import Evidence
from gpuinfra.provision.costing.facts import Facts, Sample
from gpuinfra.provision.costing.history import History, Present, history
from gpuinfra.provision.costing.pricing import RECORDED, SHIPPED, TODAY, UNKNOWN, PriceBook
from gpuinfra.provision.costing.report import Job, by_machine, by_run, by_tag
from gpuinfra.provision.costing.timeline import Change, Turn
from gpuinfra.provision.market.port import Prices
from gpuinfra.provision.market.price_list import shipped_prices

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
LONG_AGO, LATER = NOON - timedelta(days=400), NOON + timedelta(days=400)
SIZE, LARGER = "Standard_NC4as_T4_v3", "Standard_NC8as_T4_v3"
FACTS = Facts(SIZE, "eastus")
BOOK = PriceBook(Prices({(SIZE, "eastus"): Rate(1.0, 0.25), (LARGER, "eastus"): Rate(2.0)}), Prices())
ENTRY = Entry(EntryKind.ON, NOON, "m", "gpuinfra-m", size=SIZE, region="eastus", price_per_hour=1.0)


def at(hours: float) -> datetime:
    return NOON + timedelta(hours=hours)


def log(*words: str) -> list[Change]:
    """`on 1` is on an hour after noon."""
    found = (word.split() for word in words)
    return [Change(at(float(hours)), Turn(turn), Source.LOG) for turn, hours in found]


def on(hours: float, **fields: Any) -> Entry:
    return replace(ENTRY, at=at(hours), **fields)


def off(since: float | None, hours: float, **fields: Any) -> Entry:
    given = {"what": EntryKind.OFF, "since": None if since is None else at(since), **fields}
    return replace(ENTRY, at=at(hours), **given)


def told(
    *entries: Entry,
    events: list[Change] | None = None,
    covered: bool | None = None,
    present: Present | None = None,
    now: float = 24,
    samples: tuple[Sample, ...] = (),
) -> History:
    """A history; the log covers everything where there are events, unless it is said otherwise."""
    is_covered = events is not None if covered is None else covered
    return history(
        "gpuinfra-m/m",
        log=events or [],
        log_since=LONG_AGO if is_covered else None,
        entries=entries,
        present=present,
        now=at(now),
        pricing=BOOK,
        samples=samples,
    )


def stretches(found: History) -> list[tuple[float, float]]:
    hours = [(each.start - NOON, each.end - NOON) for each in found.within(LONG_AGO, LATER)]
    return [(start.total_seconds() / 3600, end.total_seconds() / 3600) for start, end in hours]


def sure(found: History) -> Certainty:
    return found.sure(LONG_AGO, LATER)


ON_NOW = Present(FACTS, is_on=True, on_since=NOON)
OFF_NOW = Present(FACTS)


# When it was on


def test_the_log_alone() -> None:
    created = Sample(at(0), FACTS, Source.LOG, is_new=True)
    found = told(events=log("born 0", "on 1", "off 3", "on 5", "off 6", "gone 7"), samples=(created,))
    assert stretches(found) == [(1, 3), (5, 6)]
    assert (found.sources(LONG_AGO, LATER), sure(found)) == ((Source.LOG,), Certainty.EXACT)


def test_a_log_without_sizes_is_not_exact() -> None:
    found = told(events=log("born 0", "on 1", "off 3", "gone 7"))
    assert (found.amounts(LONG_AGO, LATER).unpriced, sure(found)) == (2 * 3600, Certainty.ESTIMATED)


# The machine is on from hour 1 to 5. Samples of its size, what it cost, and how sure that is.
S = Source
SIZES_OVER_TIME: list[tuple[list[tuple[float, str | None, Source]], float, Certainty]] = [
    ([(0, SIZE, S.LOG), (3, LARGER, S.LOG)], 2 * 1.0 + 2 * 2.0, Certainty.EXACT),
    # Of one change nothing is known, and the machine is as before: it was most likely another tag.
    ([(0, SIZE, S.LOG), (2, None, S.LOG), (4, SIZE, S.LOG)], 4 * 1.0, Certainty.EXACT),
    ([(0, SIZE, S.LOG), (2, None, S.LOG), (4, LARGER, S.LOG)], 3 * 1.0 + 1 * 2.0, Certainty.ESTIMATED),
    # Nothing says what it was before the first change.
    ([(3, LARGER, S.LOG)], 4 * 2.0, Certainty.ESTIMATED),
    ([(0, SIZE, S.LOG)], 4 * 1.0, Certainty.EXACT),
]


@pytest.mark.parametrize(("given", "cost", "expected"), SIZES_OVER_TIME)
def test_each_interval_has_the_price_of_its_size(
    given: list[tuple[float, str | None, Source]], cost: float, expected: Certainty
) -> None:
    samples = tuple(Sample(at(hours), Facts(size, "eastus") if size else None, source) for hours, size, source in given)
    found = told(events=log("on 1", "off 5"), samples=samples, present=None, now=6)
    assert found.amounts(LONG_AGO, LATER).compute == pytest.approx(cost)
    assert sure(found) is expected


def test_the_ledger_alone() -> None:
    found = told(on(1), off(1, 3), on(5), off(5, 6, what=EntryKind.GONE))
    assert stretches(found) == [(1, 3), (5, 6)]
    assert (found.sources(LONG_AGO, LATER), sure(found)) == ((Source.LEDGER,), Certainty.RECORDED)


def test_an_end_tells_of_its_beginning() -> None:
    assert stretches(told(off(1, 3), present=OFF_NOW)) == [(1, 3)]


def test_both_together_count_nothing_twice() -> None:
    # It was asked for at 1, came on a little later, and was seen to be off a little after it was.
    events = log("born 1", "on 1.1", "off 3")
    found = told(on(1), off(1, 3.1), events=events, present=OFF_NOW)
    assert (stretches(found), sure(found)) == ([(1.1, 3)], Certainty.EXACT)


def test_a_second_of_the_ledger_is_not_the_moment_of_the_log() -> None:
    found = told(on(1), off(1, 2.9999, what=EntryKind.GONE), events=log("born 1", "on 1.1", "off 3", "gone 3"))
    assert (stretches(found), sure(found)) == ([(1.1, 3)], Certainty.EXACT)
    assert [each.stretch.end for each in found.holdings] == [at(3)]


def test_what_the_log_does_not_have_yet_is_by_the_ledger() -> None:
    found = told(on(1), off(1, 3.1), on(5), events=log("on 1.1", "off 3"), present=ON_NOW)
    assert stretches(found) == [(1.1, 3), (5, 24)]


def test_an_end_that_the_log_does_not_have_yet_is_by_the_ledger() -> None:
    assert stretches(told(on(1), off(1, 3), events=log("on 1.1"), present=OFF_NOW)) == [(1.1, 3)]


def test_what_was_before_the_log_is_by_the_ledger() -> None:
    found = history(
        "gpuinfra-m/m",
        log=log("off 13"),
        log_since=at(12),
        entries=[on(1), off(1, 2), on(5)],
        present=OFF_NOW,
        now=at(24),
        pricing=BOOK,
    )
    assert stretches(found) == [(1, 2), (5, 13)]
    assert sure(found) is Certainty.RECORDED


def test_a_machine_that_is_on_is_counted_until_now() -> None:
    assert stretches(told(events=log("on 1"), present=ON_NOW)) == [(1, 24)]
    assert sure(told(events=log("on 1"), present=ON_NOW)) is Certainty.EXACT


def test_a_machine_that_is_on_by_its_tags_alone() -> None:
    found = told(present=replace(ON_NOW, on_since=at(20)))
    assert (stretches(found), sure(found)) == ([(20, 24)], Certainty.ESTIMATED)


def test_a_start_that_nobody_wrote_down_is_by_what_is_there_now() -> None:
    # The tag is that of an earlier start.
    found = told(off(0, 2), present=replace(ON_NOW, changed=at(10)))
    assert (stretches(found), sure(found)) == ([(0, 2), (10, 24)], Certainty.ESTIMATED)


def test_an_end_that_nobody_saw_is_azures_last_change() -> None:
    found = told(on(1, lease_until=at(5)), present=replace(OFF_NOW, changed=at(2)))
    assert (stretches(found), sure(found)) == ([(1, 2)], Certainty.ESTIMATED)


def test_an_end_that_nobody_saw_is_the_end_of_the_lease() -> None:
    assert stretches(told(on(1, lease_until=at(5)))) == [(1, 5)]
    assert stretches(told(on(1))) == [(1, 24)]


@pytest.mark.parametrize("second", [on(10), off(10, 11), off(None, 11, what=EntryKind.GONE)])
def test_what_begins_anew_was_off_before(second: Entry) -> None:
    found = told(on(1, lease_until=at(5)), second, present=OFF_NOW)
    assert stretches(found)[0] == (1, 5)
    assert sure(found) is Certainty.ESTIMATED


def test_a_lease_that_was_renewed_is_known_to_the_log() -> None:
    found = told(on(1, lease_until=at(5)), on(10), events=log("on 1.1", "off 8", "on 10"), present=ON_NOW)
    assert (stretches(found), sure(found)) == ([(1.1, 8), (10, 24)], Certainty.EXACT)


def test_a_guess_of_the_ledger_ends_nothing_that_the_log_has_on() -> None:
    # The last minutes are not in the log yet.
    assert stretches(told(on(1, lease_until=at(5)), on(23.9), events=log("on 1.1"), present=ON_NOW)) == [(1.1, 24)]


def test_a_beginning_before_the_log_is_not_told_by_it() -> None:
    found = history(
        "gpuinfra-m/m",
        log=log("on 13"),
        log_since=at(12),
        entries=[on(1)],
        present=ON_NOW,
        now=at(24),
        pricing=BOOK,
    )
    assert stretches(found) == [(1, 24)]


def test_machine_deleted_by_the_log_and_on_now_is_on_again() -> None:
    found = told(events=log("on 1", "gone 5"), present=replace(ON_NOW, on_since=at(20)))
    assert stretches(found) == [(1, 5), (20, 24)]


LATE_END = [on(1, lease_until=at(2)), on(5), off(1, 5.1)]


def test_end_written_after_the_next_start_belongs_to_the_time_before() -> None:
    assert stretches(told(*LATE_END, present=ON_NOW)) == [(1, 5), (5, 24)]
    assert sure(told(*LATE_END, present=ON_NOW)) is Certainty.RECORDED


def test_end_written_after_the_next_start_changes_nothing_that_the_log_has() -> None:
    found = told(*LATE_END, events=log("on 1.1", "off 4", "on 5.2"), present=ON_NOW)
    assert (stretches(found), sure(found)) == ([(1.1, 4), (5.2, 24)], Certainty.EXACT)


@pytest.mark.parametrize("delay", [1 / 3600, 0.1])
def test_end_with_the_start_time_of_the_log_belongs_to_the_start_that_was_asked_for(delay: float) -> None:
    """`down` writes the start as the log has it: seconds to minutes after `up` asked for it."""
    start = (at(1 + delay) - NOON).total_seconds() / 3600
    found = told(on(1, lease_until=at(2)), off(start, 4), present=OFF_NOW)
    assert (stretches(found), sure(found)) == ([(start, 4)], Certainty.RECORDED)
    found = told(on(1, lease_until=at(2)), on(5), off(start, 5.1), present=ON_NOW)
    assert (stretches(found), sure(found)) == ([(start, 5), (5, 24)], Certainty.RECORDED)


def test_end_of_a_start_hours_later_means_that_the_machine_was_off_in_between() -> None:
    found = told(on(1, lease_until=at(2)), off(3, 4), present=OFF_NOW)
    assert (stretches(found), sure(found)) == ([(1, 2), (3, 4)], Certainty.ESTIMATED)


def test_second_start_within_minutes_means_that_the_machine_was_off_in_between() -> None:
    found = told(on(1), on(1.1), off(1.1, 4), present=OFF_NOW)
    assert (stretches(found), sure(found)) == ([(1, 1.1), (1.1, 4)], Certainty.ESTIMATED)


def test_deletion_written_after_the_next_start_belongs_to_the_machine_before() -> None:
    entries = [*LATE_END[:2], replace(LATE_END[2], what=EntryKind.GONE)]
    found = told(*entries, present=ON_NOW)
    assert [(each.stretch.start, each.stretch.end) for each in found.holdings] == [(at(1), at(5)), (at(5), at(24))]


def test_nothing_is_counted_that_azures_clock_says_is_to_come() -> None:
    present = replace(ON_NOW, on_since=at(25), changed=at(25), created=at(25), disk_per_month=730.0)
    for events in ([], log("on 25"), log("on 1", "off 25"), log("born 25", "on 26")):
        found = told(events=events, present=present)
        assert all(each.end == at(24) for each in found.within(LONG_AGO, LATER))
        assert all(each.stretch.start <= each.stretch.end <= at(24) for each in found.holdings)
    assert stretches(told(events=log("on 1", "off 25"), present=present)) == [(1, 24)]


# At which price


def test_the_price_is_that_of_the_time() -> None:
    found = told(on(1, price_per_hour=3.0), off(1, 3, price_per_hour=9.0))
    assert found.amounts(LONG_AGO, LATER).compute == 6.0


def test_a_machine_that_became_larger_costs_more_from_then_on() -> None:
    larger = on(2, what=EntryKind.CHANGED, size=LARGER, price_per_hour=2.0)
    found = told(on(1), larger, off(1, 4, size=LARGER, price_per_hour=2.0))
    assert stretches(found) == [(1, 2), (2, 4)]
    assert found.amounts(LONG_AGO, LATER).compute == 5.0
    assert found.facts.size == LARGER


def test_without_a_ledger_the_price_is_that_of_what_is_there() -> None:
    spot = replace(OFF_NOW, facts=replace(FACTS, spot=True))
    assert told(events=log("on 1", "off 3"), present=spot).amounts(LONG_AGO, LATER).compute == 0.5


def test_time_without_a_price_is_told_and_not_counted() -> None:
    amounts = told(events=log("on 1", "off 3")).amounts(LONG_AGO, LATER)
    assert (amounts.seconds, amounts.unpriced, amounts.compute) == (7200, 7200, 0)


def test_a_machine_that_was_made_anew_elsewhere_has_its_own_price() -> None:
    now = Present(Facts(LARGER, "eastus"), is_on=True, on_since=at(10))
    found = told(on(1), off(1, 3, what=EntryKind.GONE), events=log("on 1", "off 3", "gone 3", "on 10"), present=now)
    assert found.amounts(LONG_AGO, LATER).compute == 2 + 28


def test_where_prices_are_from() -> None:
    book = PriceBook(Prices({(SIZE, "eastus"): Rate(1.0)}), Prices({(LARGER, "eastus"): Rate(2.0)}))
    assert book(Facts(SIZE, "eastus", price=5.0)) == 5.0
    assert list(book.used) == [RECORDED]
    assert book(Facts(SIZE.upper(), "eastus")) == 1.0
    assert book(Facts(LARGER, "eastus")) == 2.0
    assert book(Facts(LARGER, "eastus", spot=True)) is None
    assert list(book.used) == [RECORDED, TODAY, SHIPPED, UNKNOWN]


def test_the_list_that_is_shipped_has_every_size() -> None:
    rates = shipped_prices().rates
    assert {size for size, _ in rates} == set(SIZES)
    assert shipped_prices().price("Standard_NC4as_T4_v3", "southcentralus") == 0.631
    assert all(rate.regular and 0.1 < rate.regular < 100 and rate.spot is None for rate in rates.values())


# What is paid for whether it is on or off

MONTH = 730.0


def test_disk_and_address_cost_for_as_long_as_they_are_there() -> None:
    present = replace(OFF_NOW, disk_per_month=MONTH, address_per_month=2 * MONTH, created=at(0))
    amounts = told(events=log("born 0", "on 1", "off 3"), present=present, now=10).amounts(LONG_AGO, LATER)
    assert (round(amounts.disk, 9), round(amounts.address, 9)) == (10, 20)
    assert (amounts.always_on, amounts.saved, round(amounts.total, 9)) == (10, 8, 32)


def test_what_is_gone_costs_until_it_went_by_what_was_written_down() -> None:
    found = told(on(1, disk_per_month=MONTH, address_per_month=MONTH), off(1, 3), off(None, 7, what=EntryKind.GONE))
    amounts = found.amounts(LONG_AGO, LATER)
    assert (round(amounts.disk, 9), round(amounts.address, 9), amounts.always_on) == (6, 6, 6)


@pytest.mark.parametrize("known", [["born 1", "gone 3"], ["born 1", "on 1", "off 2", "gone 3"]])
@pytest.mark.parametrize("seen", [1, 2.5, 3])
def test_disk_and_address_are_paid_for_once_when_azure_still_lists_a_deleted_machine(
    known: list[str], seen: float
) -> None:
    # Azure's log has its deletion; the list that was read beside it still has the machine, as it was before.
    listed = Present(FACTS, is_on=True, changed=at(seen), disk_per_month=MONTH, address_per_month=2 * MONTH)
    found = told(on(1, disk_per_month=MONTH, address_per_month=2 * MONTH), events=log(*known), present=listed, now=3.5)
    assert [(each.stretch.start, each.stretch.end) for each in found.holdings] == [(at(1), at(3))]
    amounts = found.amounts(LONG_AGO, LATER)
    assert (round(amounts.disk, 9), round(amounts.address, 9), amounts.always_on) == (2, 4, 2)


def test_machine_that_was_deleted_before_it_came_on_is_held_once() -> None:
    found = told(events=log("born 1", "gone 3"), present=Present(FACTS, is_on=True, changed=at(1)), now=3)
    assert [(each.stretch.start, each.stretch.end) for each in found.holdings] == [(at(1), at(3))]


def test_machine_that_was_made_and_is_not_there_costs_nothing_on() -> None:
    found = told(events=log("born 1"))
    assert found.amounts(LONG_AGO, LATER) == Amounts()
    assert [(each.stretch.start, each.stretch.end) for each in found.holdings] == [(at(1), at(1))]


def test_a_disk_that_is_left_alone_costs_on() -> None:
    present = Present(disk_per_month=MONTH, created=at(0))
    amounts = told(events=log("born 0", "on 1", "off 2", "gone 2"), present=present, now=10).amounts(LONG_AGO, LATER)
    assert (round(amounts.disk, 9), amounts.address) == (10, 0)


def test_a_span_has_only_its_own_share() -> None:
    found = told(events=log("on 1", "off 3"), present=replace(OFF_NOW, disk_per_month=MONTH, created=at(0)))
    amounts = found.amounts(at(2), at(4))
    assert (amounts.seconds, amounts.compute, round(amounts.disk, 9)) == (3600, 1.0, 2)
    assert found.amounts(at(3), at(4)).seconds == 0


# By machine, run and tag


def job(name: str, started: float, ended: float, machine: str = "m") -> Job:
    return Job(name, machine, at(started), at(ended))


def test_a_run_has_the_time_of_its_job_and_the_rest_is_idle() -> None:
    present = replace(OFF_NOW, disk_per_month=MONTH, created=at(0))
    found = [told(on(0), off(0, 10), present=present, now=10)]
    rows = by_run(found, [job("a", 1, 3), job("b", 9, 12), job("c", 1, 3, "other"), job("d", 11, 12)], LONG_AGO, LATER)
    assert [(row.label, row.amounts.compute) for row in rows] == [("a", 2), ("b", 1), ("m (idle)", 7)]
    assert [round(row.amounts.disk, 9) for row in rows] == [0, 0, 10]


def test_what_is_saved_is_the_same_by_run_and_by_machine() -> None:
    found = [told(on(0), off(0, 6), present=replace(OFF_NOW, created=at(0)), now=10)]
    (whole,) = by_machine(found, LONG_AGO, LATER)
    rows = by_run(found, [job("a", 1, 3)], LONG_AGO, LATER)
    assert [(row.label, row.amounts.saved) for row in rows] == [("a", 0), ("m (idle)", whole.amounts.saved)]
    assert sum(row.amounts.always_on for row in rows) == whole.amounts.always_on == 10


def test_runs_at_the_same_time_share_it() -> None:
    rows = by_run([told(on(0), off(0, 10))], [job("a", 0, 4), job("b", 2, 4)], LONG_AGO, LATER)
    assert [(row.label, row.amounts.compute) for row in rows] == [("a", 3), ("b", 1), ("m (idle)", 6)]


def test_a_line_for_each_value_of_a_tag() -> None:
    found = [
        replace(told(on(0), off(0, 1)), tags={"Project": "mnist"}),
        replace(told(on(0), off(0, 2)), tags={"project": "mnist"}),
        told(on(0), off(0, 4)),
    ]
    rows = by_tag(found, "project", LONG_AGO, LATER)
    assert [(row.label, row.amounts.compute) for row in rows] == [("-", 4), ("mnist", 3)]


def test_machines_that_cost_nothing_in_the_span_have_no_line() -> None:
    assert by_machine([told(on(0), off(0, 1))], at(2), at(3)) == []
    assert [row.label for row in by_machine([told(on(0), off(0, 1))], at(0), at(3))] == ["m"]


def test_the_sum_is_that_of_the_lines() -> None:
    rows = by_machine([told(on(0), off(0, 1)), told(on(0), off(0, 2))], LONG_AGO, LATER)
    report = CostReport(LONG_AGO, LATER, "machine", tuple(rows))
    assert (report.total.compute, report.total.seconds) == (3.0, 3 * 3600)
    assert report.as_json()["total"]["computeUsd"] == 3.0
    assert CostReport(LONG_AGO, LATER, "machine", ()).total == Amounts()


# Whose machines they are

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


def test_machines_of_others_are_none_of_ours() -> None:
    events = [event("theirs", "team", 0, "start"), event("mine", "GPUINFRA-mine", 0, "start")]
    found = Evidence(at(1), events, LONG_AGO).histories(BOOK)
    assert [each.key for each in found] == ["gpuinfra-mine/mine"]


def test_a_machine_is_the_same_in_all_sources_whatever_its_case() -> None:
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


def test_the_end_of_a_machine_that_is_off_is_azures_last_change() -> None:
    (found,) = Evidence(at(10), entries=[ENTRY], machines=[machine("m", "gpuinfra-m", "deallocated")]).histories(BOOK)
    (piece,) = found.pieces
    assert piece.stretch.end.replace(microsecond=0) == at(2)


@pytest.mark.parametrize("group", ["team", "gpuinfra-m"])
def test_an_entry_without_a_group_is_of_the_only_machine_of_that_name(group: str) -> None:
    entries = [replace(ENTRY, group=group), off(None, 5, group=None, what=EntryKind.GONE)]
    assert [each.key for each in Evidence(at(10), entries=entries).histories(BOOK)] == [f"{group}/m"]
