"""What the shell completes: machines, targets and runs of the workspace. Contacts nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuinfra.app.settings import Settings

MOST_RUNS = 30


def machine_words(settings: Settings) -> Iterator[str]:
    """Return the names of machines in specs, of targets that are machines, and of machines that were on."""
    from gpuinfra.parse.source import likely_names
    from gpuinfra.store import Ledger

    yield from likely_names(settings.folder)
    yield from _files(settings, ".compute")
    yield from (entry.machine for entry in Ledger(settings.state).entries())


def target_words(settings: Settings) -> Iterator[str]:
    """Return what `-c` accepts."""
    from gpuinfra.workbench.targets import BUILT_IN

    yield from _files(settings, ".compute")
    yield from _files(settings, ".runconfig")
    yield from BUILT_IN


def run_words(settings: Settings) -> Iterator[tuple[str, str]]:
    """Return the ids of the newest runs, each with its state and what ran."""
    from gpuinfra.store import LAST, History

    for run in History(settings.state).list(limit=MOST_RUNS):
        yield run.id, f"{run.state.value}, {run.script}"
    yield LAST, "the newest run"


def _files(settings: Settings, suffix: str) -> list[str]:
    from gpuinfra.workbench.project import FOLDER

    return sorted(file.stem for file in (settings.folder / FOLDER).glob(f"*{suffix}"))
