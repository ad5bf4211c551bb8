"""Notes in the ledger what commands do to machines. That it cannot be written is a warning, and never a failure."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from gpuinfra.cli.options import Settings
from gpuinfra.diagnostics import Problem

# The moment that is written down and that of Azure's log are not the same to the second.
BEFORE = timedelta(minutes=5)
LOG_SECONDS = 20.0
"""That it is off is known by then: what else there is to know is not worth a long wait."""

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


def with_last_time(receipt: Receipt, reached: Reach) -> Receipt:
    """A receipt of a machine that somebody else has ended since it was switched on from here: by whom, when, and what
    it cost until then. Azure's log knows, if it can be read, and as soon as it has it."""
    from gpuinfra.models.resource import Kind, Ref
    from provision.azure.activity import KEPT, read_log
    from provision.costing.activity import last_time_on, read_events
    from provision.errors import CloudError

    begun = _last_beginning(reached.settings, receipt.name, simulated=receipt.simulated)
    if begun is None or receipt.billed_from or receipt.verified is None or receipt.group is None:
        return receipt
    cloud, ref = reached.cloud, Ref(Kind.MACHINE, receipt.group, receipt.name)
    cloud.grant(LOG_SECONDS)
    since = max(begun.at - BEFORE, receipt.at - KEPT)
    try:
        bodies = read_log(cloud.clients, since, receipt.at, ref.id(cloud.subscription))
        machine = cloud.look(ref)
    except CloudError:
        return receipt
    found = last_time_on(read_events(bodies))
    if found is None or found[1].at < begun.at:
        return receipt
    identity = str(((machine.body.get("identity") or {}) if machine else {}).get("principalId") or "")
    who = "its own agent" if identity and found[1].who == identity else found[1].who or "somebody"
    since, until = (each.replace(microsecond=0) for each in (found[0] or begun.at, found[1].at))
    return replace(receipt, billed_from=since, billed_to=until, cause=f"{who}, by Azure's log")


def _last_beginning(settings: Settings, name: str, *, simulated: bool) -> Entry | None:
    """When the machine was last switched on from here, unless its end is known."""
    from gpuinfra.models.entry import Happening

    mine = [each for each in _entries(settings, name) if each.simulated == simulated]
    return mine[-1] if mine and mine[-1].what in {Happening.ON, Happening.CHANGED} else None


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
    from provision import tags
    from provision.costing.beginning import beginning

    plan, cloud = outcome.plan, reached.cloud
    machine = outcome.observed.part(Kind.MACHINE) if outcome.observed else None
    changes = [change for change in plan.changes if change.ref.kind is Kind.MACHINE]
    if machine is None or not changes or not plan.wants_running:
        return
    is_new = any(each.action in {Action.ADD, Action.REPLACE} or each.power is Power.START for each in changes)
    # One that was on before costs from its restart, or from now on, what it costs with its new size.
    since = tags.moment(machine.tags, tags.ON_SINCE) if plan.restarts else None
    at = None if is_new else since or cloud.now()
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
    from gpuinfra.models.entry import Happening

    mine = (each for each in reversed(_entries(settings, run.machine)) if each.simulated == run.simulated)
    return next((each.price_per_hour for each in mine if each.what in {Happening.ON, Happening.CHANGED}), None)


def _entries(settings: Settings, machine: str) -> list[Entry]:
    """What the ledger has of a machine; nothing where it cannot be read."""
    from gpuinfra.ledger.ledger import Ledger
    from gpuinfra.workspace import STATE, find_workspace

    try:
        entries = Ledger(find_workspace(settings.workspace) / STATE).entries()
    except Problem:
        return []
    return [each for each in entries if each.machine.casefold() == machine.casefold()]
