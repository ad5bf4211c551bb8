"""What machines cost: one row each, a total, and the sources."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpuinfra.models.cost import Amounts, CostRow
from gpuinfra.views import json_output
from gpuinfra.views.terminal import (
    UNKNOWN,
    Cell,
    cost,
    duration,
    harmless,
    messages,
    results,
    table,
    timestamp,
    width_of,
)

if TYPE_CHECKING:
    from rich.text import Text

    from gpuinfra.models.cost import CostReport

NO_PRICE = "unknown"
# Off, address, disk, region, basis, size, compute, saved, on: left out first if the table does not fit.
LEAST = (4, 7, 6, 2, 10, 1, 5, 9, 3)
NO_TAG = "-"
NONE = "no costs since {}"
TO = "\N{EN DASH}"


def show(report: CostReport, tag: str | None = None, *, json: bool) -> None:
    """Print the table on stdout and its sources on stderr; or everything as one JSON object."""
    if json:
        json_output.show({"cost": {**report.as_json(), **({"tag": tag} if tag else {})}})
        return
    if report.rows:
        console = results()
        console.print(render(report, tag, width_of(console)))
    else:
        messages().print(NONE.format(timestamp(report.since)))
    _show_basis(report)


def _show_basis(report: CostReport) -> None:
    for words in _basis(report):
        messages().print(harmless(words))


def show_csv(report: CostReport) -> None:
    """Print the rows as CSV, without the total. Values that a spreadsheet would treat as formulas are quoted."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([*_flat(CostRow("", Amounts()).as_json()), "simulated"])
    rows = (_flat(row.as_json()).values() for row in report.rows)
    writer.writerows([*map(_cell, row), report.simulated] for row in rows)
    _show_basis(report)


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with one column for each end of a range, such as `totalUsdMin` and `totalUsdMax`."""
    ends = {f"{name}{end.title()}": each[end] for name, each in row["range"].items() for end in ("min", "max")}
    return {**{name: value for name, value in row.items() if name != "range"}, **ends}


def _cell(value: object) -> object:
    if isinstance(value, list):
        return "; ".join(str(each) for each in value)
    # A lone dash, the label of machines without the tag, is not a formula.
    if isinstance(value, str) and value != NO_TAG and value[:1] in {"=", "+", "-", "@", "\t", "\r"}:
        return f"'{value}"
    return "" if value is None else value


def render(report: CostReport, tag: str | None = None, width: int | None = None) -> Text:
    """Return the table with its total."""
    money = "TOTAL (simulated)" if report.simulated else "TOTAL"
    first = {"machine": "MACHINE", "run": "RUN", "tag": (tag or "tag").upper()}[report.by]
    header = (first, "SIZE", "REGION", "ON", "OFF", "COMPUTE", "DISK", "ADDRESS", money, "SAVED", "KNOWN FROM")
    total = ("total", "", "", *_amounts(report.total), "")
    bold = [(cell, "bold") for cell in total]
    rows: list[Sequence[Cell]] = [header, *(_row(row) for row in report.rows), bold]
    return table(rows, right={3, 4, 5, 6, 7, 8, 9}, least=LEAST, width=width)


def _row(row: CostRow) -> tuple[str, ...]:
    on = " (on)" if row.is_on and row.machine == row.label else ""
    size = f"{row.size}{' spot' if row.spot else ''}" if row.size else UNKNOWN
    known = f"{', '.join(source.value for source in row.sources)}: {row.sure.value}" if row.sources else UNKNOWN
    lacks = f", without {_listed(row.amounts.missing)}" if row.amounts.missing else ""
    return (f"{row.label}{on}", size, row.region or UNKNOWN, *_amounts(row.amounts), f"{known}{lacks}")


def _amounts(amounts: Amounts) -> tuple[str, ...]:
    return (
        _time_on(*amounts.ranges["onSeconds"]),
        duration(amounts.off) if amounts.off >= 1 else UNKNOWN,
        _sum(*amounts.ranges["computeUsd"], is_complete=not amounts.unpriced),
        _sum(*amounts.ranges["diskUsd"], is_complete=not amounts.disk_unpriced),
        _sum(*amounts.ranges["addressUsd"], is_complete=not amounts.address_unpriced),
        _sum(*amounts.ranges["totalUsd"], is_complete=not amounts.missing),
        cost(amounts.saved),
    )


def _sum(least: float, most: float, *, is_complete: bool) -> str:
    """Return an amount or a range, marked with `+` if some time has no known price."""
    if not is_complete and not most:
        return NO_PRICE
    return f"{_range(cost(least), cost(most))}{'' if is_complete else '+'}"


def _time_on(least: float, most: float) -> str:
    return _range(duration(least), duration(most)) if most else UNKNOWN


def _range(least: str, most: str) -> str:
    return least if least == most else f"{least}{TO}{most}"


def _listed(words: Sequence[str]) -> str:
    return " and ".join([*([", ".join(words[:-1])] if words[1:] else []), words[-1]])


def _basis(report: CostReport) -> Iterator[str]:
    """Return sentences on period, savings, log and prices."""
    yield f"from {timestamp(report.since)} to {timestamp(report.until)}, in US dollars at list prices"
    if report.rows:
        total = report.total
        if total.off >= 1:
            saved, off = cost(total.saved), duration(total.off)
            yield f"saved: {saved}, the price of the {off} that the machines were off"
        if total.possible or total.possible_total:
            yield f"a range like $1{TO}$2: when a machine went on or off, or was deleted, is not known exactly"
        if total.unpriced:
            yield f"no price is known for {duration(total.unpriced)} of the time on; the totals exclude it"
        if parts := [part for part in total.missing if part != "compute"]:
            yield f"the cost of {_listed(parts)} is not known for the whole period; the totals exclude it"
    if report.log == "read":
        since = (
            f", from {timestamp(report.log_since)} on" if report.log_since and report.log_since > report.since else ""
        )
        records = "the records of this workspace and the subscription"
        yield f"source: Azure's activity log{since}; for earlier or missing events {records}"
    else:
        yield (
            f"Azure's activity log: {report.log}; the costs include only what is recorded and what exists. "
            "Reading the log needs the role Reader on the subscription"
        )
    if report.receipts != "read":
        yield (
            f"receipts of deleted machines in the subscription: {report.receipts}; machines that other workspaces "
            "deleted may be missing. Reading them needs `Microsoft.Resources/deployments/read` on the subscription"
        )
    elif report.log_since and report.log_since > report.since:
        before = timestamp(report.log_since)
        yield f"before {before}, only records and tags count: what was on without a record is missing"
    if report.prices:
        yield f"prices: {'; '.join(report.prices)}"
