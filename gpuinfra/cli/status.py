"""`gpuinfra status`: show all machines in the subscription."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from gpuinfra.cli import completion
from gpuinfra.cli.options import open_frontend, start_command
from gpuinfra.diagnostics import Exit

if TYPE_CHECKING:
    from gpuinfra.app.status import StatusQuery
    from gpuinfra.models.machine import Machine
    from gpuinfra.views.status import StatusWatch


def status(
    context: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            autocompletion=completion.machines,
            metavar="NAME",
            help="Machine names, targets or specs. Default: all machines.",
        ),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Repeat until Ctrl-C.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=1, max=3600, help="Time between updates of --watch.")
    ] = 5,
    agent: Annotated[
        bool, typer.Option("--agent", help="Also show the guest agents of running machines, over SSH.")
    ] = False,
) -> int:
    """Show machines: power state, price, cost, lease, next change, and differences from their specs."""
    from gpuinfra.app.access import cloud_errors
    from gpuinfra.app.status import open_status, settle_stopped
    from gpuinfra.views import status as view

    settings = start_command(context, needs_state=False)
    with open_frontend(settings) as frontend, cloud_errors("listing machines"):
        query = open_status(settings, names or [], frontend, agents=agent)
        machines, now = query.look()
        mismatch = None if watch or names else query.mismatch()
    settle_stopped(settings, machines)
    if not watch:
        view.show(
            machines,
            now,
            json=settings.json,
            simulated=query.simulated,
            left_alone=query.left_alone,
            notes=query.notes,
            mismatch=mismatch,
        )
        return Exit.DONE
    try:
        with view.StatusWatch(json=settings.json, simulated=query.simulated) as shown, cloud_errors("listing machines"):
            _watch(query, shown, interval, machines, now)
    except KeyboardInterrupt:
        pass  # it is how a watch ends
    return Exit.DONE


def _watch(query: StatusQuery, shown: StatusWatch, interval: float, machines: list[Machine], now: datetime) -> None:
    from gpuinfra.app.status import is_passing

    query.report_waits(lambda reason, seconds: shown.trouble(f"waiting {seconds:.0f} s: {reason}"))
    shown.show(machines, now)
    while True:
        time.sleep(interval)
        try:
            shown.show(*query.look(strict=False))
        except Exception as error:
            if not is_passing(error):
                raise
            shown.trouble(f"Azure does not answer: {error}")
