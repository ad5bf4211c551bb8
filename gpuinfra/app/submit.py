"""Run a job on a target, fetch its outputs, and evaluate the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuinfra.app.job_request import (
    JobRequest,
    OnInterrupt,
    check_not_home,
    confirm_local_job,
    confirm_secrets,
    resolve_job,
)
from gpuinfra.app.job_session import JobSession
from gpuinfra.app.run_control import lost_outputs
from gpuinfra.app.workspace import check_workspace, open_workspace
from gpuinfra.app.workspace_search import script_in_workspace
from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem
from gpuinfra.models.run import Run, RunState
from gpuinfra.runner.settle import is_lost_for_good, lost_help

if TYPE_CHECKING:
    from gpuinfra.app.frontend import Frontend
    from gpuinfra.app.settings import Settings

# The exit code of the program `timeout`, used if the job itself exits with 0.
TIMED_OUT = 124
LARGEST_CODE = 255


def submit(
    settings: Settings, configuration: str | None, request: JobRequest, on_interrupt: OnInterrupt, frontend: Frontend
) -> JobResult:
    """Run a job on the target of a run configuration, and follow it to its end unless the request is to detach.

    Without a configuration, see `default_configuration`.
    """
    from gpuinfra.app.targets import default_configuration

    workspace = open_workspace(settings)
    check_workspace(settings)
    request = replace(request, script=script_in_workspace(settings, request.script))
    job, spec = resolve_job(workspace, configuration or default_configuration(workspace.path), request)
    check_not_home(workspace.state, job)
    confirm_local_job(job, settings, frontend, is_named=bool(configuration))
    confirm_secrets(job, spec, request, settings, frontend)
    interrupted, problem = False, None
    sink = frontend.open_output()
    work = JobSession(workspace, job, frontend, sink, on_interrupt, spec, request=request, detach=request.detach)
    try:
        work.run_to_end()
        if request.detach:
            work.extend_lease()
    except KeyboardInterrupt:
        interrupted = work.was_interrupted = True
    except Problem as found:
        if work.run.job is None:
            raise  # the target has nothing of this job
        problem = found
    finally:
        sink.finish()
    result = result_of(work, problem=problem)
    return replace(result, exit_code=Exit.INTERRUPTED) if interrupted else result


@dataclass(frozen=True)
class JobResult:
    """A submitted run, its problems and its exit code."""

    run: Run
    folder: Path
    """The folder with its log and outputs."""
    diagnostics: tuple[Diagnostic, ...]
    exit_code: int
    interrupted: bool = False
    """Whether Ctrl-C ended the command."""


def result_of(work: JobSession, problem: Problem | None = None) -> JobResult:
    """Return the result of a job, with its cost."""
    if work.run.machine:  # only machines have a price
        from gpuinfra.app.machine_costs import record_cost

        work.run = record_cost(work.workspace, work.run, tracked=work.job.tracked)
    run = work.run
    if problem and problem.diagnostics[0].code is Code.MACHINE_IS_OFF and is_lost_for_good(run):
        first = replace(problem.diagnostics[0], help=lost_help(run))
        problem = Problem(first, *problem.diagnostics[1:], exit_code=problem.exit_code)
    found = problems_of(run, require_gpu_use=work.job.require_gpu_use)
    if work.job.program and run.exit_code == Exit.NO_PROGRAM and run.state is RunState.FAILED:
        found.append(_missing_program(run))
    if run.state is RunState.FAILED:
        from gpuinfra.app.failure import explain_failure

        found += explain_failure(work.job, run, work.folder / "log", work.frontend)
    diagnostics = (*(problem.diagnostics if problem else ()), *found)
    if problem and (problem.exit_code is Exit.LEFT_BEHIND or not run.exit_code):
        code: int = problem.exit_code
    else:
        code = exit_code_of(run, diagnostics) if run.state.is_over else Exit.DONE
    return JobResult(run, work.folder, diagnostics, code, interrupted=work.was_interrupted)


def problems_of(run: Run, *, require_gpu_use: bool) -> list[Diagnostic]:
    """Return problems of a run that its exit code does not show."""
    found: list[Diagnostic] = []
    if run.state.is_over and run.started and not run.outputs.complete:
        found += lost_outputs(run).diagnostics
    if require_gpu_use and run.state is RunState.COMPLETED and (run.usage is None or not run.usage.was_used):
        seen = "no sample of it was taken" if run.usage is None else f"{run.usage.samples} samples saw no work"
        help_line = "look at what the job prints; `gpuinfra lint` finds packages for the CPU"
        found.append(
            Diagnostic(Code.GPU_NOT_USED, "the GPU was not used", note=f"run {run.id}: {seen}", help=help_line)
        )
    return found


def _missing_program(run: Run) -> Diagnostic:
    note = f"run {run.id}: exit code {run.exit_code:d} means that the shell did not find a program of the command"
    help_line = "its name is at the end of the output; install it in the job's environment, or correct the command"
    return Diagnostic(Code.NO_PROGRAM, "no such program", note=note, help=help_line)


def exit_code_of(run: Run, problems: Sequence[Diagnostic]) -> int:
    """Return the job's own exit code if it reports an error. The code of an evicted job does not count."""
    if run.state is RunState.EVICTED:
        return Exit.FAILED
    if run.exit_code and 0 < run.exit_code <= LARGEST_CODE:
        return run.exit_code
    ends = {RunState.TIMED_OUT: TIMED_OUT, RunState.CANCELLED: Exit.INTERRUPTED, RunState.LOST: Exit.LOST}
    return ends.get(run.state, Exit.DONE if run.state is RunState.COMPLETED and not problems else Exit.FAILED)
