"""`gpuinfra down`: off, or gone, and proven."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gpuinfra.cli.options import begin, frontend

if TYPE_CHECKING:
    from gpuinfra.models.receipt import Receipt


def down(
    context: typer.Context,
    machines: Annotated[
        list[str], typer.Argument(metavar="MACHINE", help="Specs, folders of specs, or names of machines or targets.")
    ],
    delete: Annotated[
        bool, typer.Option("--delete", help="Remove all that was made for it, the disk and what is on it included.")
    ] = False,
) -> int:
    """Deallocate machines, so that they are billed no more, and prove it. Absent is off."""
    from gpuinfra.app.down import end_machine
    from gpuinfra.app.error_collector import ErrorCollector
    from gpuinfra.app.machine_names import named_machines
    from gpuinfra.views import receipt as view

    settings = begin(context, needs_state=False)
    receipts: list[Receipt] = []
    errors = ErrorCollector()
    with frontend(settings) as progress:
        for named in named_machines(settings, machines, progress, errors):
            with errors.capture():
                receipts.append(end_machine(settings, named, progress, delete=delete, asks=True))
    view.show(receipts, errors.diagnostics, json=settings.json)
    return errors.exit_code(left_behind=not all(receipt.is_proof for receipt in receipts))
