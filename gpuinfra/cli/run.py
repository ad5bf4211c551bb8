"""`gpuinfra run`: a machine for one job."""

from __future__ import annotations

from shlex import quote
from typing import Annotated

import typer

from gpuinfra.app.job_request import JobRequest, OnInterrupt, usage
from gpuinfra.cli import job_options as job
from gpuinfra.cli.options import open_frontend, start_command


def run(  # noqa: PLR0913, PLR0917 each is an option
    context: typer.Context,
    spec: Annotated[str, typer.Argument(metavar="SPEC", help="Spec file, or machine name.")],
    script: job.ScriptArgument = None,
    words: job.WordsArgument = None,
    after_run: Annotated[
        str | None,
        typer.Option(
            "--after-run", metavar="WHAT", help="deallocate, delete or keep. Default: `lifecycle.afterRun` of the spec."
        ),
    ] = None,
    gpus: job.GpusOption = None,
    memory: job.MemoryOption = None,
    shm_size: job.ShmOption = None,
    timeout: job.TimeoutOption = None,
    env: job.EnvironmentOption = None,
    env_file: job.EnvironmentFileOption = None,
    secret: job.SecretOption = None,
    build_secret: job.BuildSecretOption = None,
    shared_directory: job.SharedDirectoryOption = None,
    on_interrupt: job.InterruptOption = OnInterrupt.ASK,
    require_gpu_use: job.RequireUseOption = False,
    rebuild: job.RebuildOption = False,
) -> int:
    """Provision a machine, run one job on it, fetch the outputs, and deallocate it."""
    from gpuinfra.app.run import run_job
    from gpuinfra.views import receipt as receipt_view
    from gpuinfra.views.job import show_result as show_job

    settings = start_command(context)
    if script and script.startswith("-"):
        note = f"`{script}` comes after the spec, where the script is expected"
        help_line = f"put options before the spec: `gpuinfra run {quote(script)} … {quote(spec)} train.py`"
        raise usage("wrong usage", note, help_line)
    request = JobRequest(
        script=script,
        words=job.script_words(words, "run"),
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
    )
    with open_frontend(settings) as frontend:
        result = run_job(settings, spec, request, after_run, on_interrupt, frontend)
    if result.job:
        show_job(result.job.run, result.job.folder, result.receipt, result.diagnostics, json=settings.json)
    else:
        receipts = [result.receipt] if result.receipt else []
        receipt_view.show(receipts, result.diagnostics, json=settings.json)
    return result.exit_code
