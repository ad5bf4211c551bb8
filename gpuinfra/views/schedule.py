"""Files for schedulers, and what `schedule install` did."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpuinfra.scheduling.rendering import ScheduleOutcome
from gpuinfra.views import json_output
from gpuinfra.views.terminal import harmless, messages, results

if TYPE_CHECKING:
    from gpuinfra.scheduling.rendering import RenderedFile, Scheduler


def show(scheduler: Scheduler, files: Sequence[RenderedFile], *, json: bool) -> None:
    """Print the files."""
    if json:
        shown = [{"name": file.name, "content": file.text} for file in files]
        json_output.show({"with": str(scheduler), "files": shown})
        return
    for number, file in enumerate(files):
        heading = f"{'' if number == 0 else chr(10)}# {file.name}\n" if len(files) > 1 else ""
        # As bytes, unfiltered: the pipeline contains CI commands on purpose.
        sys.stdout.flush()
        sys.stdout.buffer.write(f"{heading}{file.text}".encode())


def show_written(scheduler: Scheduler, files: Iterable[Path], *, json: bool) -> None:
    """Print where the files were written."""
    paths = [str(file) for file in files]
    if json:
        json_output.show({"with": str(scheduler), "files": paths})
        return
    for path in paths:
        results().print(f"wrote {harmless(path)}")


def show_outcome(outcome: ScheduleOutcome, *, json: bool) -> None:
    """Print what `install` or `uninstall` did."""
    if json:
        json_output.show(
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
        console.print("nothing was installed")
    if outcome.reason:
        messages().print(f"note: systemd did not load it: {harmless(outcome.reason)}")
    if outcome.left:
        messages().print("Left to do:")
        for step in outcome.left:
            messages().print(f"  {harmless(step)}")
