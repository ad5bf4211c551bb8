"""What machines have cost: a line each, a sum, and what it rests on."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpuinfra.models.cost import Amounts, CostRow
from gpuinfra.views import document
from gpuinfra.views.cells import UNKNOWN, columns, cost, length, moment
from gpuinfra.views.terminal import harmless, messages, results

if TYPE_CHECKING:
    from rich.text import Text

    from gpuinfra.models.cost import CostReport

NO_PRICE = "unknown"
NONE = "no machine of gpuinfra's has cost anything since {}"


def show(report: CostReport, tag: str | None = None, *, json: bool) -> None:
    """The table on stdout, what it rests on beside it; or all as one object."""
    if json:
        document.show({"cost": {**report.as_json(), **({"tag": tag} if tag else {})}})
        return
    if report.rows:
        results().print(render(report, tag))
    else:
        messages().print(NONE.format(moment(report.since)))
    _show_basis(report)


def _show_basis(report: CostReport) -> None:
    for words in _basis(report):
        messages().print(harmless(words))


def show_csv(report: CostReport) -> None:
    """The same lines for spreadsheets, without their sum. A name that a spreadsheet would calculate is kept from it."""
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
    """A line a row, and the sum."""
    from rich.text import Text

    money = "TOTAL (simulated)" if report.simulated else "TOTAL"
    first = {"machine": "MACHINE", "run": "RUN", "tag": (tag or "tag").upper()}[report.by]
    header = (first, "SIZE", "REGION", "ON", "OFF", "COMPUTE", "DISK", "ADDRESS", money, "SAVED", "KNOWN FROM")
    total = ("total", "", "", *_amounts(report.total), "")
    lines = columns([header, *(_row(row) for row in report.rows), total], right={3, 4, 5, 6, 7, 8, 9})
    texts = [Text(lines[0], "bold"), *(Text(line) for line in lines[1:-1]), Text(lines[-1], "bold")]
    return Text("\n").join(texts)


def _row(row: CostRow) -> tuple[str, ...]:
    on = " (on)" if row.is_on and row.machine == row.label else ""
    size = f"{row.size}{' spot' if row.spot else ''}" if row.size else UNKNOWN
    known = f"{', '.join(source.value for source in row.sources)}: {row.sure.value}" if row.sources else UNKNOWN
    return (f"{row.label}{on}", size, row.region or UNKNOWN, *_amounts(row.amounts), known)


def _amounts(amounts: Amounts) -> tuple[str, ...]:
    return (
        length(amounts.seconds) if amounts.seconds else UNKNOWN,
        length(amounts.off) if amounts.off >= 1 else UNKNOWN,
        _sum(amounts.compute, amounts),
        cost(amounts.disk),
        cost(amounts.address),
        _sum(amounts.total, amounts),
        cost(amounts.saved),
    )


def _sum(dollars: float, amounts: Amounts) -> str:
    """A sum; one that lacks time without a price is more than what is known, or not known at all."""
    if not amounts.unpriced:
        return cost(dollars)
    return f"{cost(dollars)}+" if dollars else NO_PRICE


def _basis(report: CostReport) -> Iterator[str]:
    """From when to when, against what, by which log and which prices."""
    yield f"from {moment(report.since)} to {moment(report.until)}, in US dollars at list prices"
    if report.rows:
        total = report.total
        if total.off >= 1:
            saved, off = cost(total.saved), length(total.off)
            yield f"saved: left on, the machines would have cost {saved} for the {off} that they were off"
        if total.unpriced:
            yield f"no price is known for {length(total.unpriced)} of the time on: it is not in the sums"
    if report.log == "read":
        since = f", from {moment(report.log_since)} on" if report.log_since and report.log_since > report.since else ""
        yield f"Azure's activity log was read{since}; what came before, or is not in it, is by this workspace's ledger"
    else:
        yield (
            f"Azure's activity log: {report.log}; only what this workspace recorded counts, and what is there now. "
            "To read it takes the role Reader on the subscription"
        )
    if report.prices:
        yield f"prices: {'; '.join(report.prices)}"
