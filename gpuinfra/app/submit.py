"""Run a script on a target, and fetch its outputs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpuinfra.diagnostics import Exit, Problem

if TYPE_CHECKING:
    from gpuinfra.app.frontend import Frontend
    from gpuinfra.app.job_request import JobRequest, OnInterrupt
    from gpuinfra.app.job_result import JobResult
    from gpuinfra.app.settings import Settings


def submit(
    settings: Settings, configuration: str, request: JobRequest, on_interrupt: OnInterrupt, frontend: Frontend
) -> JobResult:
    """Run a script on the target of a run configuration, and follow it to its end unless the request is to detach."""
    from gpuinfra.app.job_request import confirm_local_job, resolve_job
    from gpuinfra.app.job_result import result_of
    from gpuinfra.app.job_session import JobSession
    from gpuinfra.app.workspace import check_workspace, open_workspace

    workspace = open_workspace(settings)
    check_workspace(settings)
    job, spec = resolve_job(workspace, configuration, request)
    confirm_local_job(job, settings, frontend)
    interrupted, problem = False, None
    sink = frontend.open_output()
    work = JobSession(workspace, job, frontend, sink, on_interrupt, spec, detach=request.detach)
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
