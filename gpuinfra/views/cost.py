"""What machines cost: one row each, a total, and the sources."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gpuinfra.models.cost import Amounts, CostRow
from gpuinfra.views import json_output
from gpuinfra.views.formatting import UNKNOWN, cost, duration, table, timestamp
from gpuinfra.views.terminal import harmless, messages, results

if TYPE_CHECKING:
    from rich.text import Text

    from gpuinfra.models.cost import CostReport

NO_PRICE = "unknown"
NONE = "no costs since {}"


def show(report: CostReport, tag: str | None = None, *, json: bool) -> None:
    """Print the table on stdout and its sources on stderr; or everything as one JSON object."""
    if json:
        json_output.show({"cost": {**report.as_json(), **({"tag": tag} if tag else {})}})
        return
    if report.rows:
        results().print(render(report, tag))
    else:
        messages().print(NONE.format(timestamp(report.since)))
    _show_basis(report)


def _show_basis(report: CostReport) -> None:
    for words in _basis(report):
        messages().print(harmless(words))


def show_csv(report: CostReport) -> None:
    """Print the rows as CSV, without the total. Values that a spreadsheet would treat as formulas are quoted."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(CostRow("", Amounts()).as_json())
    writer.writerows([_cell(value) for value in row.as_json().values()] for row in report.rows)
    _show_basis(report)


def _cell(value: object) -> object:
    if isinstance(value, list):
        return "; ".join(str(each) for each in value)
    if isinstance(value, str) and value[:1] in {"=", "+", "-", "@", "\t", "\r"}:
        return f"'{value}"
    return "" if value is None else value


def render(report: CostReport, tag: str | None = None) -> Text:
    """Return the table with its total."""
    money = "TOTAL (simulated)" if report.simulated else "TOTAL"
    first = {"machine": "MACHINE", "run": "RUN", "tag": (tag or "tag").upper()}[report.by]
    header = (first, "SIZE", "REGION", "ON", "OFF", "COMPUTE", "DISK", "ADDRESS", money, "SAVED", "KNOWN FROM")
    total = ("total", "", "", *_amounts(report.total), "")
    bold = [(cell, "bold") for cell in total]
    return table([header, *(_row(row) for row in report.rows), bold], right={3, 4, 5, 6, 7, 8, 9})


def _row(row: CostRow) -> tuple[str, ...]:
    on = " (on)" if row.is_on and row.machine == row.label else ""
    size = f"{row.size}{' spot' if row.spot else ''}" if row.size else UNKNOWN
    known = f"{', '.join(source.value for source in row.sources)}: {row.sure.value}" if row.sources else UNKNOWN
    lacks = f", without {_listed(row.amounts.missing)}" if row.amounts.missing else ""
    return (f"{row.label}{on}", size, row.region or UNKNOWN, *_amounts(row.amounts), f"{known}{lacks}")


def _amounts(amounts: Amounts) -> tuple[str, ...]:
    return (
        duration(amounts.seconds) if amounts.seconds else UNKNOWN,
        duration(amounts.off) if amounts.off >= 1 else UNKNOWN,
        _sum(amounts.compute, is_complete=not amounts.unpriced),
        _sum(amounts.disk, is_complete=not amounts.disk_unpriced),
        _sum(amounts.address, is_complete=not amounts.address_unpriced),
        _sum(amounts.total, is_complete=not amounts.missing),
        cost(amounts.saved),
    )


def _sum(dollars: float, *, is_complete: bool) -> str:
    """Return an amount, marked with `+` if some time has no known price."""
    if is_complete:
        return cost(dollars)
    return f"{cost(dollars)}+" if dollars else NO_PRICE


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
        if total.unpriced:
            yield f"no price is known for {duration(total.unpriced)} of the time on; the totals exclude it"
        if parts := [part for part in total.missing if part != "compute"]:
            yield f"the cost of {_listed(parts)} is not known for the whole period; the totals exclude it"
    if report.log == "read":
        since = (
            f", from {timestamp(report.log_since)} on" if report.log_since and report.log_since > report.since else ""
        )
        yield f"source: Azure's activity log{since}; for earlier or missing events this workspace's ledger"
    else:
        yield (
            f"Azure's activity log: {report.log}; the costs include only what this workspace recorded and what exists. "
            "Reading the log needs the role Reader on the subscription"
        )
    if report.prices:
        yield f"prices: {'; '.join(report.prices)}"
