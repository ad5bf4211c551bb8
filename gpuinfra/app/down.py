"""Deallocate or delete a machine, and verify the result; find machines without a spec that are still on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from gpuinfra.app.access import CloudSession, cloud_errors, is_simulated, open_cloud, open_session, say_what_exists
from gpuinfra.app.consent import Request, require_consent
from gpuinfra.app.frontend import Frontend, ask_or_refuse
from gpuinfra.app.host_keys import forget_host_key, source_of_up
from gpuinfra.app.ledger_recording import accounted, note_end, share_end
from gpuinfra.app.machine_costs import ledger_entries, with_costs
from gpuinfra.app.machine_names import Named, machine_of_spec, named_machines, unknown_machine
from gpuinfra.app.machine_tasks import ErrorCollector, Teardowns, for_each, say_states
from gpuinfra.app.settings import Settings
from gpuinfra.app.settlement import settle_runs
from gpuinfra.app.specs import default_specs
from gpuinfra.app.targets import remove_targets
from gpuinfra.diagnostics import Code, Exit, Problem, problem
from gpuinfra.models.consent import Effect, MachineAnswer, Question
from gpuinfra.models.plan import Kind, MachineId
from gpuinfra.models.receipt import LedgerEntry, LedgerEntryKind, OffProof, Receipt
from gpuinfra.models.run import DELETED_WITH_OUTPUTS, END_IS_LATEST, RunState
from gpuinfra.models.spec import Spec
from gpuinfra.models.target import unreached_target
from gpuinfra.parse.files import load_paths
from gpuinfra.provision.costing.activity import KEPT
from gpuinfra.provision.down import Teardown
from gpuinfra.provision.errors import CloudError
from gpuinfra.provision.ownership import Owner, owner_of
from gpuinfra.provision.power import BILLED
from gpuinfra.provision.tags import default_group, machine_key, ref_of
from gpuinfra.provision.waiting import Deadline, Progress
from gpuinfra.store import History

SECONDS = 2700.0
# After the deadline, Azure is still asked for the state that the receipt shows.
LOOK_SECONDS = 30.0
LOG_SECONDS = 20.0


def down(
    settings: Settings, words: Sequence[str], frontend: Frontend, *, delete: bool, seconds: float = SECONDS
) -> DownResult:
    """Stop all machines that the words mean, at the same time, each within `seconds`; see `_default_machines`."""

    def task(named: Named, settings: Settings, frontend: Frontend) -> Receipt:
        return end_machine(settings, named, frontend, delete=delete, asks=True, seconds=seconds)

    errors = ErrorCollector()
    if words:
        machines = named_machines(settings, words, frontend, errors)
    else:
        machines = _default_machines(settings, frontend, delete=delete)
    done = for_each(machines, task, settings, frontend, errors=errors, name_of=lambda each: each.name)
    if isinstance(done.ended_by, KeyboardInterrupt):
        finished = frozenset(receipt.name for receipt in done.results if receipt.is_proof)
        say_states(settings, machines, frontend, down=Teardowns(delete, finished))
    return DownResult(machines, done.results, errors, done.ended_by)


def _default_machines(settings: Settings, frontend: Frontend, *, delete: bool) -> list[Named]:
    """Return the machines of `gpu.yaml`, else of all specs in the workspace, and name them.

    To stop several, or to delete one, that the user did not name needs consent.
    """
    found = default_specs(settings, allows_several=True)
    names = ", ".join(f"{each.spec.name} ({each.span.file})" for each in found)
    verb = "deletes" if delete else "switches off"
    frontend.note(f"`down` without a name {verb} {names}")
    if len(found) > 1 or delete:
        question = Question("Delete them with their disks?" if delete else f"Switch off {len(found)} machines?")
        help_line = "name the machines; or `--yes` to stop all of them"
        refusal = problem(
            Code.NEEDS_CONSENT, "no machine was named", f"nothing was changed: {names}", help_line, exit_code=Exit.USAGE
        )
        ask_or_refuse(settings, frontend, question, refusal)
    return [machine_of_spec(each.spec) for each in found]


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


def end_machine(  # noqa: PLR0913 options are passed by name
    settings: Settings,
    named: Named,
    frontend: Frontend,
    *,
    delete: bool,
    cause: str = "gpuinfra down",
    asks: bool = False,
    closed_until: float = 0.0,
    seconds: float = SECONDS,
) -> Receipt:
    """Deallocate or delete one machine, and return the receipt. `cause` says who stops it, for the receipt.

    With `asks`, stopping runs or losing outputs needs consent. `closed_until` as in `MachineRuns`.
    """
    session = open_session(settings, named.subscription, seconds + LOOK_SECONDS, frontend, writes=True)
    deadline = Deadline.after(seconds)
    try:
        with cloud_errors(f"{'deleting' if delete else 'deallocating'} {named.name}"):
            if asks:
                answer = _require_consent(session, named, frontend, delete=delete)
                closed_until = answer.closed_until if answer else 0.0
            receipt = tear_down(
                session, named, frontend, deadline, delete=delete, cause=cause, closed_until=closed_until
            )
    except KeyboardInterrupt:
        say_what_exists(session, named.name, named.group, frontend)
        raise
    if delete and receipt.is_proof:
        place = session.machine_id(named.name, receipt.group or named.group)
        forget_machine(settings, place, frontend, simulated=receipt.simulated)
    return receipt


def tear_down(
    session: CloudSession,
    named: Named,
    frontend: Frontend,
    deadline: Deadline,
    *,
    delete: bool,
    cause: str,
    closed_until: float = 0.0,
) -> Receipt:
    """Deallocate or delete a machine, record it in the ledger, and return the receipt with its cost."""
    task = session.task(named.name, frontend, deadline)
    teardown = Teardown(named.name, named.group, task, cause, closed_until, LOOK_SECONDS)
    receipt = teardown.delete() if delete else teardown.deallocate()
    receipt = accounted(_proven(session, named, receipt), session, named.group)
    share_end(receipt, session, frontend)
    return note_end(session.settings, receipt, session.cloud.subscription, frontend)


def _require_consent(session: CloudSession, named: Named, frontend: Frontend, *, delete: bool) -> MachineAnswer | None:
    request = Request(
        named.name,
        named.group,
        Effect.DELETE_DISK if delete else Effect.POWER_OFF,
        command=f"gpuinfra down {named.name}",
        delete=delete,
        is_down=True,
    )
    return require_consent(request, session, None, frontend)


def forget_machine(settings: Settings, machine: MachineId, frontend: Frontend, *, simulated: bool) -> None:
    """Forget the host key, the targets and the unfinished runs of a deleted machine."""
    gone = unreached_target(machine.name, machine.name, "", simulated=simulated)
    forget_host_key(gone, source_of_up(machine.subscription, machine.group_name))
    remove_targets(settings, machine, frontend, simulated=simulated)
    forget_jobs(settings, machine, simulated=simulated)


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


LEFT_ON_SECONDS = 20.0


def note_left_on(settings: Settings, names: Iterable[str], progress: Progress) -> None:
    """Print a line for each such machine that is on, according to Azure.

    `names` are the machines of this command, which reports them itself. What cannot be read prints nothing.
    """
    if settings.ignores_state:
        return
    simulated = is_simulated(settings)
    with suppress(Problem, CloudError, OSError):
        entries = ledger_entries(settings, simulated=simulated)
        if not entries:
            return
        specs = [each.spec for each in load_paths([str(settings.folder)]).specs]
        for entry in without_spec(entries, specs, {name.casefold() for name in names}):
            if _is_on(settings, entry):
                command = f"gpuinfra down {entry.machine}{' --sandbox' if simulated else ''}"
                progress.note(f"{entry.machine} was switched on from this workspace and is still on: `{command}`")


def without_spec(entries: Sequence[LedgerEntry], specs: Iterable[Spec], names: Collection[str]) -> list[LedgerEntry]:
    """Return the last entry of each machine that was switched on and not off, and has no spec."""
    described = {machine_key(spec.group_name, spec.name) for spec in specs}
    last: dict[tuple[str, str], LedgerEntry] = {}
    for entry in entries:
        key = machine_key(entry.group or default_group(entry.machine), entry.machine)
        last[entry.subscription, key] = entry
    return [
        entry
        for (_, key), entry in last.items()
        if entry.what in {LedgerEntryKind.ON, LedgerEntryKind.CHANGED}
        and key not in described
        and entry.machine.casefold() not in names
    ]


def _is_on(settings: Settings, entry: LedgerEntry) -> bool:
    cloud = open_cloud(settings, entry.subscription or None, LEFT_ON_SECONDS)
    if entry.subscription and entry.subscription != cloud.subscription:
        return False
    found = cloud.look(ref_of(Kind.VM, entry.group or default_group(entry.machine), entry.machine))
    return found is not None and owner_of(found) is Owner.OURS and found.power in BILLED
