"""Record in the ledger what commands do to machines. A write error is a warning, never a failure."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime

from gpuinfra.app.access import CloudSession
from gpuinfra.app.machine_costs import BEFORE, ledger_entries
from gpuinfra.app.settings import Settings
from gpuinfra.diagnostics import Problem
from gpuinfra.models.ledger import LedgerEntry, LedgerEntryKind, entry_from_receipt
from gpuinfra.models.plan import Action, Power
from gpuinfra.models.receipt import Receipt, next_morning
from gpuinfra.models.resource import Kind, Ref
from gpuinfra.provision import tags
from gpuinfra.provision.cloud import Cloud
from gpuinfra.provision.costing.activity import KEPT, Event, last_time_on, read_events
from gpuinfra.provision.costing.recording import add_cost, power_on_entry
from gpuinfra.provision.errors import CloudError
from gpuinfra.provision.progress import Progress
from gpuinfra.provision.up import UpOutcome
from gpuinfra.store.ledger import Ledger
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
    begun = noted[-1] if noted and noted[-1].what in {LedgerEntryKind.ON, LedgerEntryKind.CHANGED} else None
    since = receipt.billed_from or (begun.at if begun else None)
    if since is None or receipt.verified is None or group is None:
        return receipt
    cloud, ref = session.cloud, Ref(Kind.VM, group, receipt.name)
    window = max(since - BEFORE, receipt.at - KEPT)
    events = _events(cloud, ref, window, receipt.at)
    if receipt.billed_from is None:
        found = last_time_on(events or ())
        if found is None or begun is None or found[1].at < begun.at:
            return receipt
        began, ended = found[0] or begun.at, found[1]
        receipt = replace(receipt, billed_from=began, billed_to=ended.at, cause=_who(cloud, ref, ended.who))
        if receipt.size is None:
            # Others deleted it, so only the ledger knows what it was.
            receipt = replace(receipt, size=begun.size, region=begun.region, spot=begun.spot, group=group)
    entry = entry_from_receipt(receipt, cloud.subscription)
    return add_cost(receipt, events, window, [*noted, *([entry] if entry else [])])


def _events(cloud: Cloud, ref: Ref, since: datetime, until: datetime) -> list[Event] | None:
    """Return one machine's events in Azure's log, or None if it cannot be read."""
    try:
        return read_events(cloud.fleet.activity_log(since, until, ref.id(cloud.subscription)))
    except CloudError:
        return None


def _who(cloud: Cloud, ref: Ref, caller: str) -> str:
    """Describe who stopped a machine."""
    try:
        machine = cloud.look(ref)
    except CloudError:
        machine = None
    identity = str(((machine.body.get("identity") or {}) if machine else {}).get("principalId") or "")
    return f"{'its own agent' if identity and caller == identity else caller or 'an unknown caller'}, by Azure's log"


def note_end(settings: Settings, receipt: Receipt, subscription: str, progress: Progress) -> Receipt:
    """Record a machine's end. Return the receipt with what leaving it on overnight would have cost."""
    # A machine that was already off and still exists is not recorded.
    if (receipt.billed_from or (receipt.deletes and receipt.existed)) and (
        entry := entry_from_receipt(receipt, subscription)
    ):
        note(settings, entry, progress)
    # In the reader's time zone, because "overnight" means their night.
    return replace(receipt, left_on_until=next_morning(receipt.at.astimezone()))


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
