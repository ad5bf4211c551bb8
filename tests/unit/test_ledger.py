"""The ledger: what a workspace remembers of machines."""

import sqlite3
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpuinfra.diagnostics import Code, Problem
from gpuinfra.ledger.ledger import FILE, Ledger
from gpuinfra.models.entry import Entry, EntryKind, entry_from_json, entry_of
from gpuinfra.models.plan import Price
from gpuinfra.models.receipt import Off, Receipt
from gpuinfra.models.resource import Kind
from gpuinfra.provision import tags
from gpuinfra.provision.costing.beginning import beginning
from tests.unit.provision_help import GROUP, NAME, NOW, SMALL, SUBSCRIPTION, made, spec

ENTRY = Entry(
    what=EntryKind.ON,
    at=NOW,
    machine=NAME,
    group=GROUP,
    subscription=SUBSCRIPTION,
    region="eastus",
    size=SMALL,
    price_per_hour=0.5,
    disk_per_month=19.2,
    address_per_month=3.65,
    lease_until=NOW + timedelta(hours=4),
    tags={"project": "mnist"},
)
ENDED = Receipt(
    NAME,
    Off.DEALLOCATED,
    NOW + timedelta(hours=2, seconds=1),
    group=GROUP,
    billed_from=NOW,
    billed_to=NOW + timedelta(hours=2),
    price_per_hour=0.5,
    cause="gpuinfra down",
)


def test_what_was_noted_is_there_the_oldest_first(tmp_path: Path) -> None:
    ledger, later = Ledger(tmp_path / ".gpuinfra"), replace(ENTRY, at=NOW + timedelta(days=1))
    assert ledger.entries() == []
    ledger.add(later)
    ledger.add(ENTRY)
    assert Ledger(tmp_path / ".gpuinfra").entries() == [ENTRY, later]
    assert ledger.entries(until=NOW) == [ENTRY]


def test_an_entry_of_a_newer_program_is_read_as_far_as_it_is_understood() -> None:
    assert entry_from_json({**ENTRY.as_json(), "colour": "blue"}) == ENTRY
    assert entry_from_json({"what": "off", "at": "2026-11-16T08:00:00Z", "machine": NAME}) == Entry(
        EntryKind.OFF, NOW, NAME
    )


def test_a_file_that_is_no_ledger_is_told(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("not a database, but long enough to be taken for the head of one")
    with pytest.raises(Problem) as caught:
        Ledger(tmp_path).entries()
    assert caught.value.diagnostics[0].code is Code.FILE_UNREADABLE
    with pytest.raises(Problem):
        Ledger(tmp_path).add(ENTRY)


@pytest.mark.parametrize("statement", ["PRAGMA user_version = 2", "CREATE TABLE other (a)"])
def test_the_database_of_another_program_is_left_alone(tmp_path: Path, statement: str) -> None:
    database = sqlite3.connect(tmp_path / FILE)
    database.execute(statement)
    database.commit()
    database.close()
    before = (tmp_path / FILE).read_bytes()
    with pytest.raises(Problem):
        Ledger(tmp_path).add(ENTRY)
    assert (tmp_path / FILE).read_bytes() == before


def test_what_a_program_that_was_killed_has_half_written_is_taken_back(tmp_path: Path) -> None:
    killed, found = Ledger(tmp_path / "killed"), Ledger(tmp_path / "found")
    killed.add(ENTRY)
    found.path.parent.mkdir()
    database = sqlite3.connect(killed.path, isolation_level=None)
    database.execute("PRAGMA cache_size = 1")
    database.execute("BEGIN IMMEDIATE")
    for number in range(100):
        database.execute("INSERT INTO entries (at, machine, entry) VALUES (?, 'm', ?)", (number, "x" * 3000))
    # As the disk is at such a moment: the file with something in it that the journal takes back.
    for file in (killed.path, killed.path.with_name(f"{FILE}-journal")):
        (found.path.parent / file.name).write_bytes(file.read_bytes())
    database.close()
    assert found.entries() == [ENTRY]


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Problem) as caught:
        Ledger(tmp_path / "file" / "folder").add(ENTRY)
    assert caught.value.diagnostics[0].code is Code.FILE_UNWRITABLE


def test_a_receipt_is_an_end() -> None:
    entry = entry_of(ENDED, SUBSCRIPTION)
    assert entry is not None
    assert (entry.what, entry.at, entry.since) == (EntryKind.OFF, NOW + timedelta(hours=2), NOW)
    assert (entry.machine, entry.group, entry.cause) == (NAME, GROUP, "gpuinfra down")


def test_a_receipt_that_proves_nothing_is_no_end() -> None:
    assert entry_of(replace(ENDED, verified=None), SUBSCRIPTION) is None


def test_only_what_is_all_gone_is_gone() -> None:
    gone = replace(ENDED, verified=Off.ABSENT, deletes=True)
    left = replace(gone, left=("disk my-dsvm-disk",))
    found = [entry.what for entry in (entry_of(gone, SUBSCRIPTION), entry_of(left, SUBSCRIPTION)) if entry]
    assert found == [EntryKind.GONE, EntryKind.OFF]


def test_a_machine_that_was_switched_on_is_a_beginning() -> None:
    cloud = made(spec(tags={"project": "mnist"}))
    machine = cloud.parts[Kind.VM, GROUP, NAME]
    price = Price(0.5, 19.2, 3.65)
    entry = beginning(machine, price, at=None, subscription=SUBSCRIPTION, simulated=False)
    assert entry == replace(ENTRY, lease_until=tags.moment(machine.tags, tags.LEASE_UNTIL))
    later = NOW + timedelta(hours=1)
    changed = beginning(machine, price, at=later, subscription=SUBSCRIPTION, simulated=False)
    assert changed == replace(entry, at=later, what=EntryKind.CHANGED)


def test_the_price_of_an_old_list_is_not_written_down_as_what_it_cost() -> None:
    machine = made().parts[Kind.VM, GROUP, NAME]
    entry = beginning(machine, Price(0.5, list_of="2026-06"), at=None, subscription=SUBSCRIPTION, simulated=False)
    assert entry is not None
    assert entry.price_per_hour is None


def test_a_machine_of_which_nobody_knows_since_when_is_none() -> None:
    machine = made().parts[Kind.VM, GROUP, NAME]
    machine.body["tags"] = {tags.NAME: NAME}
    assert beginning(machine, Price(), at=None, subscription=SUBSCRIPTION, simulated=False) is None


def test_moments_are_kept_in_utc() -> None:
    assert ENTRY.as_json()["at"] == datetime(2026, 11, 16, 8, tzinfo=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
