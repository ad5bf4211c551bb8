"""`gpuinfra submit`: run a job on a target, and fetch its outputs."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuinfra.app.job_request import JobRequest, OnInterrupt
from gpuinfra.cli import options as job
from gpuinfra.cli.options import open_frontend, start_command
from gpuinfra.cli.standard_input import note_input, refuse_input


def submit(  # noqa: PLR0913, PLR0917 each is an option
    context: typer.Context,
    configuration: job.ConfigurationOption = None,
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
    """Run a job on a target: upload the project, build its environment, check the GPU, fetch the outputs.

    Ctrl-C on a terminal asks whether to detach, cancel or go on. A second Ctrl-C detaches: the job finishes on its
    machine.
    """
    from gpuinfra.app.submit import submit as run_submit
    from gpuinfra.views import job as view

    settings = start_command(context, reaches_cloud=False)
    request = JobRequest(
        **job.passed_words(script, words, "submit"),
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
    refuse_input("submit")
    with open_frontend(settings) as frontend:
        frontend.is_brief = True
        result = run_submit(settings, configuration, request, on_interrupt, frontend)
        note_input(frontend)
    view.show_result(result.run, result.folder, diagnostics=result.diagnostics, json=settings.json)
    return result.exit_code
