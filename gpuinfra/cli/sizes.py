"""`gpuinfra sizes`: which NC sizes there are, where, for how much, and within which quota."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from gpuinfra.cli.options import begin
from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem
from gpuinfra.suggest import did_you_mean, listed

LONGEST = 300.0


def sizes(
    context: typer.Context,
    gpu: Annotated[str | None, typer.Option("--gpu", metavar="MODEL", help="Only sizes with this GPU.")] = None,
    region: Annotated[
        list[str] | None, typer.Option("--region", metavar="REGION", help="Only this region; can be repeated.")
    ] = None,
    with_quota: Annotated[
        bool, typer.Option("--with-quota", help="Show what is left of the quota, where there is some first.")
    ] = False,
) -> int:
    """List NC sizes: GPU, memory, regions, price, spot price, and the quota left."""
    from gpuinfra.views import sizes as view

    model, regions = _model(gpu), _regions(region or ())
    settings = begin(context)

    from gpuinfra.app.access import open_access
    from gpuinfra.app.machines import explained
    from gpuinfra.provision.azure.clients import Clients
    from gpuinfra.provision.azure.market import AzureMarket
    from gpuinfra.provision.azure.transport import Patience
    from gpuinfra.provision.market.listing import list_sizes
    from gpuinfra.provision.waiting.deadline import Deadline

    access = open_access(settings)
    clients = Clients(access, Patience(Deadline.after(LONGEST), writes=False), settings.correlation_id)
    with explained("listing sizes"):
        found = list_sizes(AzureMarket(clients), model, regions, with_quota=with_quota)
    by_region = bool(regions) or with_quota
    view.show(found, by_region=by_region, with_quota=with_quota, simulated=access.simulated, json=settings.json)
    return Exit.DONE


def _model(word: str | None) -> str | None:
    from gpuinfra.models.sizes import GPU_MODELS, retired_gpu

    known = {model.casefold(): model for model in GPU_MODELS}
    if word is None or word.casefold() in known:
        return known[word.casefold()] if word else None
    if retired := retired_gpu(word):
        raise Problem(
            Diagnostic(Code.RETIRED_SIZE, "retired GPU", note=retired[0], help=retired[1]), exit_code=Exit.USAGE
        )
    raise Problem(
        Diagnostic(
            Code.UNKNOWN_GPU,
            "unknown GPU",
            note=f"no NC size has a `{word}`",
            help=did_you_mean(word, GPU_MODELS) or f"there are {listed(GPU_MODELS, 'and')}",
        ),
        exit_code=Exit.USAGE,
    )


def _regions(words: Sequence[str]) -> tuple[str, ...]:
    from gpuinfra.models.regions import REGIONS

    wrong = [
        Diagnostic(
            Code.UNKNOWN_REGION,
            "unknown region",
            note=f"Azure has no region `{word}`",
            help=did_you_mean(word, REGIONS) or "for example `southcentralus`",
        )
        for word in words
        if word not in REGIONS
    ]
    if wrong:
        raise Problem(*wrong, exit_code=Exit.USAGE)
    return tuple(dict.fromkeys(words))
