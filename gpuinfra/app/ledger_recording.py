"""Record in the ledger what commands do to machines. A write error is a warning, never a failure."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta

from gpuinfra.app.access import CloudSession
from gpuinfra.app.machine_costs import ledger_entries
from gpuinfra.app.settings import Settings
from gpuinfra.diagnostics import Problem
from gpuinfra.models.plan import Action, Kind, Power, Price, Ref
from gpuinfra.models.receipt import LedgerEntry, LedgerEntryKind, Receipt, entry_from_receipt, next_morning
from gpuinfra.provision import tags
from gpuinfra.provision.cloud import Cloud
from gpuinfra.provision.costing.activity import KEPT, Event, has_start, last_time_on, read_events
from gpuinfra.provision.costing.report import add_cost, power_on_entry, record_of
from gpuinfra.provision.costing.timeline import StateChange
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.power_log import BEFORE
from gpuinfra.provision.tags import machine_key
from gpuinfra.provision.up import UpOutcome
from gpuinfra.provision.waiting import Progress
from gpuinfra.store import Ledger
from gpuinfra.workspace import make_state_folder

LOG_SECONDS = 20.0
"""The machine is already off at this point, so details are not worth a long wait."""

LOG_WORKERS = 8


def note(settings: Settings, entry: LedgerEntry, progress: Progress) -> None:
    """Add an entry to the workspace's ledger."""
    if settings.ignores_state:
        return
    try:
        Ledger(make_state_folder(settings.state)).add(entry)
    except Problem as problem:
        progress.note(f"warning: {problem.diagnostics[0].summary}: {problem.diagnostics[0].note}")
    except OSError as error:
        progress.note(f"warning: ledger cannot be written: {error}")


def accounted(receipt: Receipt, session: CloudSession, group: str | None = None) -> Receipt:
    """Return the receipt with the cost of the last time on, from the ledger and, if readable, Azure's log.

    `group` is where a machine that does not exist would be.

    If another client stopped the machine since this workspace switched it on, the receipt also says who and when.
    """
    session.cloud.grant(LOG_SECONDS)
    return _accounted(receipt, session, group)


def all_accounted(receipts: Sequence[Receipt], session: CloudSession) -> list[Receipt]:
    """Return receipts with costs like `accounted`, in parallel and within the time for one."""
    session.cloud.grant(LOG_SECONDS)
    pool = ThreadPoolExecutor(LOG_WORKERS, thread_name_prefix="account")
    try:
        return list(pool.map(lambda receipt: _accounted(receipt, session), receipts))
    finally:
        # Do not wait: after Ctrl-C a missing response must not delay the exit.
        pool.shutdown(wait=False, cancel_futures=True)


def _accounted(receipt: Receipt, session: CloudSession, group: str | None = None) -> Receipt:
    group = receipt.group or group
    named = ledger_entries(session.settings, simulated=receipt.simulated, machine=receipt.name)
    # Two machines in two groups may have one name. An entry without a group counts for both.
    key = (group or "").casefold()
    noted = [each for each in named if (each.group or key).casefold() == key]
    last = noted[-1] if noted else None
    since = receipt.billed_from or (last.at if last else None)
    was_on, first = receipt.billed_to is not None, receipt.at - KEPT
    if (since is None and not was_on) or receipt.verified is None or group is None:
        return receipt
    cloud, ref = session.cloud, Ref(Kind.VM, group, receipt.name)
    window = max(since - BEFORE, first) if since else first
    events = _events(cloud, ref, window, receipt.at)
    if was_on and events is not None and window > first and not has_start(events):
        # It was on before the time in its tag, which others may have removed or changed.
        window, events = first, _events(cloud, ref, first, receipt.at)
    if not was_on:
        found = last_time_on(events or ())
        if found is None or last is None or not _is_new(found, last):
            return receipt
        began, ended = found[0] or last.at, found[1]
        receipt = replace(receipt, billed_from=began, billed_to=ended.at, cause=_who(receipt.principal, ended.who))
        if receipt.size is None:
            # Others deleted it, so only the ledger knows what it was.
            receipt = replace(receipt, size=last.size, region=last.region, spot=last.spot, group=group)
    entry = entry_from_receipt(receipt, cloud.subscription)
    return add_cost(receipt, events, window, [*noted, *([entry] if entry else [])])


def _is_new(found: tuple[datetime | None, StateChange], last: LedgerEntry) -> bool:
    """Return whether the ledger does not have the end of this time on. Another client may have started it, too."""
    began, ended = found
    if last.what in {LedgerEntryKind.ON, LedgerEntryKind.CHANGED}:
        return ended.at >= last.at
    return began is not None and began >= last.at


def _events(cloud: Cloud, ref: Ref, since: datetime, until: datetime) -> list[Event] | None:
    """Return one machine's events in Azure's log, or None if it cannot be read."""
    try:
        return read_events(cloud.fleet.activity_log(since, until, ref.id(cloud.subscription)))
    except CloudError:
        return None


def _who(principal: str, caller: str) -> str:
    """Describe who stopped a machine with this identity."""
    return f"{'its own agent' if principal and caller == principal else caller or 'an unknown caller'}, by Azure's log"


SHARED_BEFORE = timedelta(days=30)
"""A machine older than this is recorded when it is switched off as well: Azure's log keeps 90 days."""


def share_end(receipt: Receipt, session: CloudSession, progress: Progress) -> None:
    """Record the times on of a deleted or old machine in Azure, where all workspaces can read them."""
    is_old = receipt.created is not None and receipt.at - receipt.created > SHARED_BEFORE
    is_due = receipt.is_proof and (receipt.deletes or is_old)
    if not is_due or receipt.group is None or receipt.region is None:
        return
    cloud, settings = session.cloud, session.settings
    cloud.grant(LOG_SECONDS)
    key = machine_key(receipt.group, receipt.name)
    noted = ledger_entries(settings, simulated=receipt.simulated, machine=receipt.name)
    own = [each for each in noted if machine_key(each.group or receipt.group, each.machine) == key]
    since, end = receipt.at - KEPT, entry_from_receipt(receipt, cloud.subscription)
    events = _events(cloud, Ref(Kind.VM, receipt.group, receipt.name), since, receipt.at)
    record = record_of(receipt, events, since, [*own, *([end] if end else [])], cloud.subscription)
    try:
        cloud.fleet.add_record(receipt.group, receipt.name, receipt.region, [each.as_json() for each in record])
    except CloudError as error:
        why = "you may not write deployments there" if error.fault is Fault.DENIED else error.code
        progress.note(
            f"warning: the cost of {receipt.name} is not recorded in the subscription, for other workspaces: {why}"
        )


def note_end(settings: Settings, receipt: Receipt, subscription: str, progress: Progress) -> Receipt:
    """Record a machine's end. Return the receipt with what leaving it on overnight would have cost."""
    # A machine that was already off and still exists is not recorded.
    if (receipt.billed_from or (receipt.deletes and receipt.existed)) and (
        entry := entry_from_receipt(receipt, subscription)
    ):
        note(settings, entry, progress)
    # In the reader's time zone, because "overnight" means their night.
    return replace(receipt, left_on_until=next_morning(receipt.at.astimezone()))


def record_lease(session: CloudSession, machine: ObservedResource, progress: Progress) -> None:
    """Record a longer lease. Once a later power-on has overwritten its tag, it is the only bound of an unknown end."""
    cloud = session.cloud
    entry = power_on_entry(
        machine, Price(None), at=cloud.now(), subscription=cloud.subscription, simulated=cloud.simulated
    )
    if entry:
        note(session.settings, entry, progress)


def record_power_on(settings: Settings, outcome: UpOutcome, session: CloudSession, progress: Progress) -> None:
    """Record that `up` switched a machine on, or changed one that is on."""
    plan, cloud = outcome.plan, session.cloud
    machine = outcome.observed.part(Kind.VM) if outcome.observed else None
    changes = [change for change in plan.changes if change.ref.kind is Kind.VM]
    if machine is None or not changes or not plan.wants_running:
        return
    is_new = any(each.action in {Action.ADD, Action.REPLACE} or each.power is Power.START for each in changes)
    # A machine that was already on costs its new price from its restart, or from now.
    since = tags.moment(machine.tags, tags.ON_SINCE) if plan.restarts else None
    at = None if is_new else since or cloud.now()
    entry = power_on_entry(machine, plan.price, at=at, subscription=cloud.subscription, simulated=cloud.simulated)
    if entry:
        note(settings, entry, progress)
