"""What `gpuinfra reap` did or would do: receipts, and one line for everything else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from shlex import quote
from typing import TYPE_CHECKING

from gpuinfra.models.plan import Kind
from gpuinfra.models.reap import ReapAction
from gpuinfra.views import json_output
from gpuinfra.views import receipt as receipt_view
from gpuinfra.views.terminal import (
    complete_command,
    cost,
    counted,
    harmless,
    messages,
    results,
    sandbox_option,
    timestamp,
)

if TYPE_CHECKING:
    from rich.text import Text

    from gpuinfra.models.reap import Orphan, ReapDecision, ReapFailure, ReapResult, SpecSource

LABEL_WIDTH = 14
_LOUD = {"left", "NOT DELETED", "UNTAGGED", "UNRECOGNISED"}
_DONE = {ReapAction.STOP: "stopped", ReapAction.DELETE: "deleted", ReapAction.START: "started"}


def show(reaped: ReapResult, *, json: bool) -> None:
    """Print receipts first, then everything else."""
    if json:
        json_output.show(reaped.as_json())
        return
    console = results()
    for ended in (*reaped.stopped, *reaped.deleted):
        if ended.receipt:
            console.print(receipt_view.render(ended.receipt))
            console.print()
    for label, words in _lines(reaped):
        console.print(_line(label, words))
    for failure in reaped.failed:
        console.print(_failure(failure, simulated=reaped.simulated))
    if reaped.specs:
        messages().print(harmless(_specs(reaped.specs)))
    for note in reaped.notes:
        messages().print(f"note: {harmless(note)}")
    done = "nothing to do" if reaped.did_nothing else _summary(reaped)
    mark = " (simulated)" if reaped.simulated else ""
    console.print(f"{done}; checked {counted(reaped.machines, 'machine')}{mark}")
    if reaped.dry_run:
        messages().print("dry run: nothing was changed")


def show_interrupted(under_way: Sequence[str], not_begun: Sequence[str]) -> None:
    """Print what Azure still does after Ctrl-C, and what was not started."""
    console = messages()
    if under_way:
        console.print(f"interrupted; Azure is still deallocating: {harmless(', '.join(under_way))}")
    else:
        console.print("interrupted; no machine is being deallocated")
    if not_begun:
        console.print(f"not done: {harmless(', '.join(not_begun))}")
    console.print("help: run the same command again to continue")


def _lines(reaped: ReapResult) -> Iterator[tuple[str, str]]:
    where = sandbox_option(simulated=reaped.simulated)
    if reaped.dry_run:
        for ended in (*reaped.stopped, *reaped.deleted):
            yield _would(ended.verdict.action), _named(ended.verdict)
    for verdict in reaped.started:
        label = _would(verdict.action) if reaped.dry_run else "started"
        yield label, f"{_named(verdict)}; until {timestamp(verdict.until)}"
    for verdict in reaped.protected:
        would = verdict.would or ReapAction.STOP
        yield "protected", f"{verdict.name} would be {_DONE[would]}: {verdict.cause}"
    for verdict in reaped.kept:
        if not verdict.not_deleted:
            yield "off", f"{_named(verdict)}; to remove it: {_delete(verdict.name, where)}"
    for orphan in reaped.orphans:
        if not orphan.not_deleted:
            yield _orphan(orphan, where, dry_run=reaped.dry_run)
    yield from _not_deleted(reaped, where)
    yield from _strangers(reaped, where)


def _specs(source: SpecSource) -> str:
    checked_out = "" if source.is_default else f"; {source.checked_out} is checked out"
    dirty = f"; not committed: {', '.join(source.dirty)}" if source.dirty else ""
    return f"specs: {source}{checked_out}{dirty}"


def _not_deleted(reaped: ReapResult, where: str) -> Iterator[tuple[str, str]]:
    for each in reaped.not_deleted:
        what = each.name if each.ref.kind is Kind.VM else f"{each.ref} of {each.name}"
        start = f"az vm start --resource-group {quote(each.ref.group)} --name {quote(each.name)}"
        # Pasted as it is, it would go to the real Azure.
        cloud = ", with `az` set up for the sandbox" if reaped.simulated else ""
        ask = (
            f"`{start}`{cloud}, then `{_delete(each.name, where)}` asks the machine; "
            if each.ref.kind is Kind.VM
            else ""
        )
        unseen = complete_command(f"gpuinfra down {quote(each.name)} --delete --yes{where}")
        yield "NOT DELETED", f"{what}: {each.cause}; {each.not_deleted}; {ask}`{unseen}` deletes its disk unseen"


def _strangers(reaped: ReapResult, where: str) -> Iterator[tuple[str, str]]:
    adopt = complete_command(f"gpuinfra up --adopt SPEC{where}")
    for each in reaped.untagged:
        state = f"{each.power} and billed" if each.is_billed else each.power
        yield "UNTAGGED", f"{each.ref.name} in group {each.ref.group} is {state}; {adopt}"
    for found in reaped.unrecognised:
        state = f"{found.power} and billed" if found.is_billed else found.power
        by_hand = f"az vm deallocate --resource-group {found.ref.group} --name {found.ref.name}"
        yield "UNRECOGNISED", f"{found.ref.name} in group {found.ref.group} is {state}; {found.reason}; {by_hand}"
    for line in reaped.left_alone:
        yield "left alone", line


def _named(verdict: ReapDecision) -> str:
    return f"{verdict.name}: {verdict.cause}"


def _would(action: ReapAction) -> str:
    return f"would {action.value}"


def _orphan(orphan: Orphan, where: str, *, dry_run: bool) -> tuple[str, str]:
    price = "" if orphan.per_month is None else f", about {cost(orphan.per_month)} a month"
    words = f"{orphan.ref} of {orphan.name}: {orphan.cause}{price}"
    if orphan.removed:
        return "deleted", words
    if orphan.action is ReapAction.DELETE:
        return ("would delete" if dry_run else "left"), words
    if orphan.action is ReapAction.PROTECTED:
        return "protected", words
    return "orphan", f"{words}; to remove it: {_delete(orphan.name, where)}"


def _delete(name: str, where: str) -> str:
    return complete_command(f"gpuinfra down {quote(name)} --delete{where}")


def _line(label: str, words: str) -> Text:
    from rich.text import Text

    style = "yellow" if label in {"protected", "orphan"} else "bold red" if label in _LOUD else "bold"
    return Text.assemble((label.ljust(LABEL_WIDTH), style), harmless(words))


def _failure(failure: ReapFailure, *, simulated: bool) -> Text:
    from rich.text import Text

    why = f" ({failure.cause})" if failure.cause else ""
    text = Text("FAILED".ljust(LABEL_WIDTH), "bold red")
    text.append(harmless(f"{failure.action} {failure.name}{why}: {failure.code}: {failure.message}"), "bold")
    if failure.action in {"stop", "delete"}:
        delete = " --delete" if failure.action == "delete" else ""
        command = complete_command(f"gpuinfra down {failure.name}{delete}{sandbox_option(simulated=simulated)}")
        text.append(f"\n{' ' * LABEL_WIDTH}{harmless(failure.name)} may still be on and billed; run: {command}")
    return text


def _summary(reaped: ReapResult) -> str:
    to_be = "to be " if reaped.dry_run else ""
    counts = [
        f"{count} {to_be}{word}"
        for word, count in (
            ("stopped", len(reaped.stopped)),
            ("started", len(reaped.started)),
            ("deleted", len(reaped.deleted)),
        )
        if count
    ]
    going = [orphan for orphan in reaped.orphans if orphan.action is ReapAction.DELETE]
    removed = len(going) if reaped.dry_run else sum(orphan.removed for orphan in going)
    if removed:
        counts.append(f"{counted(removed, 'leftover')} {to_be}removed")
    if reaped.not_deleted:
        counts.append(f"{len(reaped.not_deleted)} not deleted")
    if reaped.failed:
        counts.append(f"{len(reaped.failed)} failed")
    if billed := sum(each.is_billed for each in reaped.untagged):
        counts.append(f"{billed} untagged and billed")
    if billed := sum(each.is_billed for each in reaped.unrecognised):
        counts.append(f"{billed} unrecognised and billed")
    return ", ".join(counts) or "nothing done"
