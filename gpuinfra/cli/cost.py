"""`gpuinfra cost`: what machines cost, and what was saved."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuinfra.cli.options import open_frontend, start_command
from gpuinfra.diagnostics import Exit


def cost(
    context: typer.Context,
    since: Annotated[
        str,
        typer.Option(
            "--since",
            metavar="WHEN",
            help="Start of the period: a duration such as `7d` or `12h`, or a date such as 2026-11-01.",
        ),
    ] = "30d",
    by: Annotated[
        str | None,
        typer.Option("--by", metavar="WHAT", help="One row per machine, run or tag.", show_default=False),
    ] = None,
    tag: Annotated[
        str | None, typer.Option("--tag", metavar="NAME", help="The tag for `--by tag`.", show_default=False)
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV on stdout.")] = False,
) -> int:
    """Show what machines cost: compute, disks and public IPs, from Azure's log and this workspace's records."""
    from gpuinfra.app.cost import cost as count_cost
    from gpuinfra.app.cost import usage
    from gpuinfra.views import cost as view

    settings = start_command(context)
    if csv and settings.json:
        raise usage("two output formats", "`--csv` and `--json` exclude each other", "use one of them")
    with open_frontend(settings) as frontend:
        report = count_cost(settings, since, by, tag, frontend)
    if csv:
        view.show_csv(report)
    else:
        view.show(report, tag, json=settings.json)
    return Exit.DONE
