"""`gpuinfra cost`: what machines have cost, and what was saved."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuinfra.cli.options import begin, frontend
from gpuinfra.diagnostics import Exit


def cost(
    context: typer.Context,
    since: Annotated[
        str, typer.Option("--since", metavar="WHEN", help="How far back: `7d`, `12h`, or a day such as 2026-11-01.")
    ] = "30d",
    by: Annotated[
        str | None,
        typer.Option("--by", metavar="WHAT", help="machine, run or tag: what has a line.", show_default=False),
    ] = None,
    tag: Annotated[
        str | None, typer.Option("--tag", metavar="NAME", help="With `--by tag`: the tag's name.", show_default=False)
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Comma-separated values on stdout.")] = False,
) -> int:
    """Show what machines have cost: time, disks and addresses, by what Azure and this workspace remember."""
    from gpuinfra.app.cost import cost as count_cost
    from gpuinfra.app.cost import usage
    from gpuinfra.views import cost as view

    settings = begin(context)
    if csv and settings.json:
        raise usage("two formats", "`--csv` and `--json` are both given", "give one of them")
    with frontend(settings) as progress:
        report = count_cost(settings, since, by, tag, progress)
    if csv:
        view.show_csv(report)
    else:
        view.show(report, tag, json=settings.json)
    return Exit.DONE
