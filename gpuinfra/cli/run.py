"""`gpuinfra run`: a machine for one job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from shlex import join, quote
from typing import TYPE_CHECKING, Annotated

import typer

from gpuinfra.app.job_request import JobRequest, OnInterrupt, usage
from gpuinfra.cli import completion
from gpuinfra.cli import options as job
from gpuinfra.cli.options import open_frontend, start_command
from gpuinfra.cli.runs import LAST
from gpuinfra.cli.standard_input import note_input, refuse_input
from gpuinfra.diagnostics import Exit, Problem

if TYPE_CHECKING:
    from gpuinfra.app.run import RunResult
    from gpuinfra.app.settings import Settings
    from gpuinfra.views.frontend import TerminalFrontend


def run(  # noqa: PLR0913, PLR0917 each is an option
    context: typer.Context,
    spec: Annotated[
        str | None,
        typer.Argument(
            autocompletion=completion.machines,
            metavar="SPEC",
            help="Spec file, folder of specs, or machine name; several run in parallel. Default: gpu.yaml, or the only "
            "spec.",
        ),
    ] = None,
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
    keep_on_failure: Annotated[
        str | None,
        typer.Option(
            "--keep-on-failure",
            metavar="TIME",
            help="If the job fails, leave the machine on for a look, for this time, such as 30m. Then it goes off.",
        ),
    ] = None,
    env: job.EnvironmentOption = None,
    env_file: job.EnvironmentFileOption = None,
    secret: job.SecretOption = None,
    build_secret: job.BuildSecretOption = None,
    shared_directory: job.SharedDirectoryOption = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Exit as soon as the job is running. The machine goes off after it.")
    ] = False,
    on_interrupt: job.InterruptOption = OnInterrupt.ASK,
    require_gpu_use: job.RequireUseOption = False,
    rebuild: job.RebuildOption = False,
    again: Annotated[
        str | None,
        typer.Option(
            "--again",
            autocompletion=completion.runs,
            metavar="ID",
            help="Repeat a run, and say what changed since.",
            show_default=False,
        ),
    ] = None,
    last: Annotated[bool, typer.Option("--last", help="Repeat the last run, as with `--again last`.")] = False,
) -> int:
    """Provision a machine, run one job on it, fetch the outputs, and deallocate it. Several specs run in parallel.

    Ctrl-C on a terminal asks whether to detach, cancel or go on, and says what each leads to. A second Ctrl-C detaches:
    the job finishes, and the machine's agent then switches the machine off.
    """
    from gpuinfra.app.specs import is_script, may_be_spec

    settings = start_command(context)
    given = [word for word in (spec, script, *(words or ())) if word is not None]
    specs, script, words = split_words(given, partial(may_be_spec, settings), partial(is_script, settings))
    if specs and script and script.startswith("-") and script != job.SEPARATOR:
        note = f"`{script}` comes after the spec, where the script is expected"
        help_line = f"put options before the spec: `gpuinfra run {quote(script)} … {join(specs)} train.py`"
        raise usage("wrong usage", note, help_line)
    request = JobRequest(
        **job.passed_words(script, words, "run"),
        gpus=gpus,
        memory=memory,
        shm_size=shm_size,
        timeout=timeout,
        keep_on_failure=keep_on_failure,
        environment=env or (),
        environment_files=env_file or (),
        secrets=secret or (),
        build_secrets=build_secret or (),
        shared_directory=shared_directory,
        require_gpu_use=require_gpu_use,
        rebuild=rebuild,
        detach=detach,
    )
    refuse_input("run")
    if again or last:
        run_id = LAST if last else str(again)
        with open_frontend(settings) as frontend:
            result = _repeat(settings, run_id, specs, request, after_run, on_interrupt, frontend)
            note_input(frontend)
        return _show(settings, result)
    return _run(settings, specs, request, after_run, on_interrupt)


def split_words(
    given: Sequence[str], may_be_spec: Callable[[str], bool], is_script: Callable[[str], bool]
) -> tuple[list[str], str | None, list[str]]:
    """Return the specs, the script or `--`, and its arguments.

    The first word is a spec, unless it is a script. Those after it are specs as long as they can be.
    """

    def ends_specs(place: int, word: str) -> bool:
        return word == job.SEPARATOR or (not may_be_spec(word) if place else is_script(word))

    end = next((place for place, word in enumerate(given) if ends_specs(place, word)), len(given))
    rest = list(given[end:])
    return list(given[:end]), rest[0] if rest else None, rest[1:]


def _run(
    settings: Settings, words: Sequence[str], request: JobRequest, after_run: str | None, on_interrupt: OnInterrupt
) -> int:
    from gpuinfra.app.machine_tasks import ErrorCollector
    from gpuinfra.app.run import run_job
    from gpuinfra.app.specs import specs_of_run

    errors = ErrorCollector()
    specs = specs_of_run(settings, words, errors)
    if not specs:
        raise Problem(*errors.diagnostics, exit_code=errors.exit_code())
    if len(specs) > 1 or errors.diagnostics:
        from gpuinfra.app.run_several import run_several
        from gpuinfra.views.run_table import RunsView, show_results

        with RunsView(json=settings.json, verbose=settings.verbose) as runs_frontend:
            done = run_several(settings, specs, errors, request, after_run, on_interrupt, runs_frontend)
            note_input(runs_frontend)
        if done.results or not done.ended_by:
            show_results(done.results, json=settings.json)
        if done.ended_by and done.exit_code is not Exit.LEFT_BEHIND:
            raise done.ended_by
        return done.exit_code
    with open_frontend(settings) as frontend:
        result = run_job(settings, specs[0], request, after_run, on_interrupt, frontend)
        note_input(frontend)
    return _show(settings, result)


def _show(settings: Settings, result: RunResult) -> int:
    from gpuinfra.views import receipt as receipt_view
    from gpuinfra.views.job import show_result as show_job

    if result.job:
        show_job(result.job.run, result.job.folder, result.receipt, result.diagnostics, json=settings.json)
    else:
        receipts = [result.receipt] if result.receipt else []
        receipt_view.show(receipts, result.diagnostics, json=settings.json)
    return result.exit_code


def _repeat(
    settings: Settings,
    run: str,
    specs: Sequence[str],
    request: JobRequest,
    after_run: str | None,
    on_interrupt: OnInterrupt,
    frontend: TerminalFrontend,
) -> RunResult:
    from gpuinfra.app.again import repeat_run

    if specs or request.script or request.command:
        note = "`--again` and `--last` repeat the command of their run on its machine"
        raise usage("wrong usage", note, "leave out the spec and the command, or the option")
    return repeat_run(settings, run, request, after_run, on_interrupt, frontend)
