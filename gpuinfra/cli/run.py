"""`gpuinfra run`: a machine for one job. It is made, used, and off again; or says that it is not."""

from __future__ import annotations

from dataclasses import replace
from getpass import getuser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuinfra.app.settings import Settings
from gpuinfra.cli import job_options as job
from gpuinfra.cli.job_options import JobOptions, OnInterrupt, usage, variables_of
from gpuinfra.cli.options import begin
from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem

if TYPE_CHECKING:
    from gpuinfra.models.spec import Spec
    from gpuinfra.workbench.project import Project

CHOICES = ("deallocate", "delete", "keep")
# The address of a machine that is not there.
NOT_YET = "not-yet.invalid"


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
    from gpuinfra.app.machines import one_located, progress_view
    from gpuinfra.app.run_workflow import RunWorkflow

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
    located = one_located(settings, spec)
    found = located.spec
    afterwards = _afterwards(found, after_run)
    options = replace(options, variables=variables_of(options))
    _check(settings, found, options)
    with progress_view(settings) as progress:
        story = RunWorkflow(settings, located, options, afterwards, on_interrupt, progress)
        story.execute()
    return story.show()


def _afterwards(spec: Spec, given: str | None) -> str:
    from gpuinfra.suggest import did_you_mean

    if given is None:
        return spec.lifecycle.after_run
    if given not in CHOICES:
        help_line = did_you_mean(given, CHOICES) or "`deallocate`, `delete` or `keep`"
        raise usage("unknown value", f"`--after-run {given}`", help_line)
    return given


def _check(settings: Settings, spec: Spec, options: JobOptions) -> None:
    """All that can be known before a machine is billed."""
    from gpuinfra.app.job_checks import check_packages, wishes_of
    from gpuinfra.app.workspace import check_workspace
    from gpuinfra.runner.assignment import assign
    from gpuinfra.workspace import find_workspace

    if spec.power != "running":
        note = f"the spec of `{spec.name}` says `power: {spec.power}`"
        diagnostic = Diagnostic(Code.MACHINE_IS_OFF, "the machine is to be off", note=note, help="`power: running`")
        raise Problem(diagnostic, exit_code=Exit.USAGE)
    workspace = find_workspace(settings.workspace)
    project = _expected(workspace, spec)
    assigned = assign(workspace, spec.target_name, project)
    wishes = wishes_of(assigned, options)
    check_packages(assigned, wishes.gpus, wishes.build_secrets)
    if settings.cloud == "sandbox" and assigned.in_container:
        _check_own_engine(spec)
    check_workspace(settings)


def _check_own_engine(spec: Spec) -> None:
    """A simulated machine runs containers by the Docker Engine of this computer."""
    from gpuinfra.cli.up import WITHOUT_DOCKER
    from gpuinfra.runner.machine.checkup import LIMIT_SECONDS, look_at_docker
    from gpuinfra.runner.machine.local import LocalConnection

    check, _ = look_at_docker(LocalConnection(), getuser(), LIMIT_SECONDS * 2)
    if not check.passed:
        note = f"{check.found}; the simulated `{spec.name}` would use the engine of this computer; nothing was created"
        help_line = f"{check.help}; or {WITHOUT_DOCKER}"
        raise Problem(Diagnostic(Code.NO_ENGINE, "no Docker Engine on this computer", note=note, help=help_line))


def _expected(workspace: Path, spec: Spec) -> Project:
    """The project with the target's files: those that there are, or as `up` will write them."""
    from gpuinfra.load.document import read_document
    from gpuinfra.models.target import Target
    from gpuinfra.workbench.compute import read_compute
    from gpuinfra.workbench.project import load_project
    from gpuinfra.workbench.runconfig import read_runconfig
    from gpuinfra.workbench.targets import compute_text, runconfig_text

    project, name, asked = load_project(workspace), spec.target_name, spec.target
    target = Target(
        name=name,
        machine=spec.name,
        type=asked.type,
        address=NOT_YET,
        port=22,
        username=spec.admin.username,
        host_key="",
        base_docker_image=asked.base_docker_image,
        nvidia_docker=asked.nvidia_docker,
        framework=asked.framework,
        conda_dependencies=asked.conda_dependencies,
    )
    if name not in project.computes:
        document = read_document(f"{name}.compute", compute_text(target).encode())
        project.computes[name] = read_compute(name, document)[0]
    if name not in project.runconfigs:
        document = read_document(f"{name}.runconfig", runconfig_text(target).encode())
        project.runconfigs[name] = read_runconfig(name, document)[0]
    return project
