"""The layout of costs: table, JSON and CSV."""

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


def test_cost_has_one_line_per_machine_and_a_total() -> None:
    assert render(REPORT).plain.splitlines() == [
        "MACHINE       SIZE                  REGION          ON     OFF  COMPUTE    DISK  ADDRESS    TOTAL    SAVED"
        "  KNOWN FROM",
        "my-dsvm (on)  Standard_NC4as_T4_v3  eastus  1 h 30 min  30 min    $0.95  $19.20    $3.65   $23.80  $459.68"
        "  activity log, ledger: recorded",
        "old           -                     -              1 h       -  unknown   $0.00    $0.00  unknown    $0.00"
        "  activity log: estimated, without compute",
        "total                                       2 h 30 min  30 min   $0.95+  $19.20    $3.65  $23.80+  $459.68",
    ]


def test_disk_and_address_that_are_not_known_are_not_zero(capsys: pytest.CaptureFixture[str]) -> None:
    known = CostRow("a", Amounts(seconds=3600, compute=2.0, disk=1.5, address=0.5), sources=(Source.LOG,))
    amounts = Amounts(seconds=3600, compute=2.0, disk=1.5, disk_unpriced=60, address_unpriced=3600)
    row = CostRow("b", amounts, sources=(Source.LOG,), sure=Certainty.ESTIMATED)
    report = replace(REPORT, rows=(known, row))
    lines = render(report).plain.splitlines()
    cells = [line.split()[-8:] for line in lines]
    assert cells[1] == ["$2.00", "$1.50", "$0.50", "$4.00", "$0.00", "activity", "log:", "exact"]
    assert lines[2].endswith(
        "  $2.00  $1.50+  unknown  $3.50+  $0.00  activity log: estimated, without disk and address"
    )
    assert cells[3][-5:] == ["$4.00", "$3.00+", "$0.50+", "$7.50+", "$0.00"]
    show(report, json=False)
    assert "the cost of disk and address is not known for the whole period; the totals exclude it" in (
        capsys.readouterr().err
    )
    assert row.as_json()["missing"] == ["disk", "address"]


def test_cost_that_is_not_known_exactly_is_a_range(capsys: pytest.CaptureFixture[str]) -> None:
    amounts = Amounts(seconds=3600, compute=26.05, there=10800, always_on=100, possible=3600, possible_compute=4.05)
    maybe = Amounts(possible=7200, possible_compute=2.0, address_unpriced=60)
    rows = (replace(ROW, amounts=amounts), replace(GONE, amounts=maybe))
    report = replace(REPORT, rows=rows)
    lines = [line.replace("\N{EN DASH}", "..") for line in render(report).plain.splitlines()]
    assert "  1 h..2 h  1 h  $26.05..$30.10  " in lines[1]
    assert "$69.90" in lines[1], "what may have been on saved nothing"
    assert "  $0.00..$2.00  " in lines[2]
    assert "  $0.00..$2.00+  " in lines[2]
    assert "  $26.05..$32.10  " in lines[3]
    total = report.as_json()["total"]
    assert (total["computeUsd"], total["range"]["computeUsd"]) == (26.05, {"min": 26.05, "max": 32.1})
    show(report, json=False)
    assert "is not known exactly" in capsys.readouterr().err
    show_csv(report)
    table = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["computeUsd"], row["computeUsdMin"], row["computeUsdMax"]) for row in table] == [
        ("26.05", "26.05", "30.1"),
        ("0.0", "0.0", "2.0"),
    ]


def test_basis_of_the_cost_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    show(REPORT, json=False)
    out, err = capsys.readouterr()
    assert out == render(REPORT).plain + "\n"
    assert "from 2026-10-17 08:00:00Z to 2026-11-16 08:00:00Z" in err
    assert "saved: $459.68, the price of the 30 min that the machines were off" in err
    assert "no price is known for 1 h of the time on" in err
    assert "source: Azure's activity log; " in err
    assert "prices: a list" in err


def test_unreadable_log_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    show(replace(REPORT, log="not allowed", log_since=None), json=False)
    err = capsys.readouterr().err
    assert "Azure's activity log: not allowed; the costs include only what is recorded and what exists" in err


def test_late_start_of_the_log_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    show(replace(REPORT, log_since=datetime(2026, 11, 1, tzinfo=UTC)), json=False)
    assert "source: Azure's activity log, from 2026-11-01 00:00:00Z on; " in capsys.readouterr().err


def test_empty_report_is_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    show(replace(REPORT, rows=()), json=False)
    out, err = capsys.readouterr()
    assert out == ""
    assert "no costs since 2026-10-17 08:00:00Z" in err


def test_cost_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    show(REPORT, "project", json=True)
    found = json.loads(capsys.readouterr().out)
    assert found == {"schemaVersion": 1, "cost": {**REPORT.as_json(), "tag": "project"}}
    assert found["cost"]["rows"][0]["sources"] == ["activity log", "ledger"]
    assert found["cost"]["activityLog"] == {"state": "read", "since": "2026-10-17T08:00:00Z"}


def test_cost_as_csv(capsys: pytest.CaptureFixture[str]) -> None:
    rows = (ROW, replace(GONE, label="=1+1"), replace(GONE, label="-"))
    show_csv(replace(REPORT, rows=rows, log="not allowed"))
    shown = capsys.readouterr()
    # Missing data is reported on stderr as well.
    assert "activity log: not allowed" in shown.err
    first, second, untagged = csv.DictReader(io.StringIO(shown.out))
    assert untagged["label"] == "-", "a dash alone is no formula"
    assert (first["label"], first["onSeconds"], first["totalUsd"]) == ("my-dsvm", "5400", "23.7965")
    assert (first["sources"], first["sure"]) == ("activity log; ledger", "recorded")
    # A spreadsheet must not evaluate a name.
    assert (second["label"], second["size"]) == ("'=1+1", "")


def test_empty_csv_has_its_columns(capsys: pytest.CaptureFixture[str]) -> None:
    show_csv(replace(REPORT, rows=()))
    assert capsys.readouterr().out.startswith("label,machine,size,")


def test_simulated_cost_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert "TOTAL (simulated)" in render(replace(REPORT, simulated=True)).plain
    for simulated in (True, False):
        show_csv(replace(REPORT, simulated=simulated))
        (line, *_) = csv.DictReader(io.StringIO(capsys.readouterr().out))
        assert line["simulated"] == str(simulated)


@pytest.mark.parametrize(("by", "tag", "first"), [("run", None, "RUN"), ("tag", "project", "PROJECT")])
def test_first_column_is_the_grouping(by: str, tag: str | None, first: str) -> None:
    assert render(replace(REPORT, by=by), tag).plain.startswith(first)


def test_control_characters_are_removed() -> None:
    assert "\x1b" not in render(replace(REPORT, rows=(replace(ROW, label="\x1b[2J"),))).plain
