"""Deallocate or delete a machine, and verify the result."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuinfra.app.interruption import say_what_exists
from gpuinfra.app.settings import Settings
from gpuinfra.diagnostics import Exit, Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuinfra.app.access import CloudSession
    from gpuinfra.app.frontend import Frontend
    from gpuinfra.app.machine_names import Named
    from gpuinfra.app.machine_tasks import ErrorCollector
    from gpuinfra.models.receipt import Receipt
    from gpuinfra.models.resource import MachineId
    from gpuinfra.provision.waiting.deadline import Deadline

SECONDS = 2700.0
# After the deadline, Azure is still asked for the state that the receipt shows.
LOOK_SECONDS = 30.0


def down(
    settings: Settings, words: Sequence[str], frontend: Frontend, *, delete: bool, seconds: float = SECONDS
) -> DownResult:
    """Stop all machines that the words mean, at the same time, each within `seconds`."""
    from gpuinfra.app.interruption import say_states
    from gpuinfra.app.machine_names import named_machines
    from gpuinfra.app.machine_tasks import ErrorCollector, for_each

    def task(named: Named, settings: Settings, frontend: Frontend) -> Receipt:
        return end_machine(settings, named, frontend, delete=delete, asks=True, seconds=seconds)

    errors = ErrorCollector()
    machines = named_machines(settings, words, frontend, errors)
    done = for_each(machines, task, settings, frontend, errors=errors, name_of=lambda each: each.name)
    if isinstance(done.ended_by, KeyboardInterrupt):
        say_states(settings, machines, frontend, delete=delete, is_down=True)
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


def _require_consent(session: CloudSession, named: Named, frontend: Frontend, *, delete: bool) -> None:
    from gpuinfra.app.consent import Request, require_consent
    from gpuinfra.models.consent import Effect

    request = Request(
        named.name,
        named.group,
        Effect.DELETE_DISK if delete else Effect.POWER_OFF,
        command=f"gpuinfra down {named.name}",
        delete=delete,
        is_down=True,
    )
    require_consent(request, session, None, frontend)


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
    from gpuinfra.app.access import open_session
    from gpuinfra.provision.waiting.deadline import Deadline

    session = open_session(settings, named.subscription, seconds + LOOK_SECONDS, frontend, writes=True)
    deadline = Deadline.after(seconds)
    receipt = _ended(session, named, frontend, deadline, delete=delete, cause=cause, asks=asks)
    if delete and receipt.is_proof:
        place = session.machine_id(named.name, receipt.group or named.group)
        forget_jobs(settings, place, simulated=receipt.simulated)
    return receipt


def forget_jobs(settings: Settings, machine: MachineId, *, simulated: bool) -> None:
    """Close the runs on a deleted disk, so that no client waits for them and a new machine of that name has none.

    A machine in the sandbox may have the name of a real one, which still exists with its disk. So only runs with the
    same `simulated` count.
    """
    from datetime import UTC, datetime

    from gpuinfra.app.accounts import with_costs
    from gpuinfra.models.run import DELETED_WITH_OUTPUTS, RunState
    from gpuinfra.store.history import History

    history, name = History(settings.state), machine.name
    with suppress(Problem):  # the deletion is proven, even if the history cannot be written
        found = {run.id: run for run in (*history.unfinished(name), *history.unfetched(name))}
        own = [run for run in found.values() if run.simulated == simulated and run.is_of(name, str(machine))]
        now = datetime.now(UTC)
        for run in with_costs(settings, own, now):
            gone = f"{name} {DELETED_WITH_OUTPUTS}"
            lost = {"state": RunState.LOST, "reason": f"{name} was deleted", "ended": now}
            lost = {} if run.state.is_over else lost
            history.update(run.id, machine="", cost_usd=run.cost_usd, warnings=(*run.warnings, gone), **lost)


def _ended(
    session: CloudSession,
    named: Named,
    frontend: Frontend,
    deadline: Deadline,
    *,
    delete: bool,
    cause: str,
    asks: bool,
) -> Receipt:
    from gpuinfra.app.access import cloud_errors
    from gpuinfra.app.host_keys import forget_host_key, source_of_up
    from gpuinfra.app.ledger_recording import accounted, note_end
    from gpuinfra.app.machine_names import proven
    from gpuinfra.models.target import unreached_target
    from gpuinfra.provision.down import Teardown

    ending = Teardown(
        name=named.name,
        group=named.group,
        cloud=session.cloud,
        market=session.market,
        progress=frontend,
        journal=session.journal(named.name),
        deadline=deadline,
        cause=cause,
    )
    try:
        with cloud_errors(f"{'deleting' if delete else 'deallocating'} {named.name}"):
            if asks:
                _require_consent(session, named, frontend, delete=delete)
            receipt = ending.delete() if delete else ending.deallocate()
            receipt = accounted(proven(session, named, receipt), session)
            receipt = note_end(session.settings, receipt, session.cloud.subscription, frontend)
    except KeyboardInterrupt:
        say_what_exists(session, named.name, named.group, frontend)
        raise
    if delete and receipt.is_proof and named.group:
        gone = unreached_target(named.name, named.name, "", simulated=receipt.simulated)
        forget_host_key(gone, source_of_up(session.cloud.subscription, named.group))
    return receipt
