"""Follow runs on their targets, and fetch their outputs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuinfra.app.access import power_of, settings_for_target
from gpuinfra.app.lease_renewal import renewing
from gpuinfra.app.live_status import live_status
from gpuinfra.app.settings import Settings
from gpuinfra.app.workspace import Workspace, linked, machine_of, open_workspace, target_of_run
from gpuinfra.diagnostics import Code, Exit, Problem, problem

if TYPE_CHECKING:
    from gpuinfra.app.frontend import Frontend
    from gpuinfra.models.run import Frame, Run
    from gpuinfra.runner.fetch import Fetched
    from gpuinfra.runner.follower import JobFollower
    from gpuinfra.runner.link import Link
    from gpuinfra.runner.log import LogFile
    from gpuinfra.runner.log_window import LogWindow

LOOK_SECONDS = 0.2


def follow_run(
    settings: Settings, run: Run, show: Callable[[Frame], None], frontend: Frontend, window: LogWindow
) -> Run:
    """Show the window of a run's output so far, and follow the run to its end.

    While another local process follows the run, that one writes the log and this one only reads it. If that process
    ends before the job does, this one takes over.
    """
    workspace = open_workspace(settings)
    shown: int | None = None
    while True:
        with workspace.log_of(run.id) as log:
            is_ours = log.try_lock()
            run = workspace.history.find(run.id)
            end = log.position.size
            for frame in window.frames(log, end) if shown is None else log.frames(shown, end):
                show(frame)
            shown = end
            if run.state.is_over and (run.outputs.complete or not is_ours):
                return run
            if is_ours:
                return _take_over(workspace, run, log, show, frontend)
        time.sleep(LOOK_SECONDS)


def _take_over(workspace: Workspace, run: Run, log: LogFile, show: Callable[[Frame], None], frontend: Frontend) -> Run:
    if run.job is None:
        return never_began(workspace, run)
    return ask_target(workspace, run, log, show, lambda following: following.follow_to_end(), frontend, ports=True)


def fetch_outputs(
    settings: Settings, run: Run, frontend: Frontend, report: Callable[[Fetched], None] | None = None
) -> Run:
    """Fetch what a run has written so far, or everything if it has ended.

    Another process that follows the run fetches its outputs. With `report`, what the job is writing is fetched all the
    same, and the fetch is reported.
    """
    workspace = open_workspace(settings)
    with workspace.log_of(run.id) as log:
        if not log.try_lock():
            if report:
                _fetch_beside(workspace, run, frontend, report)
            return workspace.history.find(run.id)
        run = workspace.history.find(run.id)
        if run.job is None:
            return never_began(workspace, run)

        def work(following: JobFollower) -> Run:
            # Fetch the log, too: once the outputs are here, the target deletes the run with its log.
            return following.follow_to_end() if following.ended() else following.fetch_outputs(report or _ignore)

        return ask_target(workspace, run, log, lambda _: None, work, frontend)


def _ignore(_: Fetched) -> None:
    pass


def _fetch_beside(workspace: Workspace, run: Run, frontend: Frontend, report: Callable[[Fetched], None]) -> None:
    """Fetch what a job has written so far, while another process follows it."""
    from gpuinfra.runner.errors import job_problems
    from gpuinfra.runner.fetch import fetch

    target, _ = target_of_run(workspace, run)
    try:
        with linked(target, frontend) as link, job_problems(target.name):
            _call(link)
            folder = workspace.run_folder(run.id) / "outputs"
            report(fetch(link.remote, run.id, folder, final=False, now=True, progress=frontend))
    except Problem as problem:
        if problem.diagnostics[0].code is not Code.NO_SUCH_RUN:
            raise
        # It has ended, and the other process has fetched everything.


def never_began(workspace: Workspace, run: Run) -> Run:
    """Record that a run never began: its client is gone, and no target knows it."""
    from gpuinfra.runner.settle import never_began as fields_of

    known = workspace.history.find(run.id)
    return known if known.state.is_over else workspace.history.update(run.id, **fields_of(known))


def ask_target(
    workspace: Workspace,
    run: Run,
    log: LogFile,
    show: Callable[[Frame], None],
    work: Callable[[JobFollower], Run],
    frontend: Frontend,
    *,
    ports: bool = False,
) -> Run:
    """Return the result of `work` if the target knows the job. Record the run as lost or never begun if it does not."""
    from gpuinfra.models.run import KNOWS_NOTHING, RunState

    try:
        with _following(workspace, run, log, show, frontend, ports=ports) as following:
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
    workspace: Workspace,
    run: Run,
    log: LogFile,
    show: Callable[[Frame], None],
    frontend: Frontend,
    *,
    ports: bool,
) -> Iterator[JobFollower]:
    from gpuinfra.app.job_ports import forwarded_ports
    from gpuinfra.runner.errors import job_problems
    from gpuinfra.runner.follower import JobFollower
    from gpuinfra.runner.heartbeat import Heartbeat

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
            forwarded_ports(link, run, frontend) if ports else nullcontext(),
        ):
            record = workspace.record(run)
            with live_status(workspace.settings, record, heartbeat, frontend):
                yield JobFollower(link, record, log, frontend, show, heartbeat=heartbeat, takes_over=True)


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
    from gpuinfra.runner.settle import is_lost_for_good, lost_help

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
