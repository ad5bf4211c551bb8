"""`gpuinfra submit`: run a script on a target, and fetch its outputs."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuinfra.app.job_request import JobRequest, OnInterrupt
from gpuinfra.cli import job_options as job
from gpuinfra.cli.options import open_frontend, start_command


def submit(  # noqa: PLR0913, PLR0917 each is an option
    context: typer.Context,
    configuration: Annotated[
        str,
        typer.Option(
            "--configuration",
            "-c",
            metavar="NAME",
            help="Name of the run configuration, such as the one that `up` writes.",
        ),
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
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Exit as soon as the job is running.")] = False,
    on_interrupt: job.InterruptOption = OnInterrupt.ASK,
    require_gpu_use: job.RequireUseOption = False,
    rebuild: job.RebuildOption = False,
    send_credentials: job.SendCredentialsOption = False,
) -> int:
    """Run a script on a target: upload the project, build its environment, check the GPU, fetch the outputs."""
    from gpuinfra.app.submit import submit as run_submit
    from gpuinfra.views import job as view

    settings = start_command(context, reaches_cloud=False)
    request = JobRequest(
        script=script,
        words=job.script_words(words, "submit"),
        gpus=gpus,
        memory=memory,
        shm_size=shm_size,
        timeout=timeout,
        environment=env or (),
        environment_files=env_file or (),
        secrets=secret or (),
        build_secrets=build_secret or (),
        shared_directory=shared_directory,
        require_gpu_use=require_gpu_use,
        rebuild=rebuild,
        send_credentials=send_credentials,
        detach=detach,
    )
    with open_frontend(settings) as frontend:
        result = run_submit(settings, configuration, request, on_interrupt, frontend)
    view.show_result(result.run, result.folder, diagnostics=result.diagnostics, json=settings.json)
    return result.exit_code
