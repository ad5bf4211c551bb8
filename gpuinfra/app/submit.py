"""Run a script on a target, and fetch what it wrote."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpuinfra.app.job_options import JobOptions, OnInterrupt, usage
from gpuinfra.diagnostics import Exit, Problem

if TYPE_CHECKING:
    from gpuinfra.app.frontend import Frontend
    from gpuinfra.app.job_result import JobResult
    from gpuinfra.app.settings import Settings


def submit(
    settings: Settings,
    configuration: str,
    options: JobOptions,
    on_interrupt: OnInterrupt,
    progress: Frontend,
    *,
    detach: bool,
) -> JobResult:
    """Run a script on the target of a run configuration, and follow it to its end unless `detach`."""
    from gpuinfra.app.access import cloud_of
    from gpuinfra.app.job_checks import check_detach, check_packages, wishes_of
    from gpuinfra.app.job_destination import check_job_destination
    from gpuinfra.app.job_result import result_of
    from gpuinfra.app.job_session import JobSession
    from gpuinfra.app.lease_renewal import renew_for
    from gpuinfra.app.workspace import check_workspace, open_workspace, with_spec
    from gpuinfra.runner.assignment import assign

    workspace = open_workspace(settings)
    check_workspace(settings)
    assigned = assign(workspace.path, configuration)
    check_job_destination(workspace.path, assigned)
    assigned, spec = with_spec(workspace, assigned)
    wishes = wishes_of(assigned, options)
    if detach:
        check_detach(assigned)
    check_packages(assigned, wishes.gpus, wishes.build_secrets)
    if detach and options.require_gpu_use:
        note = "`--require-gpu-use` is found out at the end, and `--detach` leaves before"
        raise usage("an option without effect", note, "leave one of them out")
    interrupted, problem = False, None
    sink = progress.open_output()
    work = JobSession(workspace, assigned, wishes, progress, sink, on_interrupt, spec, detach=detach)
    try:
        work.go()
        if detach and work.machine:
            renew_for(cloud_of(settings, assigned.target), work.machine, wishes.timeout, progress)
    except KeyboardInterrupt:
        interrupted = work.was_interrupted = True
    except Problem as found:
        if work.run.job is None:
            raise  # the target has nothing of it
        problem = found
    finally:
        sink.finish()
    result = result_of(work, problem=problem)
    return replace(result, exit_code=Exit.INTERRUPTED) if interrupted else result
