"""What a project's files say about a job: its target, its environment and its command. Nothing is asked of anybody."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem, Severity
from gpuinfra.models.target import DEFAULT_IMAGE, Target
from gpuinfra.suggest import did_you_mean, listed
from gpuinfra.workbench.compute import CLUSTER, LOCAL, LOCALDOCKER, REMOTE, REMOTEDOCKER, SHARE, Compute
from gpuinfra.workbench.conda import Conda
from gpuinfra.workbench.project import Project, load_project, plain_path
from gpuinfra.workbench.runconfig import CONDA_FILE, PYSPARK, PYTHON, SCRIPT, RunConfig
from gpuinfra.workbench.targets import BUILT_IN, redefinition, target_of

IN_CONTAINER = {LOCAL: LOCALDOCKER, REMOTE: REMOTEDOCKER}


class WantsGpu(Enum):
    """Whether a job is to have a GPU."""

    REQUIRED = "required"
    IF_ANY = "if there is one"
    NO = "no"


@dataclass(frozen=True)
class Assignment:
    """One run configuration, with what it refers to."""

    project: Path
    configuration: str
    target: Target
    gpu: WantsGpu
    says_gpu: bool = False
    """Whether a file says so itself, and nobody has to guess."""
    base_image: str | None = None
    """Of a job in a container."""
    conda: Conda | None = None
    share: str | None = SHARE
    """The folder of the machine that all its jobs share; None where they share none."""
    share_problem: Diagnostic | None = None
    """Why jobs may not share that folder unless the command line says so."""
    framework: str = PYTHON
    arguments: tuple[str, ...] = (SCRIPT,)
    environment: dict[str, str] = field(default_factory=dict)
    python: str | None = None
    """The interpreter, where the target's file names one."""
    spark_submit: str | None = None
    prepares: bool = True
    tracked: bool = True
    script: str | None = None
    """What runs if nobody says otherwise."""
    shm_size: str | None = None
    warnings: tuple[Diagnostic, ...] = ()

    @property
    def in_container(self) -> bool:
        """Whether its jobs run in containers."""
        return self.target.type in {LOCALDOCKER, REMOTEDOCKER}

    def command(self, script: str, words: Sequence[str], python: Sequence[str]) -> tuple[str, ...]:
        """What the job runs: the arguments of the file, with the script in its place, then the words of the user.

        `python` starts the interpreter of the ground, where the target's file names none.
        """
        given = [script if each == SCRIPT else each for each in self.arguments]
        if self.framework == PYSPARK:
            return (self.spark_submit or "spark-submit", *given, *words)
        return (*((self.python,) if self.python else python), *given, *words)


def assign(workspace: Path, configuration: str, project: Project | None = None) -> Assignment:
    """What `-c NAME` means. Whatever keeps it from meaning something raises a Problem."""
    project = project or load_project(workspace)
    runconfig = project.runconfigs.get(configuration)
    compute = project.target_of(runconfig) if runconfig else project.computes.get(configuration)
    conda = project.conda_of(runconfig) if runconfig else _usual_conda(project)
    used = {_file(each) for each in (runconfig, compute, conda) if each}
    _check_files(project, configuration, used)
    name = (runconfig.target or runconfig.name) if runconfig else configuration
    _check_built_in(configuration, name, runconfig, compute)
    if compute is None and name not in BUILT_IN:
        raise _unknown(project, configuration, runconfig, name)
    target = _target(workspace, project, compute, name)
    made = Assignment(
        project=workspace,
        configuration=configuration,
        target=target,
        gpu=_gpu(target, compute),
        says_gpu=compute is not None and "nvidiaDocker" in compute.document.root.items,
        base_image=target.base_docker_image,
        conda=conda,
        share=compute.native_shared_directory if compute else SHARE,
        share_problem=_share_problem(compute) if compute else None,
        python=compute.python_location if compute else None,
        spark_submit=compute.spark_submit_location if compute else None,
        warnings=tuple(each for each in project.diagnostics if each.span and each.span.file in used),
    )
    if compute and not compute.shared_volumes and made.in_container:
        made = replace(made, share=None)
    made = _with_runconfig(made, runconfig) if runconfig else made
    if compute and compute.user_managed_environment:
        return replace(made, conda=None)
    if made.in_container and not (runconfig and runconfig.user_managed):
        _check_conda(project, plain_path(runconfig.conda_file if runconfig else CONDA_FILE))
    return made


def _with_runconfig(made: Assignment, runconfig: RunConfig) -> Assignment:
    made = replace(
        made,
        framework=runconfig.framework,
        arguments=runconfig.arguments,
        environment=dict(runconfig.environment_variables),
        prepares=runconfig.prepare_environment,
        tracked=runconfig.tracked_run,
        script=runconfig.script,
        conda=None if runconfig.user_managed else made.conda,
    )
    docker = runconfig.docker
    if docker is None or not docker.enabled:
        return made
    # The later generation leaves it to the run whether there is a container, and which.
    target = replace(made.target, type=IN_CONTAINER.get(made.target.type, made.target.type))
    return replace(
        made,
        target=target,
        base_image=docker.base_image or made.base_image or DEFAULT_IMAGE,
        gpu=WantsGpu.REQUIRED if docker.gpu or target.nvidia_docker else WantsGpu.NO,
        says_gpu=made.says_gpu or runconfig.says("environment", "docker", "gpuSupport"),
        share=made.share if docker.shared_volumes else None,
        shm_size=docker.shm_size,
    )


def _target(workspace: Path, project: Project, compute: Compute | None, name: str) -> Target:
    if compute is None:
        kind = BUILT_IN[name]
        image = DEFAULT_IMAGE if kind == LOCALDOCKER else None
        return Target(name, name, kind, "", 0, "", "", base_docker_image=image, nvidia_docker=False)
    target = target_of(workspace, project, compute)
    if target.type == CLUSTER:
        raise _misfit(compute, "jobs are not sent to clusters", "a machine's target is of type `remotedocker`")
    if target.type in {REMOTE, REMOTEDOCKER} and not (target.address and target.username):
        raise _misfit(compute, "it has no address, or no user name", "`gpuinfra up` or `gpuinfra attach` writes both")
    if target.type in {LOCAL, LOCALDOCKER}:
        # An address that such a file may have is of no account.
        target = replace(target, address="", machine="")
    if target.type in {LOCALDOCKER, REMOTEDOCKER} and not target.base_docker_image:
        target = replace(target, base_docker_image=DEFAULT_IMAGE)
    return target


def _gpu(target: Target, compute: Compute | None) -> WantsGpu:
    if target.type in {LOCALDOCKER, REMOTEDOCKER} or (compute and "nvidiaDocker" in compute.document.root.items):
        return WantsGpu.REQUIRED if target.nvidia_docker else WantsGpu.NO
    return WantsGpu.IF_ANY


def _check_built_in(name: str, target: str, runconfig: RunConfig | None, compute: Compute | None) -> None:
    """Raise a Problem if files make something else of `local` or `docker`: those mean this computer."""
    problem = redefinition(compute) if compute else None
    if runconfig and name in BUILT_IN and target != name:
        label = f"`{name}` is built in, for this computer, and this is another target"
        span = runconfig.place("target" if runconfig.is_later else "Target")
        problem = Diagnostic(Code.BAD_NAME, "built-in name of a target", span, label, help="rename the file")
    if problem:
        raise Problem(problem, exit_code=Exit.USAGE)


def _share_problem(compute: Compute) -> Diagnostic | None:
    """A project's file could give a job any folder of the machine, with root's rights."""
    if compute.shares_usual_folder:
        return None
    path, document = compute.native_shared_directory, compute.document
    return Diagnostic(
        Code.BAD_PATH,
        "shared folder outside of the usual one",
        document.span(document.root.items["nativeSharedDirectory"]),
        f"`{path}` is not below `{SHARE}`",
        help=f"if jobs may see and change all that is in it: `--shared-directory {path}`",
    )


def _usual_conda(project: Project) -> Conda | None:
    return project.condas.get(CONDA_FILE)


def _file(part: RunConfig | Compute | Conda) -> str:
    return part.document.source.name


def _check_files(project: Project, configuration: str, used: set[str]) -> None:
    """A file that is used, or would be, has to be readable, and right."""
    named = {f"{configuration}.runconfig", f"{configuration}.compute"}
    problems = [
        each
        for each in project.diagnostics
        if each.severity is Severity.ERROR
        and (each.span.file in used or Path(each.span.file).name in named if each.span else _names(each, named))
    ]
    if problems:
        raise Problem(*problems, exit_code=Exit.USAGE)


def _check_conda(project: Project, path: str) -> None:
    """Raise a Problem if the environment's file is there and cannot be read: the job would run without its packages."""
    if path in project.unreadable:
        file = str(project.root / path)
        problems = [
            each
            for each in project.diagnostics
            if (each.span.file == file if each.span else (each.note or "").startswith(f"`{file}`"))
        ]
        help_line = "put the file itself into the project, or name another one in the run configuration"
        raise Problem(*(replace(each, help=each.help or help_line) for each in problems), exit_code=Exit.USAGE)


def _names(diagnostic: Diagnostic, files: set[str]) -> bool:
    # A file that cannot be read at all has no place in it to point at.
    return any(f"/{file}`" in (diagnostic.note or "") for file in files)


def _unknown(project: Project, configuration: str, runconfig: RunConfig | None, target: str) -> Problem:
    if runconfig:
        span = runconfig.place("target" if runconfig.is_later else "Target")
        help_line = did_you_mean(target, project.computes) or "`gpuinfra targets` lists those that there are"
        label = f"there is no `{target}.compute`"
        return Problem(
            Diagnostic(Code.UNKNOWN_TARGET, "unknown target", span, label, help=help_line), exit_code=Exit.USAGE
        )
    known = sorted({*project.runconfigs, *project.computes, *BUILT_IN})
    return Problem(
        Diagnostic(
            Code.NO_SUCH_CONFIGURATION,
            "no such run configuration",
            note=f"`{project.root}` has no `aml_config/{configuration}.runconfig`; there is {listed(known)}",
            help=did_you_mean(configuration, known) or "`gpuinfra up` and `gpuinfra attach` write one for a machine",
        ),
        exit_code=Exit.USAGE,
    )


def _misfit(compute: Compute, label: str, help_line: str) -> Problem:
    span = compute.document.source.span(0, 0)
    diagnostic = Diagnostic(Code.UNFIT_MACHINE, "no target for jobs", span, label, help=help_line)
    return Problem(diagnostic, exit_code=Exit.USAGE)
