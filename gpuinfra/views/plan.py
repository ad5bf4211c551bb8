"""Plans: one line per difference, and the cost; the results of `up`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from gpuinfra.models.base import format_duration
from gpuinfra.models.consent import CommandInterrupted, Interrupted, PlanReady
from gpuinfra.models.plan import Action, Kind, Power
from gpuinfra.views import diagnostics as diagnostics_view
from gpuinfra.views import json_output
from gpuinfra.views.terminal import (
    can_show,
    columns,
    cost,
    counted,
    harmless,
    messages,
    per_hour,
    results,
    sandbox_option,
    timestamp,
    width_of,
    wrapped,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from gpuinfra.diagnostics import Diagnostic
    from gpuinfra.models.inventory import PlanReport, Total, UnmanagedResource
    from gpuinfra.models.plan import Change, Difference, Plan, Price, RejectedCandidate, ResolvedJob
    from gpuinfra.models.target import UpResult

MARKS = {Action.ADD: "+", Action.CHANGE: "~", Action.REPLACE: "±", Action.DESTROY: "-"}
PLAIN_MARKS = {**MARKS, Action.REPLACE: "-/+"}
STYLES = {Action.ADD: "green", Action.CHANGE: "yellow", Action.REPLACE: "magenta", Action.DESTROY: "red"}
POWERS = {Power.START: "power: deallocated -> running", Power.DEALLOCATE: "power: running -> deallocated"}
LEAST_WIDTH = 32
DONE = {Action.ADD: "added", Action.CHANGE: "changed", Action.REPLACE: "replaced", Action.DESTROY: "destroyed"}


def show(report: PlanReport, diagnostics: Sequence[Diagnostic] = (), *, json: bool) -> None:
    """Print plans, what is in no spec, and totals on stdout; rejected candidates, notes and problems on stderr."""
    plans = report.plans
    if json:
        payload: dict[str, Any] = {"plans": [plan.as_json() for plan in plans]} if plans or not diagnostics else {}
        if report.totals:
            payload["unmanaged"] = [each.as_json() for each in report.unmanaged]
            payload["totals"] = report.totals.as_json()
        payload |= {"notes": list(report.notes)} if report.notes else {}
        payload |= {"simulated": True} if report.simulated else {}
        json_output.show(payload | diagnostics_view.as_payload(diagnostics))
        return
    console = results()
    for number, plan in enumerate(plans):
        if number:
            console.print()
        if report.totals:
            console.print(f"{harmless(plan.name)}:", style="bold")
        show_passed(plan.rejected)
        for line in render(plan, MARKS if can_show(console, "±") else PLAIN_MARKS, width=width_of(console)):
            console.print(line)
        for line in job_lines(plan.job) if plan.job else ():
            console.print(line)
        _show_notes(plan.notes)
    for line in [*unmanaged_lines(report.unmanaged, simulated=report.simulated), *_totals(report)]:
        console.print(line)
    _show_notes(report.notes)
    diagnostics_view.show(diagnostics, names=bool(report.totals))


def show_applied(plans: Sequence[Plan]) -> None:
    """Print the summaries of applied plans on stdout, and rejected candidates and notes on stderr."""
    console = results()
    for plan in plans:
        show_passed(plan.rejected)
        for line in render(plan, applied=True):
            console.print(line)
        _show_notes(plan.notes)


def job_lines(job: ResolvedJob) -> Iterator[Text]:
    """Yield the lines about the job that `run` would run: names of secrets, no values."""
    from rich.text import Text

    rows = [("command", line) for line in job.title.splitlines()] or [("command", "the one that you name")]
    if job.problem:
        rows = [("problem", job.problem)]
    rows.append(("environment", _environment(job) if not job.problem else ""))
    rows.append(("gpu", "required" if job.needs_gpu else ""))
    rows += [("env", f"{name}={value}") for name, value in job.variables.items()]
    missing = dict.fromkeys(job.missing_secrets, " (no value here)")
    rows.append(("secrets", ", ".join(f"{name}{missing.get(name, '')}" for name in job.secrets)))
    rows.append(("outputs", ", ".join(job.outputs)))
    rows.append(("ports", ", ".join(f"{name} {port}" for name, port in job.ports.items())))
    rows.append(("timeout", format_duration(timedelta(seconds=job.timeout)) if job.timeout else ""))
    if job.keep_on_failure:
        rows.append(("on failure", f"on for {format_duration(timedelta(seconds=job.keep_on_failure))}, for a look"))
    yield Text(f"\nJob on {harmless(job.target)}, for `gpuinfra run`:", "bold")
    before = ""
    for label, words in rows:
        if words:
            style = "bold red" if label == "problem" else "dim"
            yield Text(f"  {'' if label == before else label:<12} ", style).append(harmless(words), "")
            before = label


def _environment(job: ResolvedJob) -> str:
    place = f"an image built from {job.dockerfile}" if job.dockerfile else job.image
    if job.type == "remotedocker":
        place = place or "the newest base image for the machine's driver"
    if job.packages:
        return f"{place or 'a Python environment'}, with the packages of {job.packages}"
    return place or "the machine's own Python"


def unmanaged_lines(found: Sequence[UnmanagedResource], *, simulated: bool) -> Iterator[Text]:
    """Yield lines for each resource that is in no spec: what it costs, why, and what ends it."""
    from rich.text import Text

    if found:
        yield Text("\nIn no spec (simulated):" if simulated else "\nIn no spec:", "bold")
    for each in found:
        hourly = "unknown price" if each.per_hour is None else f"{per_hour(each.per_hour)}/h while on"
        facts = [each.power_state, each.size, hourly] if each.ref.kind is Kind.VM else []
        if each.per_month is not None:
            facts.append(f"{cost(each.per_month)} a month")
        style = "" if each.command is None else "yellow"
        yield Text("  ").append(harmless(f"{each.ref}, group {each.ref.group}"), style)
        yield Text(f"    {harmless(', '.join(fact for fact in facts if fact))}")
        yield Text(f"    {harmless(each.cause)}")
        if each.command:
            yield Text(f"    end it: `{harmless(each.command)}`")


def _totals(report: PlanReport) -> Iterator[Text]:
    from rich.text import Text

    totals = report.totals
    if totals is None:
        return
    mark = " (simulated)" if report.simulated else ""
    yield Text(f"\n{'All ' if totals.machines > 1 else ''}{counted(totals.machines, 'machine')}{mark}:", "bold")
    rows = [
        ("now", f"{_sum(totals.now, per_hour)} an hour"),
        ("all on", f"{_sum(totals.on, per_hour)} an hour"),
        ("worst case", f"{_sum(totals.worst, cost)}, if each stays on until its lease ends"),
        ("all off", f"about {_sum(totals.off, cost)} a month for disks and addresses"),
    ]
    yield from (Text(f"  {line}") for line in columns(rows))


def _sum(total: Total, shown: Callable[[float], str]) -> str:
    return f"{'' if total.is_complete else 'at least '}{shown(total.amount)}"


def show_first(ready: PlanReady) -> None:
    """Print a plan with its price on stderr, before it is applied."""
    console = messages()
    if ready.is_one_of_many:
        console.print(f"\n{harmless(ready.plan.name)}:", style="bold")
    marks = MARKS if can_show(console, "±") else PLAIN_MARKS
    for line in render(ready.plan, marks, width=width_of(console)):
        console.print(line)


def render(
    plan: Plan, marks: dict[Action, str] = MARKS, *, applied: bool = False, width: int | None = None
) -> Iterator[Text]:
    """Return the lines of a plan, wrapped between words; of an applied plan only the summary."""
    from rich.text import Text

    if applied and not plan.is_empty:
        yield Text(_summary(plan, applied=True), "bold")
        return
    yield from _changes(plan, marks, width)
    if plan.is_empty:
        yield Text(_no_changes(plan), "bold")
    else:
        yield Text()
        yield Text(wrapped(_summary(plan, applied=False), width, 0), "bold")
    if not plan.is_empty and not plan.differs:
        yield Text(wrapped(_as_designed(plan), width, 0), "bold")
    if plan.candidate or plan.price.per_hour is not None:
        yield Text(wrapped(_price(plan.price, simulated=plan.simulated), width, 0))


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


def _changes(plan: Plan, marks: dict[Action, str], width: int | None) -> Iterator[Text]:
    from rich.text import Text

    named = columns([(change.ref.kind, change.ref.name) for change in plan.changes])
    wide = max((len(marks[change.action]) for change in plan.changes), default=0)
    heads = [f"{marks[change.action]:<{wide}} {name}" for change, name in zip(plan.changes, named, strict=True)]
    widest = max(map(len, heads), default=0)
    # Where little is left beside the names, the rest is below them.
    is_narrow = width is not None and width - widest < LEAST_WIDTH
    indent = 6 if is_narrow else widest + 5
    for change, head in zip(plan.changes, heads, strict=True):
        for number, (words, remark) in enumerate(_reasons(change, plan.price)):
            line = Text("  ").append(("" if number else head).ljust(widest), STYLES[change.action])
            if words:
                line.append(f"\n{' ' * indent}" if is_narrow else "   ").append(wrapped(harmless(words), width, indent))
            if remark:
                last = len(line.plain.rpartition("\n")[2])
                is_full = width is not None and last + len(f"   # {remark}") > width
                line.append(f"\n{' ' * indent}" if is_full else "   ")
                line.append(f"# {remark}", "bold" if change.action is Action.REPLACE else "dim")
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


def _no_changes(plan: Plan) -> str:
    if plan.power_state or plan.wants_running:
        return "No changes: Azure matches the file."
    return f"No changes: {harmless(plan.name)} does not exist, and `power: deallocated` does not create it."


def _as_designed(plan: Plan) -> str:
    name = harmless(plan.name)
    if plan.power_state is None:
        return f"{name} does not exist, as designed: `afterRun: delete`. `up` creates it."
    return f"{name} is off, as designed; otherwise Azure matches the file. `up` starts it."


def _price(price: Price, *, simulated: bool) -> str:
    residue = price.residue_per_month
    head = "Price (simulated)" if simulated else "Price"
    if price.per_hour is None and residue is None:
        return f"{head}: unknown."
    on = "unknown while on" if price.per_hour is None else f"{per_hour(price.per_hour)} an hour while on"
    if price.list_of:
        on += f" (from gpuinfra's price list of {price.list_of}; no other price is known)"
    off = "unknown" if residue is None else f"about {cost(residue)} a month"
    return f"{head}: {on}; {off} for disk and address while off."


def _show_notes(notes: Sequence[str]) -> None:
    console = messages()
    for note in notes:
        _say(console, "note", note)


def _say(console: Console, word: str, text: str) -> None:
    from rich.text import Text

    console.print(Text.assemble((word, "bold cyan"), f": {wrapped(harmless(text), width_of(console), len(word) + 2)}"))


def show_up(brought: Sequence[UpResult], diagnostics: Sequence[Diagnostic] = (), *, json: bool) -> None:
    """Print each machine, then problems; or everything as one JSON object."""
    if json:
        payload = {"machines": [each.as_json() for each in brought]} if brought or not diagnostics else {}
        json_output.show({**payload, **diagnostics_view.as_payload(diagnostics)})
        return
    for number, each in enumerate(brought):
        if number:
            results().print()
        _show(each)
    diagnostics_view.show(diagnostics)


def _show(brought: UpResult) -> None:
    show_applied([brought.plan])
    console, target = results(), brought.target
    if target is None:
        console.print(f"{brought.plan.name} is off, as its spec says.")
        return
    place = brought.plan.candidate
    price = "" if brought.plan.price.per_hour is None else f", {per_hour(brought.plan.price.per_hour)}/h"
    simulated = " (simulated)" if brought.simulated else ""
    console.print(f"{harmless(target.machine)} is running{simulated}: {place}{price}")
    console.print(f"  address     {target.username}@{target.address} port {target.port}")
    if brought.gpu:
        said = "simulated" in brought.gpu.summary
        mark = " (simulated)" if brought.gpu.simulated and not said else ""
        console.print(f"  GPU         {harmless(brought.gpu.summary)}{mark}")
    if brought.lease_until:
        console.print(f"  lease       until {timestamp(brought.lease_until)}")
    if brought.agent not in {None, "armed"}:
        console.print(f"  agent       cannot switch it off: see `gpuinfra doctor {target.machine}`")
    for file in brought.files:
        console.print(f"  wrote       {harmless(file)}")
    where = sandbox_option(simulated=brought.simulated)
    messages().print(f"Next: `gpuinfra ssh {target.machine}{where}`; `gpuinfra down {target.machine}{where}` when done")


def show_all_interrupted(event: CommandInterrupted) -> None:
    """Print the state of each machine after Ctrl-C, and what to run next."""
    console = messages()
    console.print("interrupted; in Azure:")
    rows = [
        (each.name, each.power, f"{per_hour(each.per_hour)}/h" if each.power == "on" else "") for each in event.machines
    ]
    for line in columns(rows):
        console.print(f"  {line}")
    console.print(f"help: {harmless(event.help)}")


def show_interrupted(event: Interrupted) -> None:
    """Print what exists after Ctrl-C, when Azure stops the machine, and what to run next."""
    console = messages()
    if event.resources is None:
        console.print("interrupted; Azure did not say what exists")
    elif event.resources:
        console.print(f"interrupted; in Azure exists: {harmless(', '.join(event.resources))}")
    else:
        console.print("interrupted; nothing exists in Azure")
        return
    if event.stops:
        console.print(f"the machine is billed while it is on; Azure's schedule stops it at {timestamp(event.stops)}")
    remove = f"gpuinfra down {event.name} --delete{sandbox_option(simulated=event.simulated)}"
    console.print(f"help: run the same command again to continue, or `{remove}` to remove everything")
