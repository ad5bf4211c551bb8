"""Show what a job printed, and follow what it prints."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gpuinfra.app.frontend import Frontend, JobOutput
from gpuinfra.app.run_control import follow_run
from gpuinfra.app.settings import Settings, seconds_of
from gpuinfra.app.settlement import Settled, fetch_hint, settle_runs
from gpuinfra.app.submit import exit_code_of
from gpuinfra.app.workspace import open_workspace
from gpuinfra.diagnostics import Code, Diagnostic, Problem, problem
from gpuinfra.models.run import Run, unheard_hint
from gpuinfra.runner.log import LogFile
from gpuinfra.runner.log_window import LogWindow
from gpuinfra.runner.settle import is_lost_for_good, lost_help, went_off

SECOND = 1_000_000_000


@dataclass(frozen=True)
class ShownLog:
    """A log that was shown."""

    run: Run
    folder: Path
    diagnostics: tuple[Diagnostic, ...] = ()
    hint: str = ""
    """What to do if the log is incomplete, or why there is none."""

    @property
    def exit_code(self) -> int:
        """The exit code of the job."""
        return exit_code_of(self.run, [])


def show_log(settings: Settings, run_id: str, output: JobOutput, window: LogWindow) -> ShownLog:
    """Show the local part of a run's log."""
    workspace = open_workspace(settings)
    settled = settle_runs(settings, [workspace.history.find(run_id)])
    (run,) = settled.runs
    folder = workspace.run_folder(run.id)
    _show(folder / "log", output, window)
    return ShownLog(run, folder, hint=_hint(settings, run, settled, folder))


def follow_log(settings: Settings, run_id: str, output: JobOutput, frontend: Frontend, window: LogWindow) -> ShownLog:
    """Show a run's log from its beginning, and follow the run to its end."""
    workspace = open_workspace(settings)
    run = workspace.history.find(run_id)
    folder = workspace.run_folder(run.id)
    if run.state.is_over and not run.is_unfetched:
        _show(folder / "log", output, window)
        return ShownLog(run, folder, hint=_hint(settings, run, None, folder))
    try:
        run = follow_run(settings, run, output, frontend, window)
    except Problem as problem:
        if not run.state.is_over:
            if run.job:
                frontend.note(_fetched_until(folder))
            raise
        # The end is known, and the local part of the log was shown.
        return ShownLog(run, folder, tuple(problem.diagnostics), hint=_fetched_until(folder))
    return ShownLog(run, folder, hint=_hint(settings, run, None, folder))


def window_of(tail: int | None, since: str | None, streams: Collection[int]) -> LogWindow:
    """Return the part of a log that options select. `since` is a duration before now, or a time."""
    return LogWindow(tail, _moment(since) if since else 0, streams)


def _moment(text: str) -> int:
    """Return the nanoseconds since 1970 of `10m`, or of a time such as `2026-11-16T12:00`, in UTC without an offset."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = datetime.now(UTC) - timedelta(seconds=seconds_of("--since", text))
    return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * SECOND)


def _fetched_until(folder: Path) -> str:
    """Return until when the local log has the job's output."""
    with LogFile(folder / "log") as log:
        position = log.position
    if not position.size:
        return "nothing that it printed was fetched"
    at = datetime.fromtimestamp(position.time / SECOND, UTC)
    return f"its output was fetched until {at:%Y-%m-%d %H:%M:%S} UTC"


def _hint(settings: Settings, run: Run, settled: Settled | None, folder: Path) -> str:
    """Return until when the log was fetched and what to do if it is incomplete, or why there is none."""
    hint = _next_step(settings, run, settled)
    is_incomplete = not run.state.is_over or run.is_unfetched or is_lost_for_good(run)
    return f"{_fetched_until(folder)}; {hint}" if hint and run.job and is_incomplete else hint


def _next_step(settings: Settings, run: Run, settled: Settled | None) -> str:
    if settled and run.id in settled.unheard:
        return unheard_hint(run)
    if settled and run.id in settled.running:
        return f"{run.id} is {run.state.value}: `gpuinfra logs {run.id} -f` follows it"
    if run.state.is_over and not run.job and not run.started:
        return f"{run.id} never began: {run.reason or run.state.value}"
    if is_lost_for_good(run) or (run.is_unfetched and went_off(run)):
        return f"{run.reason or run.state.value}; {fetch_hint(settings, run) or lost_help(run)}"
    if run.is_unfetched and settled:
        return f"not everything that it printed may be here: `gpuinfra logs {run.id} -f` fetches the rest"
    return ""


def _show(path: Path, output: JobOutput, window: LogWindow) -> None:
    try:
        with LogFile(path) as log:
            for frame in window.frames(log):
                output(frame)
    except BrokenPipeError:
        raise
    except OSError as error:
        note = f"`{path}`: {error.strerror}"
        raise problem(Code.FILE_UNREADABLE, "log cannot be read", note) from error
