"""`gpuinfra run`: a machine for one job. It is made, used, and off again; or says that it is not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gpuinfra.app.job_options import OnInterrupt, usage
from gpuinfra.cli import job_options as job
from gpuinfra.cli.options import begin, frontend

if TYPE_CHECKING:
    pass


def run(  # noqa: PLR0913, PLR0917 each is an option
    context: typer.Context,
    spec: Annotated[str, typer.Argument(metavar="SPEC", help="The machine's file, or its name.")],
    script: job.ScriptArgument = None,
    words: job.WordsArgument = None,
    after_run: Annotated[
        str | None,
        typer.Option("--after-run", metavar="WHAT", help="deallocate, delete or keep, instead of what the spec says."),
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
    """Bring a machine up, run a script on it, bring back the outputs, and end the machine: up, submit and down."""
    from gpuinfra.app.run_workflow import run_job
    from gpuinfra.views import receipt as receipt_view
    from gpuinfra.views.job import show_result as show_job

    settings = begin(context)
    if script and script.startswith("-"):
        note = f"`{script}` stands behind the spec, where the script is expected"
        raise usage("wrong usage", note, f"options stand before the spec: `gpuinfra run {script} … {spec} train.py`")
    options = job.given(
        "run",
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
    )
    with frontend(settings) as progress:
        result = run_job(settings, spec, options, after_run, on_interrupt, progress)
    if result.job:
        show_job(result.job.run, result.job.folder, result.job.receipt, result.job.diagnostics, json=settings.json)
    else:
        receipts = [result.receipt] if result.receipt else []
        receipt_view.show(receipts, result.diagnostics, json=settings.json)
    return result.exit_code
