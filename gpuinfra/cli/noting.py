"""Notes in the ledger what commands do to machines. That it cannot be written is a warning, and never a failure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpuinfra.cli.options import Settings
from gpuinfra.diagnostics import Problem

if TYPE_CHECKING:
    from gpuinfra.cli.machines import Reach
    from gpuinfra.cli.submitting import Submitting
    from gpuinfra.models.entry import Entry
    from gpuinfra.models.receipt import Receipt
    from gpuinfra.models.run import Run
    from provision.up import Up
    from provision.waiting.progress import Progress


def note(settings: Settings, entry: Entry, progress: Progress) -> None:
    """Remember it in the workspace."""
    from gpuinfra.ledger.ledger import Ledger
    from gpuinfra.workspace import find_workspace, state_folder

    try:
        Ledger(state_folder(find_workspace(settings.workspace))).add(entry)
    except Problem as problem:
        progress.note(f"warning: {problem.diagnostics[0].summary}: {problem.diagnostics[0].note}")
    except OSError as error:
        progress.note(f"warning: ledger cannot be written: {error}")


def note_end(settings: Settings, receipt: Receipt, subscription: str, progress: Progress) -> Receipt:
    """Remember a machine's end; the receipt, with what leaving it on overnight would have cost."""
    from gpuinfra.models.entry import entry_of
    from gpuinfra.models.receipt import next_morning

    # What was off before, and is there, is no news.
    if (receipt.billed_from or receipt.deletes) and (entry := entry_of(receipt, subscription)):
        note(settings, entry, progress)
    # By the clocks of whoever reads it: it is their night.
    return replace(receipt, left_on_until=next_morning(receipt.at.astimezone()))


def note_beginning(settings: Settings, outcome: Up, reached: Reach, progress: Progress) -> None:
    """Remember that `up` has switched a machine on, or changed one that is on."""
    from gpuinfra.models.plan import Action, Power
    from gpuinfra.models.resource import Kind
    from provision.costing.beginning import beginning

    plan, cloud = outcome.plan, reached.cloud
    machine = outcome.observed.part(Kind.MACHINE) if outcome.observed else None
    changes = [change for change in plan.changes if change.ref.kind is Kind.MACHINE]
    if machine is None or not changes or not plan.wants_running:
        return
    is_new = any(each.action in {Action.ADD, Action.REPLACE} or each.power is Power.START for each in changes)
    # One that was on all the time costs from now on what it costs with its new size.
    at = None if is_new else cloud.now()
    entry = beginning(machine, plan.price, at=at, subscription=cloud.subscription, simulated=cloud.simulated)
    if entry:
        note(settings, entry, progress)


def note_cost(work: Submitting) -> Run:
    """A run that is over, with what its machine cost while its job ran, where the ledger has the price."""
    run = work.run
    if run.cost_usd is not None or not run.machine or run.started is None or run.ended is None:
        return run
    price = _price_of(work.desk.settings, run)
    if price is None:
        return run
    cost = round(max(0.0, (run.ended - run.started).total_seconds()) / 3600 * price, 4)
    if not work.assigned.tracked:
        return replace(run, cost_usd=cost)
    try:
        return work.desk.history.update(run.id, cost_usd=cost)
    except Problem:
        return replace(run, cost_usd=cost)


def _price_of(settings: Settings, run: Run) -> float | None:
    """US dollars an hour, as it was when the machine was last switched on from here."""
    from gpuinfra.ledger.ledger import Ledger
    from gpuinfra.models.entry import Happening
    from gpuinfra.workspace import STATE, find_workspace

    try:
        entries = Ledger(find_workspace(settings.workspace) / STATE).entries()
    except Problem:
        return None
    begun = (each for each in reversed(entries) if each.what in {Happening.ON, Happening.CHANGED})
    mine = (each for each in begun if each.machine.casefold() == run.machine.casefold())
    return next((each.price_per_hour for each in mine if each.simulated == run.simulated), None)
