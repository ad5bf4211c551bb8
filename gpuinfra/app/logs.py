"""Show what a job printed, and follow what it prints."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpuinfra.app.frontend import Frontend, JobOutput
from gpuinfra.app.run_control import follow_run
from gpuinfra.app.settings import Settings
from gpuinfra.app.settlement import Settled, fetch_hint, settle_runs
from gpuinfra.app.submit import exit_code_of
from gpuinfra.app.workspace import open_workspace
from gpuinfra.diagnostics import Code, Diagnostic, Problem, problem
from gpuinfra.models.run import Run, unheard_hint
from gpuinfra.runner.jobs.log import LogFile
from gpuinfra.runner.jobs.settle import is_lost_for_good, lost_help, went_off


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


def show_log(settings: Settings, run_id: str, output: JobOutput) -> ShownLog:
    """Show the local part of a run's log."""
    workspace = open_workspace(settings)
    settled = settle_runs(settings, [workspace.history.find(run_id)])
    (run,) = settled.runs
    folder = workspace.run_folder(run.id)
    _show(folder / "log", output)
    return ShownLog(run, folder, hint=_hint(settings, run, settled))


def follow_log(settings: Settings, run_id: str, output: JobOutput, frontend: Frontend) -> ShownLog:
    """Show a run's log from its beginning, and follow the run to its end."""
    workspace = open_workspace(settings)
    run = workspace.history.find(run_id)
    folder = workspace.run_folder(run.id)
    if run.state.is_over and not run.is_unfetched:
        _show(folder / "log", output)
        return ShownLog(run, folder, hint=_hint(settings, run, None))
    try:
        run = follow_run(settings, run, output, frontend)
    except Problem as problem:
        if not run.state.is_over:
            raise
        # The end is known, and the local part of the log was shown.
        return ShownLog(run, folder, tuple(problem.diagnostics))
    return ShownLog(run, folder, hint=_hint(settings, run, None))


def _hint(settings: Settings, run: Run, settled: Settled | None) -> str:
    """Return what to do if the log is incomplete, or why there is none."""
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


def _show(path: Path, output: JobOutput) -> None:
    try:
        with LogFile(path) as log:
            for frame in log.frames():
                output(frame)
    except BrokenPipeError:
        raise
    except OSError as error:
        note = f"`{path}`: {error.strerror}"
        raise problem(Code.FILE_UNREADABLE, "log cannot be read", note) from error
