"""`gpuinfra submit`: runs a script on a target, and brings back what it wrote."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuinfra.app.job_options import OnInterrupt
from gpuinfra.cli import job_options as job
from gpuinfra.cli.options import begin, frontend


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
    from gpuinfra.app.submit import submit as run_submit
    from gpuinfra.views import job as view

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
    with frontend(settings) as progress:
        result = run_submit(settings, configuration, options, on_interrupt, progress, detach=detach)
    view.show_result(result.run, result.folder, diagnostics=result.diagnostics, json=settings.json)
    return result.exit_code
