"""What commands record in the ledger, and that nothing depends on it."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from gpuinfra.app.cost import CostQuery, _moment, _wanted
from gpuinfra.app.ledger_recording import accounted, note, note_end
from gpuinfra.app.machine_costs import record_cost
from gpuinfra.app.settings import Settings
from gpuinfra.diagnostics import Exit, Problem
from gpuinfra.models.receipt import LedgerEntry, LedgerEntryKind, OffProof, Receipt
from gpuinfra.models.run import Run, RunState
from gpuinfra.provision.costing.activity import Event
from gpuinfra.store import FILE, History, Ledger
from tests.runs import make_run
from tests.unit.provision_help import NAME, NOW, SUBSCRIPTION, RecordedProgress

ENDED = Receipt(
    NAME, OffProof.DEALLOCATED, NOW, billed_from=NOW - timedelta(hours=1), billed_to=NOW, price_per_hour=0.5, group="g"
)


def settings(workspace: Path) -> Settings:
    return Settings(json=False, yes=False, verbose=False, cloud="azure", workspace=workspace, correlation_id="")


def entries(workspace: Path) -> list[LedgerEntry]:
    return Ledger(workspace / ".gpuinfra").entries()


@pytest.fixture
def local_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """A function that sets the local time zone."""

    def set_zone(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield set_zone
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("zone", ["UTC", "America/Chicago", "Pacific/Auckland"])
def test_end_is_recorded_with_overnight_savings(tmp_path: Path, zone: str, local_zone: Callable[[str], None]) -> None:
    local_zone(zone)
    heard = RecordedProgress()
    receipt = note_end(settings(tmp_path), ENDED, SUBSCRIPTION, heard)
    (entry,) = entries(tmp_path)
    assert (entry.what, entry.since, entry.at) == (LedgerEntryKind.OFF, ENDED.billed_from, ENDED.billed_to)
    assert receipt.left_on_until is not None
    morning = receipt.left_on_until.astimezone(ZoneInfo(zone))
    assert (morning.hour, morning.minute) == (8, 0)
    assert timedelta(0) < morning - NOW <= timedelta(hours=48)
    assert heard.lines == []
    assert (tmp_path / ".gpuinfra" / ".gitignore").exists()


@pytest.mark.parametrize("receipt", [replace(ENDED, verified=None), replace(ENDED, billed_from=None, billed_to=None)])
def test_repeated_end_is_not_recorded(tmp_path: Path, receipt: Receipt) -> None:
    note_end(settings(tmp_path), receipt, SUBSCRIPTION, RecordedProgress())
    assert entries(tmp_path) == []


def test_deletion_of_a_deallocated_machine_is_recorded(tmp_path: Path) -> None:
    gone = replace(ENDED, verified=OffProof.ABSENT, billed_from=None, billed_to=None, deletes=True)
    note_end(settings(tmp_path), gone, SUBSCRIPTION, RecordedProgress())
    assert [entry.what for entry in entries(tmp_path)] == [LedgerEntryKind.GONE]


def test_unwritable_ledger_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / ".gpuinfra").mkdir()
    (tmp_path / ".gpuinfra" / FILE).mkdir()
    heard = RecordedProgress()
    receipt = note_end(settings(tmp_path), ENDED, SUBSCRIPTION, heard)
    assert receipt.is_proof
    (line,) = heard.lines
    assert line.startswith("warning: ledger cannot be written: ")


@pytest.mark.parametrize("workspace", ["missing", "file", "taken"])
def test_unusable_workspace_is_a_warning(tmp_path: Path, workspace: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / ".gpuinfra").write_text("")
    heard = RecordedProgress()
    note(settings(tmp_path / workspace), LedgerEntry(LedgerEntryKind.ON, NOW, NAME), heard)
    assert heard.lines[0].startswith("warning: ")


def test_receipt_has_period_and_cost_when_a_machine_of_this_name_in_another_group_ended_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, ended = NOW - timedelta(hours=2), NOW - timedelta(hours=1)
    on = LedgerEntry(LedgerEntryKind.ON, began, NAME, "g", SUBSCRIPTION, price_per_hour=0.5)
    other = LedgerEntry(LedgerEntryKind.OFF, NOW, NAME, "other", SUBSCRIPTION, since=began)
    for entry in (on, other):
        note(settings(tmp_path), entry, RecordedProgress())
    events = [Event(began, "", "start", "Succeeded"), Event(ended, "", "deallocate", "Succeeded", caller="colleague")]
    monkeypatch.setattr("gpuinfra.app.ledger_recording._events", lambda *_: events)
    cloud = SimpleNamespace(grant=lambda _: None, look=lambda _: None, subscription=SUBSCRIPTION)
    session: Any = SimpleNamespace(settings=settings(tmp_path), cloud=cloud)
    was_off = replace(ENDED, billed_from=None, billed_to=None)
    for group in ("g", "G"):
        receipt = accounted(replace(was_off, group=group), session)
        assert (receipt.billed_from, receipt.billed_to, receipt.cost) == (began, ended, 0.5)
    assert accounted(replace(was_off, group="other"), session).billed_from is None


# Cost of a run

TIMES = {"created": NOW, "started": NOW, "ended": NOW + timedelta(minutes=30)}
RUN = make_run("1", "t", state=RunState.COMPLETED, machine=NAME.upper(), **TIMES)


def work_of(run: Run, workspace: Path, *, tracked: bool) -> Any:
    history = History(workspace / ".gpuinfra")
    history.save(run)
    opened = SimpleNamespace(settings=settings(workspace), history=history)
    return SimpleNamespace(run=run, workspace=opened, job=SimpleNamespace(tracked=tracked))


def cost_of(run: Run, workspace: Path) -> float | None:
    work = work_of(run, workspace, tracked=True)
    return record_cost(work.workspace, work.run, tracked=True).cost_usd


@pytest.mark.parametrize("tracked", [True, False])
def test_run_has_the_cost_of_its_job(tmp_path: Path, tracked: bool) -> None:
    for price, at in ((9.0, NOW - timedelta(days=2)), (0.5, NOW - timedelta(days=1))):
        note(settings(tmp_path), LedgerEntry(LedgerEntryKind.ON, at, NAME, price_per_hour=price), RecordedProgress())
    work = work_of(RUN, tmp_path, tracked=tracked)
    assert record_cost(work.workspace, work.run, tracked=tracked).cost_usd == 0.25
    assert work.workspace.history.find("1").cost_usd == (0.25 if tracked else None)


@pytest.mark.parametrize(
    "run",
    [
        replace(RUN, machine=""),
        replace(RUN, machine="another"),
        replace(RUN, simulated=True),
        replace(RUN, started=None),
        replace(RUN, ended=None),
    ],
)
def test_run_without_a_known_price_has_no_cost(tmp_path: Path, run: Run) -> None:
    note(settings(tmp_path), LedgerEntry(LedgerEntryKind.ON, NOW, NAME, price_per_hour=0.5), RecordedProgress())
    assert cost_of(run, tmp_path) is None


def test_cost_of_a_receipt_is_kept(tmp_path: Path) -> None:
    note(settings(tmp_path), LedgerEntry(LedgerEntryKind.ON, NOW, NAME, price_per_hour=0.5), RecordedProgress())
    assert cost_of(replace(RUN, cost_usd=7.0), tmp_path) == 7.0


# Options of the command


@pytest.mark.parametrize(
    ("by", "tag", "expected"),
    [(None, None, "machine"), ("run", None, "run"), (None, "project", "tag"), ("tag", "project", "tag")],
)
def test_grouping_is_read_from_the_options(by: str | None, tag: str | None, expected: str) -> None:
    assert _wanted(by, tag) == expected


@pytest.mark.parametrize(("by", "tag"), [("colour", None), ("tag", None), ("run", "project"), ("machine", "project")])
def test_contradictory_grouping_is_refused(by: str, tag: str | None) -> None:
    with pytest.raises(Problem) as caught:
        _wanted(by, tag)
    assert caught.value.exit_code is Exit.USAGE


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30d", NOW - timedelta(days=30)),
        ("400d", NOW - timedelta(days=400)),
        ("1h30m", NOW - timedelta(minutes=90)),
        ("2026-11-01", datetime(2026, 11, 1, tzinfo=UTC)),
        ("2026-11-01T12:00:00+02:00", datetime(2026, 11, 1, 10, tzinfo=UTC)),
        ("2030-01-01", NOW),
        ("0001-01-01", datetime(2010, 1, 1, tzinfo=UTC)),
        ("9999d", datetime(2010, 1, 1, tzinfo=UTC)),
    ],
)
def test_since_is_read(text: str, expected: datetime) -> None:
    assert _moment(text, NOW) == expected


@pytest.mark.parametrize("text", ["", "long ago", "-3d", "0d", "99999d", "30"])
def test_invalid_since_is_refused(text: str) -> None:
    with pytest.raises(Problem) as caught:
        _moment(text, NOW)
    assert caught.value.exit_code is Exit.USAGE


@pytest.mark.parametrize("simulated", [False, True])
def test_sandbox_runs_do_not_count_on_azure(tmp_path: Path, simulated: bool) -> None:
    history = History(tmp_path / ".gpuinfra")
    for each in (False, True):
        history.save(replace(RUN, id=f"simulated-{each}", simulated=each))
    session: Any = SimpleNamespace(settings=settings(tmp_path), cloud=SimpleNamespace(simulated=simulated))
    progress: Any = RecordedProgress()
    assert [job.id for job in CostQuery(session, progress)._jobs(NOW)] == [f"simulated-{simulated}"]
