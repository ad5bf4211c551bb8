"""Follow runs on their targets, and fetch their outputs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuinfra.app.access import power_of, settings_for_target
from gpuinfra.app.lease_renewal import renewing
from gpuinfra.app.settings import Settings
from gpuinfra.app.workspace import Workspace, linked, machine_of, open_workspace, target_of_run
from gpuinfra.diagnostics import Code, Exit, Problem, problem

if TYPE_CHECKING:
    from gpuinfra.app.frontend import Frontend
    from gpuinfra.models.outputs import Frame
    from gpuinfra.models.run import Run
    from gpuinfra.runner.jobs.follower import JobFollower
    from gpuinfra.runner.jobs.log import LogFile
    from gpuinfra.runner.link import Link

LOOK_SECONDS = 0.2


def follow_run(settings: Settings, run: Run, show: Callable[[Frame], None], frontend: Frontend) -> Run:
    """Show a run's output from the beginning, and follow it to its end.

    While another local process follows the run, that one writes the log and this one only reads it. If that process
    ends before the job does, this one takes over.
    """
    workspace = open_workspace(settings)
    shown = 0
    while True:
        with workspace.log_of(run.id) as log:
            is_ours = log.try_lock()
            run = workspace.history.find(run.id)
            end = log.position.size
            for frame in log.frames(shown):
                if shown >= end:
                    break
                shown += frame.size
                show(frame)
            if run.state.is_over and (run.outputs.complete or not is_ours):
                return run
            if is_ours:
                return _take_over(workspace, run, log, show, frontend)
        time.sleep(LOOK_SECONDS)


def _take_over(workspace: Workspace, run: Run, log: LogFile, show: Callable[[Frame], None], frontend: Frontend) -> Run:
    if run.job is None:
        return never_began(workspace, run)
    return ask_target(workspace, run, log, show, lambda following: following.follow_to_end(), frontend)


def fetch_outputs(settings: Settings, run: Run, frontend: Frontend) -> Run:
    """Fetch what a run has written so far, or everything if it has ended."""
    workspace = open_workspace(settings)
    with workspace.log_of(run.id) as log:
        if not log.try_lock():
            return run  # the process that follows it fetches them
        run = workspace.history.find(run.id)
        if run.job is None:
            return never_began(workspace, run)
        return ask_target(workspace, run, log, lambda _: None, _brought, frontend)


def _brought(following: JobFollower) -> Run:
    # Fetch the log, too: once the outputs are here, the target deletes the run with its log.
    return following.follow_to_end() if following.ended() else following.fetch_outputs()


def never_began(workspace: Workspace, run: Run) -> Run:
    """Record that a run never began: its client is gone, and no target knows it."""
    from gpuinfra.runner.jobs.settle import never_began as fields_of

    known = workspace.history.find(run.id)
    return known if known.state.is_over else workspace.history.update(run.id, **fields_of(known))


def ask_target(
    workspace: Workspace,
    run: Run,
    log: LogFile,
    show: Callable[[Frame], None],
    work: Callable[[JobFollower], Run],
    frontend: Frontend,
) -> Run:
    """Return the result of `work` if the target knows the job. Record the run as lost or never begun if it does not."""
    from gpuinfra.models.run import KNOWS_NOTHING, RunState

    try:
        with _following(workspace, run, log, show, frontend) as following:
            return work(following)
    except Problem as problem:
        code = problem.diagnostics[0].code
        if code is Code.MACHINE_IS_OFF:
            raise _off(workspace, run, log, problem) from problem
        if code is not Code.NO_SUCH_RUN:
            raise
        if run.started is None:
            return never_began(workspace, run)
        if not workspace.history.find(run.id).state.is_over:
            workspace.history.update(run.id, state=RunState.LOST, reason=f"the target {KNOWS_NOTHING}")
        raise


def _off(workspace: Workspace, run: Run, log: LogFile, problem: Problem) -> Problem:
    """Settle the run, and return the Problem with the commands that fetch its outputs."""
    from gpuinfra.app.settlement import off_hint, settle_runs

    log.close()
    (settled,) = settle_runs(workspace.settings, [workspace.history.find(run.id)]).runs
    found = replace(problem.diagnostics[0], help=off_hint(workspace.settings, settled))
    return Problem(found, exit_code=problem.exit_code)


@contextmanager
def _following(
    workspace: Workspace, run: Run, log: LogFile, show: Callable[[Frame], None], frontend: Frontend
) -> Iterator[JobFollower]:
    from gpuinfra.runner.errors import job_problems
    from gpuinfra.runner.jobs.follower import JobFollower
    from gpuinfra.runner.jobs.heartbeat import Heartbeat

    target, spec = target_of_run(workspace, run)
    with (
        linked(target, frontend) as link,
        job_problems(target.name),
    ):
        target_settings = settings_for_target(workspace.settings, target)
        machine = machine_of(target, spec)
        link.power = power_of(target_settings, machine, resource_id=target.resource_id)
        _call(link)
        with (
            Heartbeat(link, run.id) as heartbeat,
            renewing(target_settings, machine, frontend, lambda: heartbeat.idle_seconds),
        ):
            yield JobFollower(link, workspace.record(run), log, frontend, show, heartbeat=heartbeat, takes_over=True)


def _call(link: Link) -> None:
    """Connect now. A lost connection is retried for long, but a first failure is reported at once."""
    from gpuinfra.runner.errors import Unreachable

    try:
        _ = link.connection
    except Unreachable:
        link.check_power()
        raise


def lost_outputs(run: Run) -> Problem:
    """Return the Problem for outputs that are not all here."""
    from gpuinfra.runner.jobs.settle import is_lost_for_good, lost_help

    missing = "; ".join(run.warnings) or "the target could not be asked for them"
    off = f"; where {run.machine} is off, `gpuinfra up SPEC` first" if run.machine else ""
    fetch = f"nothing was deleted: `gpuinfra outputs {run.id}` fetches the rest{off}"
    return problem(
        Code.OUTPUTS_INCOMPLETE,
        "outputs are not complete",
        f"run {run.id}: {missing}",
        lost_help(run) if is_lost_for_good(run) else fetch,
        exit_code=Exit.FAILED,
    )
