"""`gpuinfra down`: off, or gone, and proven."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from gpuinfra.cli.interrupted import say_what_exists
from gpuinfra.cli.options import Settings, begin
from gpuinfra.cli.turns import Turns
from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem

if TYPE_CHECKING:
    from gpuinfra.cli.machines import Named
    from gpuinfra.models.receipt import Receipt
    from gpuinfra.views.progress import ProgressView

SECONDS = 2700.0


def down(
    context: typer.Context,
    machines: Annotated[
        list[str], typer.Argument(metavar="MACHINE", help="Specs, or names of machines: no spec is needed.")
    ],
    delete: Annotated[
        bool, typer.Option("--delete", help="Remove all that was made for it, the disk and what is on it included.")
    ] = False,
) -> int:
    """Deallocate machines, so that they are billed no more, and prove it. Absent is off."""
    from gpuinfra.cli.machines import named_machines, progress_view
    from gpuinfra.views import receipt as view

    settings = begin(context)
    found = named_machines(machines)
    receipts: list[Receipt] = []
    turns = Turns()
    with progress_view(settings) as progress:
        for named in found:
            with turns.take():
                if delete:
                    _check_outputs(settings, named)
                receipts.append(end_machine(settings, named, progress, delete=delete))
    view.show(receipts, turns.diagnostics, json=settings.json)
    return turns.exit_code(left_behind=not all(receipt.is_proof for receipt in receipts))


def _check_outputs(settings: Settings, named: Named) -> None:
    """What a job wrote and nobody has fetched is on the disk, and would go with it."""
    from gpuinfra.cli.neighbours import runs_on
    from gpuinfra.workspace import STATE, find_workspace
    from runner.results.history import History

    if settings.yes:
        return
    history = History(find_workspace(settings.workspace) / STATE)
    if left := [run.id for run in history.unfetched(named.name)]:
        raise _would_lose(named, left, f"`gpuinfra outputs {left[0]}` fetches it")
    # Of its own runs a workspace knows more by itself.
    own = {run.id for run in history.list()}
    strange = [each for each in runs_on(settings, named.name) if each.run not in own]
    if left := [each.run for each in strange if each.has_outputs or not each.is_over]:
        raise _would_lose(named, left, "another workspace sent it, and `gpuinfra outputs` fetches it there")


def _would_lose(named: Named, runs: list[str], remedy: str) -> Problem:
    return Problem(
        Diagnostic(
            Code.NEEDS_CONSENT,
            "this would lose outputs",
            note=f"what {', '.join(runs[:5])} wrote on `{named.name}` was not fetched; nothing was changed",
            help=f"{remedy}; `--yes` deletes it",
        ),
        exit_code=Exit.USAGE,
    )


def end_machine(
    settings: Settings, named: Named, progress: ProgressView, *, delete: bool, cause: str = "gpuinfra down"
) -> Receipt:
    """One machine off, or gone; and the proof. `cause` is who ends it, for the receipt."""
    receipt = _ended(settings, named, progress, delete=delete, cause=cause)
    if delete and receipt.is_proof:
        forget_jobs(settings, named.name, simulated=receipt.simulated)
    return receipt


def forget_jobs(settings: Settings, name: str, *, simulated: bool) -> None:
    """What was on the disk is gone: no job is waited for any more, and a new machine of that name has none of it.

    A machine of the embedded Azure may have the name of a real one, which is there, with all that is on its disk.
    """
    from datetime import UTC, datetime

    from gpuinfra.cli.accounts import with_costs
    from gpuinfra.models.run import RunState
    from gpuinfra.workspace import STATE, find_workspace
    from runner.results.history import History

    history = History(find_workspace(settings.workspace) / STATE)
    with suppress(Problem):  # that it is gone is proven, whatever can be written here
        found = {run.id: run for run in (*history.unfinished(name), *history.unfetched(name))}
        own = [run for run in found.values() if run.simulated == simulated]
        for run in with_costs(settings, own, datetime.now(UTC)):
            gone = f"{name} was deleted with outputs that were not fetched"
            lost = {} if run.state.is_over else {"state": RunState.LOST, "reason": f"{name} was deleted"}
            history.update(run.id, machine="", cost_usd=run.cost_usd, warnings=(*run.warnings, gone), **lost)


def _ended(settings: Settings, named: Named, progress: ProgressView, *, delete: bool, cause: str) -> Receipt:
    from gpuinfra.cli.machines import explained, reach
    from gpuinfra.cli.noting import accounted, note_end
    from provision.down import Ending

    reached = reach(settings, named.subscription, SECONDS, progress, writes=True)
    ending = Ending(
        name=named.name,
        group=named.group,
        cloud=reached.cloud,
        market=reached.market,
        progress=progress,
        journal=reached.journal(named.name),
        deadline=reached.cloud.clients.patience.deadline,
        cause=cause,
    )
    try:
        with explained(f"{'deleting' if delete else 'deallocating'} {named.name}"):
            receipt = ending.delete() if delete else ending.deallocate()
            receipt = accounted(receipt, reached)
            return note_end(settings, receipt, reached.cloud.subscription, progress)
    except KeyboardInterrupt:
        say_what_exists(reached, named.name, named.group, progress)
        raise
