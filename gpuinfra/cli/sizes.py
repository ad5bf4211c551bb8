"""`gpuinfra sizes`: list NC sizes with regions, prices and quota."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuinfra.cli.options import open_frontend, start_command
from gpuinfra.diagnostics import Exit


def sizes(
    context: typer.Context,
    gpu: Annotated[str | None, typer.Option("--gpu", metavar="MODEL", help="Only sizes with this GPU.")] = None,
    region: Annotated[
        list[str] | None, typer.Option("--region", metavar="REGION", help="Only this region. Repeatable.")
    ] = None,
    with_quota: Annotated[
        bool, typer.Option("--with-quota", help="Show the remaining quota, regions with quota first.")
    ] = False,
) -> int:
    """List NC sizes: GPU, memory, regions, price, spot price and remaining quota."""
    from gpuinfra.app.sizes import list_sizes, size_query
    from gpuinfra.views import sizes as view

    query = size_query(gpu, region or (), with_quota=with_quota)
    settings = start_command(context)
    with open_frontend(settings) as frontend:
        found, simulated = list_sizes(settings, query, frontend)
    by_region = bool(query.regions) or with_quota
    view.show(found, by_region=by_region, with_quota=with_quota, simulated=simulated, json=settings.json)
    return Exit.DONE
