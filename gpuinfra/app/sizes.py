"""List NC sizes with regions, prices and quota."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuinfra.app.access import cloud_errors, open_session
from gpuinfra.app.settings import Settings
from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem, did_you_mean, listed, problem
from gpuinfra.models.names import REGIONS
from gpuinfra.models.sizes import GPU_MODELS, SizeOffers, retired_gpu
from gpuinfra.provision.market import list_sizes as find_sizes
from gpuinfra.provision.waiting import Progress

SECONDS = 300.0


@dataclass(frozen=True)
class SizeQuery:
    """The sizes to list."""

    model: str | None
    regions: tuple[str, ...]
    with_quota: bool


def size_query(gpu: str | None, regions: Sequence[str], *, with_quota: bool) -> SizeQuery:
    """Return a query for a GPU model and regions. Raise Problem for an unknown one."""
    return SizeQuery(_model(gpu), _regions(regions), with_quota)


def list_sizes(settings: Settings, query: SizeQuery, progress: Progress) -> tuple[tuple[SizeOffers, ...], bool]:
    """Return the sizes, and whether they come from the sandbox."""
    session = open_session(settings, None, SECONDS, progress)
    with cloud_errors("listing sizes"):
        found = find_sizes(session.market, query.model, query.regions, with_quota=query.with_quota)
    return found, session.cloud.simulated


def _model(word: str | None) -> str | None:
    known = {model.casefold(): model for model in GPU_MODELS}
    if word is None or word.casefold() in known:
        return known[word.casefold()] if word else None
    if retired := retired_gpu(word):
        raise problem(Code.RETIRED_SIZE, "retired GPU", retired[0], retired[1], exit_code=Exit.USAGE)
    raise problem(
        Code.UNKNOWN_GPU,
        "unknown GPU",
        f"no NC size has a `{word}`",
        did_you_mean(word, GPU_MODELS) or f"there are {listed(GPU_MODELS, 'and')}",
        exit_code=Exit.USAGE,
    )


def _regions(words: Sequence[str]) -> tuple[str, ...]:
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
