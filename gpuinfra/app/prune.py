"""Remove old runs of the workspace with their logs and outputs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from gpuinfra.app.frontend import ask_or_refuse
from gpuinfra.app.workspace import open_workspace
from gpuinfra.diagnostics import Code, Exit, problem
from gpuinfra.models.consent import Question
from gpuinfra.models.run import OldRun
from gpuinfra.store import run_folder

if TYPE_CHECKING:
    from gpuinfra.app.frontend import Frontend
    from gpuinfra.app.settings import Settings
    from gpuinfra.app.workspace import Workspace
    from gpuinfra.models.run import Run

# A folder that is being removed. An interrupted removal is completed by the next one.
GONE = ".gone-"


def find_old_runs(settings: Settings, seconds: float) -> list[OldRun]:
    """Return the runs that ended longer ago than this and have nothing left to fetch, with their sizes here."""
    workspace, before = open_workspace(settings), datetime.now(UTC) - timedelta(seconds=seconds)
    return [
        OldRun(run, _size(workspace.run_folder(run.id)))
        for run in workspace.history.list()
        if is_old(run, before) and not workspace.log_of(run.id).is_followed
    ]


def is_old(run: Run, before: datetime) -> bool:
    """Return whether a run is over, ended before a time, and has no outputs that are not here."""
    return run.state.is_over and not run.may_have_outputs and (run.ended or run.created) < before


def remove_runs(settings: Settings, found: Sequence[OldRun], seconds: float, frontend: Frontend) -> list[OldRun]:
    """Remove runs with their logs and outputs after a question, and return those that were removed."""
    count = f"{len(found)} run{'s' if len(found) > 1 else ''}"
    refusal = problem(
        Code.NEEDS_CONSENT,
        "runs would be deleted",
        f"{count} with logs and outputs; nothing was deleted",
        "`--yes` deletes them; `--dry-run` only lists them",
        exit_code=Exit.USAGE,
    )
    question = Question(f"Delete {count} with logs and outputs? There may be no other copy.")
    ask_or_refuse(settings, frontend, question, refusal)
    workspace, before = open_workspace(settings), datetime.now(UTC) - timedelta(seconds=seconds)
    removed = [old for old in found if _remove(workspace, old.run, before)]
    for left in (workspace.state / "runs").glob(f"{GONE}*"):
        shutil.rmtree(left, ignore_errors=True)
    return removed


def _remove(workspace: Workspace, run: Run, before: datetime) -> bool:
    """Remove a run unless another process uses it or has changed it since. Return whether it was removed."""
    folder = workspace.run_folder(run.id)
    gone = run_folder(workspace.state, run.id).with_name(f"{GONE}{run.id}")
    if not folder.is_dir():
        workspace.history.delete(run.id)
        return True
    with workspace.log_of(run.id) as log:
        if not log.try_lock() or not is_old(workspace.history.find(run.id), before):
            return False
        # In this order: a folder without a record would never be found, but may be the only copy of other outputs.
        folder.rename(gone)
        workspace.history.delete(run.id)
    return True


def _size(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_size  # noqa: PTH118 quicker
    return total
