"""`gpuinfra down`: deallocate or delete machines, and verify it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gpuinfra.cli.options import begin, frontend

if TYPE_CHECKING:
    from gpuinfra.models.receipt import Receipt


def down(
    context: typer.Context,
    machines: Annotated[
        list[str], typer.Argument(metavar="MACHINE", help="Specs, folders of specs, machine names or targets.")
    ],
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete the machine and all its resources, including the disk.")
    ] = False,
) -> int:
    """Deallocate machines, and verify with Azure that billing has stopped. A missing machine counts as off."""
    from gpuinfra.app.down import end_machine
    from gpuinfra.app.error_collector import ErrorCollector
    from gpuinfra.app.left_on import note_left_on
    from gpuinfra.app.machine_names import named_machines
    from gpuinfra.views import receipt as view

    settings = begin(context, needs_state=False)
    receipts: list[Receipt] = []
    errors = ErrorCollector()
    with frontend(settings) as progress:
        meant = named_machines(settings, machines, progress, errors)
        for named in meant:
            with errors.capture():
                receipts.append(end_machine(settings, named, progress, delete=delete, asks=True))
    view.show(receipts, errors.diagnostics, json=settings.json)
    with frontend(settings) as progress:
        note_left_on(settings, [named.name for named in meant], progress)
    return errors.exit_code(left_behind=not all(receipt.is_proof for receipt in receipts))
