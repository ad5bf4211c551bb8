"""Plans: one line per difference, and the cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gpuinfra.models.plan import Action, Power
from gpuinfra.models.resource import Kind
from gpuinfra.views import diagnostics as diagnostics_view
from gpuinfra.views import json_output
from gpuinfra.views.formatting import can_show, columns, cost, per_hour
from gpuinfra.views.terminal import harmless, messages, results

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from gpuinfra.diagnostics import Diagnostic
    from gpuinfra.models.plan import Change, Difference, Plan, Price, RejectedCandidate

MARKS = {Action.ADD: "+", Action.CHANGE: "~", Action.REPLACE: "±", Action.DESTROY: "-"}
PLAIN_MARKS = {**MARKS, Action.REPLACE: "-/+"}
STYLES = {Action.ADD: "green", Action.CHANGE: "yellow", Action.REPLACE: "magenta", Action.DESTROY: "red"}
POWERS = {Power.START: "power: deallocated -> running", Power.DEALLOCATE: "power: running -> deallocated"}
DONE = {Action.ADD: "added", Action.CHANGE: "changed", Action.REPLACE: "replaced", Action.DESTROY: "destroyed"}


def show(plans: Sequence[Plan], diagnostics: Sequence[Diagnostic] = (), *, json: bool, applied: bool = False) -> None:
    """Print plans, or summaries of applied plans, on stdout; rejected candidates, notes and problems on stderr."""
    if json:
        payload: dict[str, Any] = {"plans": [plan.as_json() for plan in plans]} if plans or not diagnostics else {}
        payload |= diagnostics_view.as_payload(diagnostics)
        json_output.show({**payload, "applied": True} if applied else payload)
        return
    console = results()
    for number, plan in enumerate(plans):
        if number:
            console.print()
        if len(plans) > 1:
            console.print(f"{harmless(plan.name)}:", style="bold")
        show_passed(plan.rejected)
        for line in render(plan, MARKS if can_show(console, "±") else PLAIN_MARKS, applied=applied):
            console.print(line)
        _show_notes(plan.notes)
    if not applied and len(plans) > 1:
        console.print(f"\n{_total(plans)}", style="bold")
    diagnostics_view.show(diagnostics)


def _total(plans: Sequence[Plan]) -> str:
    """Return the sum of the prices of several plans."""
    hourly = [plan.price.per_hour for plan in plans if plan.candidate or plan.price.per_hour is not None]
    monthly = [plan.price.residue_per_month for plan in plans]
    least = "at least " if None in hourly or None in monthly else ""
    return (
        f"All {len(plans)} machines: {least}{per_hour(sum(each or 0.0 for each in hourly))} an hour while on; "
        f"about {cost(sum(each or 0.0 for each in monthly))} a month for disks and addresses while off."
    )


def show_first(plan: Plan) -> None:
    """Print a plan with its price on stderr, before it is applied."""
    console = messages()
    for line in render(plan, MARKS if can_show(console, "±") else PLAIN_MARKS):
        console.print(line)


def render(plan: Plan, marks: dict[Action, str] = MARKS, *, applied: bool = False) -> Iterator[Text]:
    """Return the lines of a plan; of an applied plan only the summary."""
    from rich.text import Text

    if applied and not plan.is_empty:
        yield Text(_summary(plan, applied=True), "bold")
        return
    yield from _changes(plan, marks)
    if plan.is_empty:
        yield Text("No changes: Azure matches the file.", "bold")
    else:
        yield Text()
        yield Text(_summary(plan, applied=False), "bold")
    if plan.candidate or plan.price.per_hour is not None:
        yield Text(_price(plan.price))


def show_passed(passed: Sequence[RejectedCandidate]) -> None:
    """Print the rejected candidates with every reason."""
    if not passed:
        return
    console = messages()
    console.print("Passed over:", style="bold")
    rows = [("REGION", "ZONE", "SIZE", "REASON")]
    for each in passed:
        place = (each.candidate.region, each.candidate.zone or "-", each.candidate.size)
        for number, reason in enumerate(each.reasons):
            rows.append((*(("", "", "") if number else place), f"{reason.code}: {reason.text}"))
    for line in columns(rows):
        console.print(f"  {line}")
    # Print each help text once.
    for help_text in dict.fromkeys(reason.help for each in passed for reason in each.reasons if reason.help):
        _say(console, "help", help_text)


def _changes(plan: Plan, marks: dict[Action, str]) -> Iterator[Text]:
    from rich.text import Text

    named = columns([(change.ref.kind, change.ref.name) for change in plan.changes])
    wide = max((len(marks[change.action]) for change in plan.changes), default=0)
    heads = [f"{marks[change.action]:<{wide}} {name}" for change, name in zip(plan.changes, named, strict=True)]
    widest = max(map(len, heads), default=0)
    for change, head in zip(plan.changes, heads, strict=True):
        for number, (words, remark) in enumerate(_reasons(change, plan.price)):
            line = Text("  ").append(("" if number else head).ljust(widest), STYLES[change.action])
            line.append(f"   {harmless(words)}")
            if remark:
                line.append(f"   # {remark}", "bold" if change.action is Action.REPLACE else "dim")
            line.rstrip()
            yield line


def _reasons(change: Change, price: Price) -> Iterator[tuple[str, str]]:
    """Return the lines about a change, each with a remark."""
    said = [(_difference(each), _remark(each)) for each in change.differences]
    if change.power and not any(each.what == "power" for each in change.differences):
        said.append((POWERS[change.power], ""))
    if not said:
        is_billed = change.action is Action.ADD and change.ref.kind is Kind.VM and price.per_hour is not None
        hourly = f"{per_hour(price.per_hour)}/h" if is_billed else ""
        said.append((", ".join(part for part in (change.summary, hourly) if part), ""))
    yield from said


def _difference(difference: Difference) -> str:
    # `ssh from A -> B` needs no colon; `image: A -> B` does.
    colon = "" if difference.what.endswith(" from") else ":"
    return f"{difference.what}{colon} {difference.old or '(none)'} -> {difference.new or '(none)'}"


def _remark(difference: Difference) -> str:
    if difference.replaces:
        return "forces replacement"
    return "needs a restart" if difference.needs_off else ""


def _summary(plan: Plan, *, applied: bool) -> str:
    if applied:
        return f"Done: {', '.join(f'{plan.count(action)} {DONE[action]}' for action in Action)}."
    return f"Plan: {', '.join(f'{plan.count(action)} to {action}' for action in Action)}."


def _price(price: Price) -> str:
    residue = price.residue_per_month
    if price.per_hour is None and residue is None:
        return "Price: unknown."
    on = "unknown while on" if price.per_hour is None else f"{per_hour(price.per_hour)} an hour while on"
    if price.list_of:
        on += f" (from gpuinfra's price list of {price.list_of}; no other price is known)"
    off = "unknown" if residue is None else f"about {cost(residue)} a month"
    return f"Price: {on}; {off} for disk and address while off."


def _show_notes(notes: Sequence[str]) -> None:
    console = messages()
    for note in notes:
        _say(console, "note", note)


def _say(console: Console, word: str, text: str) -> None:
    from rich.text import Text

    console.print(Text.assemble((word, "bold cyan"), f": {harmless(text)}"))
