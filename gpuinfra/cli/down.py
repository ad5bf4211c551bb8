"""`gpuinfra down`: off, or gone, and proven."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gpuinfra.cli.interrupted import say_what_exists
from gpuinfra.cli.options import Settings, begin
from gpuinfra.cli.turns import Turns

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
                receipts.append(_end(settings, named, progress, delete=delete))
    view.show(receipts, turns.diagnostics, json=settings.json)
    return turns.exit_code(left_behind=not all(receipt.is_proof for receipt in receipts))


def _end(settings: Settings, named: Named, progress: ProgressView, *, delete: bool) -> Receipt:
    from gpuinfra.cli.machines import explained, reach
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
    )
    try:
        with explained(f"{'deleting' if delete else 'deallocating'} {named.name}"):
            return ending.delete() if delete else ending.deallocate()
    except KeyboardInterrupt:
        say_what_exists(reached, named.name, named.group, progress)
        raise
