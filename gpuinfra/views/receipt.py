"""Receipts: what ended, its cost, what is still billed, and how "off" was verified."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gpuinfra.models.receipt import OFF_BEFORE, OffProof
from gpuinfra.models.stay import Reason
from gpuinfra.views import diagnostics as diagnostics_view
from gpuinfra.views import json_output
from gpuinfra.views.terminal import (
    complete_command,
    cost,
    duration,
    harmless,
    per_hour,
    results,
    timestamp,
    width_of,
    wrapped,
)

if TYPE_CHECKING:
    from rich.text import Text

    from gpuinfra.diagnostics import Diagnostic
    from gpuinfra.models.receipt import Receipt, Residue
    from gpuinfra.models.stay import Stay

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
        console.print(render(receipt, width_of(console)))
    diagnostics_view.show(diagnostics)


def render(receipt: Receipt, width: int | None = None) -> Text:
    """Return a receipt as text."""
    text = _heading(receipt)
    for label, words in _facts(receipt):
        is_loud = label in {"left", "run"} and not receipt.is_proof and receipt.stay is None
        text.append(f"\n  {label.ljust(LABEL_WIDTH)}", "bold red" if is_loud else "dim")
        text.append(wrapped(harmless(words), width, LABEL_WIDTH + 2), "bold" if is_loud else "")
    return text


def _heading(receipt: Receipt) -> Text:
    from rich.text import Text

    name = harmless(receipt.name)
    simulated = " (simulated)" if receipt.simulated else ""
    if receipt.stay:
        on = "is billed" if receipt.stay.is_ended else "nothing in Azure ends it"
        what = f"{name} stays on for {receipt.stay.purpose.words}, and {on}{simulated}"
        return Text(harmless(what), "bold yellow" if receipt.stay.is_ended else "bold red")
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
        until = "" if receipt.verified or receipt.stay else ", if it was on until then"
        so_far = " so far" if receipt.stay else ""
        price = f"({simulated}list price, {per_hour(receipt.price_per_hour)} an hour)"
        yield "cost", f"{cost(receipt.cost)}{so_far} {price}{until}"
    yield from _saved(receipt)
    for label, names in (("deleted", receipt.deleted), ("kept", receipt.kept), ("left", receipt.left)):
        yield from ((label if not number else "", name) for number, name in enumerate(names))
    yield from _residue(receipt)
    yield from _stay(receipt, receipt.stay) if receipt.stay else _proof(receipt)


def _stay(receipt: Receipt, stay: Stay) -> Iterator[tuple[str, str]]:
    """Yield when a machine that stays on goes off, what that costs at most, and what the user can do until then."""
    ends = list(_ends(stay))
    yield from (("goes off" if not number else "", words) for number, words in enumerate(ends))
    if stay.after_run == "delete":
        yield "", "its agent deletes nothing: its disk and address stay"
    *look, end = map(complete_command, receipt.next_commands)
    yield from (("look" if not number else "", words) for number, words in enumerate((*look, *stay.places)))
    yield "end it now", end


def _ends(stay: Stay) -> Iterator[str]:
    """Yield what ends a machine that stays on without a client, when, and what it costs until then."""
    is_after_job = stay.purpose.reason is Reason.JOB and stay.after_run != "keep"
    most = "" if stay.most is None else f": at most {cost(stay.most)} more"
    lacks = "its guest agent lacks its role"
    if not stay.is_ended:
        yield f"not by itself: it has no schedule, and {lacks}"
        return
    if not stay.has_agent:
        early = ", even if the job ends before" if is_after_job else ""
        yield f"{timestamp(stay.backstop)}, by Azure's schedule{early}, because {lacks}{most}"
        return
    if is_after_job:
        failed = f", {duration(stay.keep_on_failure)} later if it fails" if stay.keep_on_failure else ""
        yield f"when the job has finished{failed}, by its guest agent"
    elif stay.purpose.reason is Reason.JOB:
        yield "when it is idle after the job, by its guest agent"
    last = " at the latest" if stay.purpose.reason is Reason.JOB else ""
    price = "" if stay.cost is None else f": {'at most ' if last or not stay.backstop else ''}{cost(stay.cost)} more"
    yield f"{timestamp(stay.until)}{last}, by its guest agent{price}"
    if stay.backstop:
        yield f"{timestamp(stay.backstop)}, by Azure's schedule if the agent cannot{most}"


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
