"""`gpuinfra submit`: runs a script on a target, and brings back what it wrote."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuinfra.app.settings import Settings
from gpuinfra.cli import job_options as job
from gpuinfra.cli.job_options import JobOptions, OnInterrupt, usage
from gpuinfra.cli.options import begin
from gpuinfra.diagnostics import Exit, Problem


def submit(  # noqa: PLR0913, PLR0917 each is an option
    context: typer.Context,
    configuration: Annotated[
        str, typer.Option("--configuration", "-c", metavar="NAME", help="The run configuration, as `up` writes it.")
    ],
    script: job.ScriptArgument = None,
    words: job.WordsArgument = None,
    gpus: job.GpusOption = None,
    memory: job.MemoryOption = None,
    shm_size: job.ShmOption = None,
    timeout: job.TimeoutOption = None,
    env: job.EnvironmentOption = None,
    env_file: job.EnvironmentFileOption = None,
    secret: job.SecretOption = None,
    build_secret: job.BuildSecretOption = None,
    shared_directory: job.SharedDirectoryOption = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Leave as soon as the job runs.")] = False,
    on_interrupt: job.InterruptOption = OnInterrupt.ASK,
    require_gpu_use: job.RequireUseOption = False,
    rebuild: job.RebuildOption = False,
    send_credentials: job.SendCredentialsOption = False,
) -> int:
    """Run a script on a target: send the project, make its environment, check the GPU, bring back the outputs."""
    settings = begin(context, reaches_cloud=False)
    options = job.given(
        "submit",
        script,
        words,
        gpus=gpus,
        memory=memory,
        shm_size=shm_size,
        timeout=timeout,
        env=env,
        env_file=env_file,
        secret=secret,
        build_secret=build_secret,
        shared_directory=shared_directory,
        require_gpu_use=require_gpu_use,
        rebuild=rebuild,
        send_credentials=send_credentials,
    )
    return _submit(settings, configuration, options, on_interrupt, detach=detach)


def _submit(
    settings: Settings, configuration: str, options: JobOptions, on_interrupt: OnInterrupt, *, detach: bool
) -> int:
    from gpuinfra.app.job_checks import check_detach, check_packages, wishes_of
    from gpuinfra.app.job_result import show_end
    from gpuinfra.app.job_session import JobSession
    from gpuinfra.app.lease_renewal import renew_for
    from gpuinfra.app.machines import progress_view
    from gpuinfra.app.power import cloud_of
    from gpuinfra.app.workspace import check_workspace, open_workspace, with_spec
    from gpuinfra.runner.assignment import assign
    from gpuinfra.views.job import TerminalSink

    desk = open_workspace(settings)
    check_workspace(settings)
    assigned, spec = with_spec(desk, assign(desk.workspace, configuration))
    wishes = wishes_of(assigned, options)
    if detach:
        check_detach(assigned)
    check_packages(assigned, wishes.gpus, wishes.build_secrets)
    if detach and options.require_gpu_use:
        note = "`--require-gpu-use` is found out at the end, and `--detach` leaves before"
        raise usage("an option without effect", note, "leave one of them out")
    interrupted, problem = False, None
    with progress_view(settings) as progress:
        sink = TerminalSink(json=settings.json, progress=progress)
        work = JobSession(desk, assigned, wishes, progress, sink, on_interrupt, spec, detach=detach)
        try:
            work.go()
            if detach and spec:
                renew_for(cloud_of(settings, assigned.target), spec, wishes.timeout, progress)
        except KeyboardInterrupt:
            interrupted = True
        except Problem as found:
            if work.run.job is None:
                raise  # nothing of it is anywhere
            problem = found
        finally:
            sink.finish()
    code = show_end(work, problem=problem)
    return Exit.INTERRUPTED if interrupted else code
