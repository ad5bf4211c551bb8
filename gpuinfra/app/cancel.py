"""Cancel a run's job on its target."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuinfra.app.run_control import LOOK_SECONDS, ask_target, never_began
from gpuinfra.app.workspace import Workspace, open_workspace
from gpuinfra.diagnostics import Code, Problem, problem

if TYPE_CHECKING:
    from gpuinfra.app.frontend import Frontend
    from gpuinfra.app.settings import Settings
    from gpuinfra.models.run import Run
    from gpuinfra.runner.follower import JobFollower

# How long to wait after cancelling a run that another process follows, until that process records the end.
SETTLE_SECONDS = 60.0


def cancel_run(settings: Settings, run: Run, grace: float, frontend: Frontend) -> Run:
    """Cancel a run's job, and fetch its outputs. Raise Problem without any change if the job cannot be reached."""
    from gpuinfra.runner.follower import open_job
    from gpuinfra.runner.job import StopReason

    workspace = open_workspace(settings)
    if run.state.is_over:
        return run
    is_delivered = False

    def end(following: JobFollower) -> Run:
        nonlocal is_delivered
        open_job(following.link, run).cancel(grace)
        is_delivered = True
        return following.follow_to_end() if is_ours else run

    # Record the reason before cancelling, so that the process that follows the run sees it.
    workspace.history.update(run.id, reason=StopReason.CANCELLED.value)
    try:
        with workspace.log_of(run.id) as log:
            is_ours = log.try_lock()
            if run.job is None:
                is_delivered = True
                return never_began(workspace, run) if is_ours else _settled(workspace, run)
            run = ask_target(workspace, run, log, lambda _: None, end, frontend)
        return _settled(workspace, run)
    except Problem as error:
        if is_delivered:
            raise
        found = workspace.history.find(run.id)
        if found.state.is_over:
            return found  # its machine is off
        raise _undelivered(run, error) from error
    finally:
        if not is_delivered and not workspace.history.find(run.id).state.is_over:
            workspace.history.update(run.id, reason="")


def _undelivered(run: Run, error: Problem) -> Problem:
    cause = error.diagnostics[0]
    stop = f"; `gpuinfra down {run.machine}` stops the machine" if run.machine else ""
    found = replace(
        cause,
        note=f"{cause.note or cause.summary}; the job was not cancelled and may still run",
        help=f"`gpuinfra cancel {run.id}` again when `{run.target}` answers{stop}",
    )
    return Problem(found, exit_code=error.exit_code)


def _settled(workspace: Workspace, run: Run) -> Run:
    ends = time.monotonic() + SETTLE_SECONDS
    while not run.state.is_over and time.monotonic() < ends:
        time.sleep(LOOK_SECONDS)
        run = workspace.history.find(run.id)
    if run.state.is_over:
        return run
    note = f"run {run.id} was asked to end, and the process that follows it has not recorded its end"
    help_line = f"`gpuinfra runs show {run.id}` shows its state; `gpuinfra cancel {run.id}` asks again"
    raise problem(Code.JOB_FAILED, "the job has not ended", note, help_line)
