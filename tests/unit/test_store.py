"""The ledger: what a workspace records about machines."""

import sqlite3
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from gpuinfra.diagnostics import Code, Problem
from gpuinfra.models.plan import Kind, Price
from gpuinfra.models.receipt import LedgerEntry, LedgerEntryKind, OffProof, Receipt, entry_from_json, entry_from_receipt
from gpuinfra.provision import tags
from gpuinfra.provision.costing.report import power_on_entry
from gpuinfra.store import FILE, Ledger
from tests.unit.provision_help import GROUP, NAME, NOW, SMALL, SUBSCRIPTION, made, spec

ENTRY = LedgerEntry(
    what=LedgerEntryKind.ON,
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
    OffProof.DEALLOCATED,
    NOW + timedelta(hours=2, seconds=1),
    group=GROUP,
    billed_from=NOW,
    billed_to=NOW + timedelta(hours=2),
    price_per_hour=0.5,
    cause="gpuinfra down",
)


def test_entries_are_sorted_by_time(tmp_path: Path) -> None:
    ledger, later = Ledger(tmp_path / ".gpuinfra"), replace(ENTRY, at=NOW + timedelta(days=1))
    assert ledger.entries() == []
    ledger.add(later)
    ledger.add(ENTRY)
    assert Ledger(tmp_path / ".gpuinfra").entries() == [ENTRY, later]


def test_entry_of_a_newer_program_is_read() -> None:
    assert entry_from_json({**ENTRY.as_json(), "colour": "blue"}) == ENTRY
    assert entry_from_json({"what": "off", "at": "2026-11-16T08:00:00Z", "machine": NAME}) == LedgerEntry(
        LedgerEntryKind.OFF, NOW, NAME
    )


def test_file_that_is_not_a_ledger_is_reported(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("not a database, but long enough to be taken for the head of one")
    with pytest.raises(Problem) as caught:
        Ledger(tmp_path).entries()
    assert caught.value.diagnostics[0].code is Code.FILE_UNREADABLE
    with pytest.raises(Problem):
        Ledger(tmp_path).add(ENTRY)


@pytest.mark.parametrize("statement", ["PRAGMA user_version = 2", "CREATE TABLE other (a)"])
def test_database_of_another_program_is_not_changed(tmp_path: Path, statement: str) -> None:
    database = sqlite3.connect(tmp_path / FILE)
    database.execute(statement)
    database.commit()
    database.close()
    before = (tmp_path / FILE).read_bytes()
    with pytest.raises(Problem):
        Ledger(tmp_path).add(ENTRY)
    assert (tmp_path / FILE).read_bytes() == before


def test_incomplete_write_of_a_killed_program_is_rolled_back(tmp_path: Path) -> None:
    killed, found = Ledger(tmp_path / "killed"), Ledger(tmp_path / "found")
    killed.add(ENTRY)
    found.path.parent.mkdir()
    database = sqlite3.connect(killed.path, isolation_level=None)
    database.execute("PRAGMA cache_size = 1")
    database.execute("BEGIN IMMEDIATE")
    for number in range(100):
        database.execute("INSERT INTO entries (at, machine, entry) VALUES (?, 'm', ?)", (number, "x" * 3000))
    # The state of the disk at that moment: a file with changes that the journal rolls back.
    for file in (killed.path, killed.path.with_name(f"{FILE}-journal")):
        (found.path.parent / file.name).write_bytes(file.read_bytes())
    database.close()
    assert found.entries() == [ENTRY]


def test_folder_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Problem) as caught:
        Ledger(tmp_path / "file" / "folder").add(ENTRY)
    assert caught.value.diagnostics[0].code is Code.FILE_UNWRITABLE


def test_receipt_becomes_an_end_entry() -> None:
    entry = entry_from_receipt(ENDED, SUBSCRIPTION)
    assert entry is not None
    assert (entry.what, entry.at, entry.since) == (LedgerEntryKind.OFF, NOW + timedelta(hours=2), NOW)
    assert (entry.machine, entry.group, entry.cause) == (NAME, GROUP, "gpuinfra down")


def test_unproven_receipt_is_not_an_end() -> None:
    assert entry_from_receipt(replace(ENDED, verified=None), SUBSCRIPTION) is None


def test_only_a_complete_deletion_is_recorded_as_deleted() -> None:
    gone = replace(ENDED, verified=OffProof.ABSENT, deletes=True)
    left = replace(gone, left=("disk my-dsvm-disk",))
    found = [
        entry.what
        for entry in (entry_from_receipt(gone, SUBSCRIPTION), entry_from_receipt(left, SUBSCRIPTION))
        if entry
    ]
    assert found == [LedgerEntryKind.GONE, LedgerEntryKind.OFF]


def test_started_machine_becomes_a_start_entry() -> None:
    cloud = made(spec(tags={"project": "mnist"}))
    machine = cloud.parts[Kind.VM, GROUP, NAME]
    price = Price(0.5, 19.2, 3.65)
    entry = power_on_entry(machine, price, at=None, subscription=SUBSCRIPTION, simulated=False)
    assert entry == replace(ENTRY, lease_until=tags.moment(machine.tags, tags.LEASE_UNTIL))
    later = NOW + timedelta(hours=1)
    changed = power_on_entry(machine, price, at=later, subscription=SUBSCRIPTION, simulated=False)
    assert changed == replace(entry, at=later, what=LedgerEntryKind.CHANGED)


def test_price_of_an_old_list_is_not_recorded() -> None:
    machine = made().parts[Kind.VM, GROUP, NAME]
    entry = power_on_entry(machine, Price(0.5, list_of="2026-06"), at=None, subscription=SUBSCRIPTION, simulated=False)
    assert entry is not None
    assert entry.price_per_hour is None


def test_machine_without_a_start_time_has_no_entry() -> None:
    machine = made().parts[Kind.VM, GROUP, NAME]
    machine.body["tags"] = {tags.NAME: NAME}
    assert power_on_entry(machine, Price(), at=None, subscription=SUBSCRIPTION, simulated=False) is None


def test_times_are_kept_in_utc() -> None:
    chicago = timezone(timedelta(hours=-6))
    entry = replace(ENTRY, at=datetime(2026, 11, 16, 2, tzinfo=chicago))
    assert entry.as_json()["at"] == "2026-11-16T08:00:00Z"
