"""What schedulers are given, and what became of it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpuinfra.scheduling.outcome import ScheduleOutcome
from gpuinfra.views import document
from gpuinfra.views.terminal import harmless, messages, results

if TYPE_CHECKING:
    from gpuinfra.scheduling.rendering import Rendered, Scheduler


def show(scheduler: Scheduler, files: Sequence[Rendered], *, json: bool) -> None:
    """The files themselves."""
    if json:
        shown = [{"name": file.name, "content": file.text} for file in files]
        document.show({"with": str(scheduler), "files": shown})
        return
    for number, file in enumerate(files):
        heading = f"{'' if number == 0 else chr(10)}# {file.name}\n" if len(files) > 1 else ""
        # As bytes, unchanged: the pipeline has commands for the CI system in it, which are ours.
        sys.stdout.flush()
        sys.stdout.buffer.write(f"{heading}{file.text}".encode())


def show_written(scheduler: Scheduler, files: Iterable[Path], *, json: bool) -> None:
    """Where they were written instead."""
    paths = [str(file) for file in files]
    if json:
        document.show({"with": str(scheduler), "files": paths})
        return
    for path in paths:
        results().print(f"wrote {harmless(path)}")


def show_outcome(outcome: ScheduleOutcome, *, json: bool) -> None:
    """What `install` or `uninstall` did."""
    if json:
        document.show(
            {
                "with": str(outcome.scheduler),
                "written": list(outcome.written),
                "unchanged": list(outcome.unchanged),
                "removed": list(outcome.removed),
                "active": outcome.active,
                "leftToDo": list(outcome.left),
                "reason": outcome.reason,
            }
        )
        return
    console = results()
    for verb in ("written", "unchanged", "removed"):
        for what in getattr(outcome, verb):
            console.print(f"{verb}: {harmless(what)}")
    if not (outcome.written or outcome.unchanged or outcome.removed):
        console.print("nothing of gpuinfra's was there")
    if outcome.reason:
        messages().print(f"note: systemd was not told: {harmless(outcome.reason)}")
    if outcome.left:
        messages().print("Left to do:")
        for step in outcome.left:
            messages().print(f"  {harmless(step)}")
