"""Deallocate or delete a machine, and verify the result."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from gpuinfra.app.access import CloudSession, cloud_errors, open_session, say_what_exists
from gpuinfra.app.consent import Request, require_consent
from gpuinfra.app.frontend import Frontend
from gpuinfra.app.host_keys import forget_host_key, source_of_up
from gpuinfra.app.ledger_recording import accounted, note_end
from gpuinfra.app.machine_costs import ledger_entries, with_costs
from gpuinfra.app.machine_names import Named, named_machines, unknown_machine
from gpuinfra.app.machine_tasks import ErrorCollector, Teardowns, for_each, say_states
from gpuinfra.app.settings import Settings
from gpuinfra.app.settlement import settle_runs
from gpuinfra.diagnostics import Exit, Problem
from gpuinfra.models.consent import Effect
from gpuinfra.models.ledger import LedgerEntry, LedgerEntryKind
from gpuinfra.models.receipt import OffProof, Receipt
from gpuinfra.models.resource import MachineId
from gpuinfra.models.run import DELETED_WITH_OUTPUTS, END_IS_LATEST, RunState
from gpuinfra.models.target import unreached_target
from gpuinfra.provision.costing.activity import KEPT
from gpuinfra.provision.down import Teardown
from gpuinfra.provision.errors import CloudError
from gpuinfra.provision.waiting import Deadline
from gpuinfra.store.history import History

SECONDS = 2700.0
# After the deadline, Azure is still asked for the state that the receipt shows.
LOOK_SECONDS = 30.0
LOG_SECONDS = 20.0


def down(
    settings: Settings, words: Sequence[str], frontend: Frontend, *, delete: bool, seconds: float = SECONDS
) -> DownResult:
    """Stop all machines that the words mean, at the same time, each within `seconds`."""

    def task(named: Named, settings: Settings, frontend: Frontend) -> Receipt:
        return end_machine(settings, named, frontend, delete=delete, asks=True, seconds=seconds)

    errors = ErrorCollector()
    machines = named_machines(settings, words, frontend, errors)
    done = for_each(machines, task, settings, frontend, errors=errors, name_of=lambda each: each.name)
    if isinstance(done.ended_by, KeyboardInterrupt):
        finished = frozenset(receipt.name for receipt in done.results if receipt.is_proof)
        say_states(settings, machines, frontend, down=Teardowns(delete, finished))
    return DownResult(machines, done.results, errors, done.ended_by)


@dataclass(frozen=True)
class DownResult:
    """The receipts of all machines that were stopped, and the problems with the others."""

    machines: list[Named]
    receipts: list[Receipt]
    errors: ErrorCollector
    ended_by: BaseException | None
    """Raise it after the result was shown."""

    @property
    def exit_code(self) -> Exit:
        """4 unless each machine was seen off. A wrong word alone is 2."""
        is_left = not all(receipt.is_proof for receipt in self.receipts) or self.errors.has_failure
        return self.errors.exit_code(left_behind=is_left)


def end_machine(
    settings: Settings,
    named: Named,
    frontend: Frontend,
    *,
    delete: bool,
    cause: str = "gpuinfra down",
    asks: bool = False,
    seconds: float = SECONDS,
) -> Receipt:
    """Deallocate or delete one machine, and return the receipt. `cause` says who stops it, for the receipt.

    With `asks`, stopping runs or losing outputs needs consent.
    """
    session = open_session(settings, named.subscription, seconds + LOOK_SECONDS, frontend, writes=True)
    deadline = Deadline.after(seconds)
    try:
        with cloud_errors(f"{'deleting' if delete else 'deallocating'} {named.name}"):
            if asks:
                _require_consent(session, named, frontend, delete=delete)
            receipt = tear_down(session, named, frontend, deadline, delete=delete, cause=cause)
    except KeyboardInterrupt:
        say_what_exists(session, named.name, named.group, frontend)
        raise
    if delete and receipt.is_proof:
        if named.group:
            gone = unreached_target(named.name, named.name, "", simulated=receipt.simulated)
            forget_host_key(gone, source_of_up(session.cloud.subscription, named.group))
        place = session.machine_id(named.name, receipt.group or named.group)
        forget_jobs(settings, place, simulated=receipt.simulated)
    return receipt


def tear_down(
    session: CloudSession, named: Named, frontend: Frontend, deadline: Deadline, *, delete: bool, cause: str
) -> Receipt:
    """Deallocate or delete a machine, record it in the ledger, and return the receipt with its cost."""
    teardown = Teardown(named.name, named.group, session.task(named.name, frontend, deadline), cause)
    receipt = teardown.delete() if delete else teardown.deallocate()
    receipt = accounted(_proven(session, named, receipt), session, named.group)
    return note_end(session.settings, receipt, session.cloud.subscription, frontend)


def _require_consent(session: CloudSession, named: Named, frontend: Frontend, *, delete: bool) -> None:
    request = Request(
        named.name,
        named.group,
        Effect.DELETE_DISK if delete else Effect.POWER_OFF,
        command=f"gpuinfra down {named.name}",
        delete=delete,
        is_down=True,
    )
    require_consent(request, session, None, frontend)


def forget_jobs(settings: Settings, machine: MachineId, *, simulated: bool) -> None:
    """Close the runs on a deleted disk, so that no client waits for them and a new machine of that name has none.

    A machine in the sandbox may have the name of a real one, which still exists with its disk. So only runs with the
    same `simulated` count.
    """
    history, name = History(settings.state), machine.name
    with suppress(Problem):  # the deletion is proven, even if the history cannot be written
        found = {run.id: run for run in (*history.unfinished(name), *history.unfetched(name))}
        own = [run for run in found.values() if run.simulated == simulated and run.is_of(name, str(machine))]
        if not own:
            return
        gone, now = f"{name} {DELETED_WITH_OUTPUTS}", datetime.now(UTC)
        lost = {"state": RunState.LOST, "reason": f"{name} was deleted", "ended": now}
        # The machine may have ended before this command: Azure's log has the time.
        settled = settle_runs(settings, own).runs
        for run in settled:
            if not run.state.is_over or (run.started and run.ended is None):
                history.update(run.id, warnings=(*run.warnings, END_IS_LATEST), **lost)
        for run in with_costs(settings, [history.find(run.id) for run in settled], now):
            warnings = run.warnings if gone in run.warnings else (*run.warnings, gone)
            history.update(run.id, machine="", cost_usd=run.cost_usd, warnings=warnings)


# Proof for an absent machine: a misspelt name or a wrong subscription is not "off"


def _proven(session: CloudSession, named: Named, receipt: Receipt) -> Receipt:
    """Return a receipt that reports "gone" only for what existed. Raise Problem for a name that nothing knows.

    In a group that a spec names, an absent machine is a valid answer, shown as "does not exist".
    """
    if receipt.existed or receipt.verified is not OffProof.ABSENT:
        return receipt
    entries = ledger_entries(session.settings, simulated=session.cloud.simulated, machine=named.name)
    if left := _on_in_another_subscription(entries, session.cloud.subscription):
        return replace(receipt, verified=None, left=(*receipt.left, left))
    if _is_remembered(session, named, entries):
        return replace(receipt, existed=True)
    if named.group is None:
        raise unknown_machine(session.settings, named.name, session.cloud.fleet.machines())
    return receipt


def _on_in_another_subscription(entries: Sequence[LedgerEntry], subscription: str) -> str | None:
    """Describe a machine that was switched on in another subscription and whose end is unknown, or return None."""
    last = {each.subscription: each for each in entries if each.subscription}
    for each in last.values():
        if each.subscription != subscription and each.what in {LedgerEntryKind.ON, LedgerEntryKind.CHANGED}:
            return (
                f"vm {each.machine} in subscription {each.subscription} was switched on from this workspace, and this "
                f"was for subscription {subscription}: `AZURE_SUBSCRIPTION_ID={each.subscription}` selects it"
            )
    return None


def _is_remembered(session: CloudSession, named: Named, entries: Sequence[LedgerEntry]) -> bool:
    """Return whether the ledger or Azure's activity log knows the machine in this subscription and group."""
    cloud, place = session.cloud, session.machine_id(named.name, named.group)
    here = (each for each in entries if each.subscription in {"", cloud.subscription})
    if any(named.group is None or (each.group or named.group).casefold() == named.group.casefold() for each in here):
        return True
    now = cloud.now()
    cloud.grant(LOG_SECONDS)
    with suppress(CloudError):
        return bool(cloud.fleet.activity_log(now - KEPT, now, str(place)))
    return False
