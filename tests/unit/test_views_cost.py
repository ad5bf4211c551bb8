"""How costs look: a table, an object, and comma-separated values."""

import csv
import io
import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from gpuinfra.models.cost import Amounts, Certainty, CostReport, CostRow, Source
from gpuinfra.views.cost import render, show, show_csv

SINCE, UNTIL = datetime(2026, 10, 17, 8, tzinfo=UTC), datetime(2026, 11, 16, 8, tzinfo=UTC)
ROW = CostRow(
    label="my-dsvm",
    amounts=Amounts(seconds=5400, compute=0.9465, disk=19.2, address=3.65, always_on=460.63, there=7200),
    machine="my-dsvm",
    size="Standard_NC4as_T4_v3",
    region="eastus",
    is_on=True,
    sources=(Source.LOG, Source.LEDGER),
    sure=Certainty.RECORDED,
)
GONE = CostRow("old", Amounts(seconds=3600, unpriced=3600, there=3600), sources=(Source.LOG,), sure=Certainty.ESTIMATED)
REPORT = CostReport(SINCE, UNTIL, "machine", (ROW, GONE), log_since=SINCE, prices=("a list",))


def test_a_line_a_machine_and_the_sum() -> None:
    assert render(REPORT).plain.splitlines() == [
        "MACHINE       SIZE                  REGION          ON     OFF  COMPUTE    DISK  ADDRESS    TOTAL    SAVED"
        "  KNOWN FROM",
        "my-dsvm (on)  Standard_NC4as_T4_v3  eastus  1 h 30 min  30 min    $0.95  $19.20    $3.65   $23.80  $459.68"
        "  activity log, ledger: recorded",
        "old           -                     -              1 h       -  unknown   $0.00    $0.00  unknown    $0.00"
        "  activity log: estimated",
        "total                                       2 h 30 min  30 min   $0.95+  $19.20    $3.65  $23.80+  $459.68",
    ]


def test_what_it_rests_on_is_said_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    show(REPORT, json=False)
    out, err = capsys.readouterr()
    assert out == render(REPORT).plain + "\n"
    assert "from 2026-10-17 08:00:00Z to 2026-11-16 08:00:00Z" in err
    assert "saved: left on, the machines would have cost $459.68 for the 30 min that they were off" in err
    assert "no price is known for 1 h of the time on" in err
    assert "activity log was read; " in err
    assert "prices: a list" in err


def test_a_log_that_may_not_be_read_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    show(replace(REPORT, log="not allowed", log_since=None), json=False)
    err = capsys.readouterr().err
    assert "Azure's activity log: not allowed; only what this workspace recorded counts" in err


def test_a_log_that_begins_later_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    show(replace(REPORT, log_since=datetime(2026, 11, 1, tzinfo=UTC)), json=False)
    assert "activity log was read, from 2026-11-01 00:00:00Z on; " in capsys.readouterr().err


def test_nothing_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    show(replace(REPORT, rows=()), json=False)
    out, err = capsys.readouterr()
    assert out == ""
    assert "has cost anything since 2026-10-17 08:00:00Z" in err


def test_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    show(REPORT, "project", json=True)
    found = json.loads(capsys.readouterr().out)
    assert found == {"schemaVersion": 1, "cost": {**REPORT.as_json(), "tag": "project"}}
    assert found["cost"]["rows"][0]["sources"] == ["activity log", "ledger"]
    assert found["cost"]["activityLog"] == {"state": "read", "since": "2026-10-17T08:00:00Z"}


def test_for_spreadsheets(capsys: pytest.CaptureFixture[str]) -> None:
    show_csv(replace(REPORT, rows=(ROW, replace(GONE, label="=1+1")), log="not allowed"))
    shown = capsys.readouterr()
    # What is missing is told there as well, beside the table.
    assert "activity log: not allowed" in shown.err
    first, second = csv.DictReader(io.StringIO(shown.out))
    assert (first["label"], first["onSeconds"], first["totalUsd"]) == ("my-dsvm", "5400", "23.7965")
    assert (first["sources"], first["sure"]) == ("activity log; ledger", "recorded")
    # A name must not be calculated by whoever opens it.
    assert (second["label"], second["size"]) == ("'=1+1", "")


def test_an_empty_table_has_its_columns(capsys: pytest.CaptureFixture[str]) -> None:
    show_csv(replace(REPORT, rows=()))
    assert capsys.readouterr().out.startswith("label,machine,size,")


def test_what_is_simulated_says_so() -> None:
    assert "TOTAL (simulated)" in render(replace(REPORT, simulated=True)).plain


@pytest.mark.parametrize(("by", "tag", "first"), [("run", None, "RUN"), ("tag", "project", "PROJECT")])
def test_the_first_column_is_what_has_a_line(by: str, tag: str | None, first: str) -> None:
    assert render(replace(REPORT, by=by), tag).plain.startswith(first)


def test_no_name_can_drive_the_terminal() -> None:
    assert "\x1b" not in render(replace(REPORT, rows=(replace(ROW, label="\x1b[2J"),))).plain
