"""Receipts: what ended, its cost, what is still billed, and how "off" was verified."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gpuinfra.models.receipt import OFF_BEFORE, OffProof
from gpuinfra.views import diagnostics as diagnostics_view
from gpuinfra.views import json_output
from gpuinfra.views.formatting import cost, duration, per_hour, timestamp
from gpuinfra.views.terminal import complete_command, harmless, results

if TYPE_CHECKING:
    from rich.text import Text

    from gpuinfra.diagnostics import Diagnostic
    from gpuinfra.models.receipt import Receipt, Residue

LABEL_WIDTH = 12
HOW = {
    OffProof.DEALLOCATED: "Azure reports PowerState/deallocated",
    OffProof.ABSENT: "Azure reports 404, the machine does not exist",
}


def show(receipts: Sequence[Receipt], diagnostics: Sequence[Diagnostic] = (), *, json: bool) -> None:
    """Print receipts, then problems; or everything as one JSON object."""
    if json:
        payload = {"receipts": [receipt.as_json() for receipt in receipts]} if receipts or not diagnostics else {}
        json_output.show({**payload, **diagnostics_view.as_payload(diagnostics)})
        return
    console = results()
    for number, receipt in enumerate(receipts):
        if number:
            console.print()
        console.print(render(receipt))
    diagnostics_view.show(diagnostics)


def render(receipt: Receipt) -> Text:
    """Return a receipt as text."""
    text = _heading(receipt)
    for label, words in _facts(receipt):
        is_loud = label in {"left", "run"} and not receipt.is_proof
        text.append(f"\n  {label.ljust(LABEL_WIDTH)}", "bold red" if is_loud else "dim")
        text.append(harmless(words), "bold" if is_loud else "")
    return text


def _heading(receipt: Receipt) -> Text:
    from rich.text import Text

    name = harmless(receipt.name)
    simulated = " (simulated)" if receipt.simulated else ""
    if receipt.verified is None:
        return Text(f"NOT VERIFIED: {name} may still be on and billed{simulated}", "bold red")
    if receipt.left and not receipt.deletes:
        return Text(f"NOT ALL OFF: {name} is off, but an untagged machine of this name is on{simulated}", "bold red")
    if receipt.left:
        return Text(
            f"NOT ALL DELETED: {name} is off, but some resources remain and may be billed{simulated}", "bold red"
        )
    if not receipt.existed:
        return Text(f"{name} does not exist{simulated}", "bold green")
    return Text(f"{name} is {'gone' if receipt.verified is OffProof.ABSENT else 'off'}{simulated}", "bold green")


def _facts(receipt: Receipt) -> Iterator[tuple[str, str]]:
    if receipt.size and receipt.region:
        yield "machine", f"{receipt.size}{' spot' if receipt.spot else ''} in {receipt.region}"
    if receipt.cause:
        yield "state" if receipt.cause == OFF_BEFORE else "ended by", receipt.cause
    if receipt.billed_seconds is not None:
        until = f"{timestamp(receipt.billed_from)} to {timestamp(receipt.billed_to)}"
        yield "on", f"{until}, {duration(receipt.billed_seconds)}"
    elif receipt.billed_from is not None:
        yield "on", f"since {timestamp(receipt.billed_from)}"
    if receipt.cost is not None:
        simulated = "simulated, " if receipt.simulated else ""
        least = "" if receipt.verified else "at least "
        yield "cost", f"{least}{cost(receipt.cost)} ({simulated}list price, {per_hour(receipt.price_per_hour)} an hour)"
    yield from _saved(receipt)
    for label, names in (("deleted", receipt.deleted), ("kept", receipt.kept), ("left", receipt.left)):
        yield from ((label if not number else "", name) for number, name in enumerate(names))
    yield from _residue(receipt)
    yield from _proof(receipt)


def _saved(receipt: Receipt) -> Iterator[tuple[str, str]]:
    if receipt.saves_per_day is None:
        return
    yield "saved", f"{cost(receipt.saves_per_day)} a day, compared with leaving it on"
    if receipt.left_on_cost is not None:
        until = timestamp(receipt.left_on_until)
        yield "", f"left on overnight, until {until}, it would have cost {cost(receipt.left_on_cost)} more"


def _residue(receipt: Receipt) -> Iterator[tuple[str, str]]:
    for number, each in enumerate(receipt.residue):
        yield "still paid" if not number else "", f"{each.kind} {each.name}, {_monthly(each)}"
    known = [each.per_month for each in receipt.residue if each.per_month is not None]
    if len(receipt.residue) > 1 and len(known) == len(receipt.residue):
        yield "", f"about {cost(sum(known))} a month in total"
    if receipt.remove_command:
        yield "to remove", complete_command(receipt.remove_command)


def _monthly(residue: Residue) -> str:
    return "price unknown" if residue.per_month is None else f"about {cost(residue.per_month)} a month"


def _proof(receipt: Receipt) -> Iterator[tuple[str, str]]:
    if receipt.verified is not None:
        yield "verified", f"{HOW[receipt.verified]}, at {timestamp(receipt.at)}"
    else:
        yield "verified", f"no: Azure had not reported it off by {timestamp(receipt.at)}"
    commands = enumerate(map(complete_command, receipt.next_commands))
    yield from (("run" if not number else "", words) for number, words in commands)
