"""Read what a project's files say about a job: its target, its environment and its command. No machine is asked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem, Severity
from gpuinfra.models.target import DEFAULT_IMAGE, Target
from gpuinfra.runner.job_spec import GpuNeed, JobSpec, parse_size
from gpuinfra.suggest import did_you_mean, listed
from gpuinfra.workbench.compute import CLUSTER, LOCAL, LOCALDOCKER, REMOTE, REMOTEDOCKER, SHARE, Compute
from gpuinfra.workbench.conda import Conda
from gpuinfra.workbench.project import Project, load_conda, load_project, plain_path
from gpuinfra.workbench.runconfig import CONDA_FILE, PYTHON, RunConfig
from gpuinfra.workbench.targets import BUILT_IN, redefinition, target_of

if TYPE_CHECKING:
    from gpuinfra.models.spec import Spec, TargetOptions

IN_CONTAINER = {LOCAL: LOCALDOCKER, REMOTE: REMOTEDOCKER}


def read_job(workspace: Path, configuration: str, spec: Spec | None = None) -> JobSpec:
    """Return what the run configuration means; what keeps it from meaning anything raises a Problem.

    With the spec of a machine, it is the job as it will be after `up`: the files may be missing, and the target has no
    address yet if they are.
    """
    project = load_project(workspace)
    runconfig = project.runconfigs.get(configuration)
    compute = project.target_of(runconfig) if runconfig else project.computes.get(configuration)
    says_gpu = compute is not None and "nvidiaDocker" in compute.document.root.items
    conda_file = runconfig.conda_file if runconfig else CONDA_FILE
    if spec:
        runconfig, compute = _after_up(runconfig, compute, spec.target)
        says_gpu = says_gpu or _will_say_gpu(compute, spec.target)
        conda_file = runconfig.conda_file if runconfig else spec.target.conda_dependencies
    conda = load_conda(project, conda_file)
    used = {_file(each) for each in (runconfig, compute, conda) if each}
    _check_files(project, configuration, used)
    name = (runconfig.target or runconfig.name) if runconfig else configuration
    _check_built_in(configuration, name, runconfig, compute)
    if compute is None and name not in BUILT_IN and spec is None:
        raise _unknown(project, configuration, runconfig, name)
    target = _new_target(spec, name) if spec and compute is None else _target(workspace, project, compute, name)
    job = JobSpec(
        project=workspace,
        configuration=configuration,
        target=target,
        gpu_need=_gpu_need(target, says_gpu=says_gpu),
        says_gpu=says_gpu,
        base_image=target.base_docker_image,
        conda=conda,
        framework=spec.target.framework if spec else PYTHON,
        share=compute.native_shared_directory if compute else SHARE,
        share_problem=_share_problem(compute) if compute else None,
        python=compute.python_location if compute else None,
        spark_submit=compute.spark_submit_location if compute else None,
        warnings=tuple(each for each in project.diagnostics if each.span and each.span.file in used),
    )
    if compute and not compute.shared_volumes and job.in_container:
        job = replace(job, share=None)
    job = _with_runconfig(job, runconfig) if runconfig else job
    if compute and compute.user_managed_environment:
        return replace(job, conda=None)
    if job.in_container and not (runconfig and runconfig.user_managed):
        _check_conda(project, plain_path(conda_file))
    return job


def _after_up(
    runconfig: RunConfig | None, compute: Compute | None, options: TargetOptions
) -> tuple[RunConfig | None, Compute | None]:
    """Return the files as `up` leaves them: it changes what the spec sets, and keeps what it leaves out."""
    said = options.model_fields_set
    if runconfig and not runconfig.is_later:
        runconfig = replace(
            runconfig,
            framework=options.framework if "framework" in said else runconfig.framework,
            conda_file=options.conda_dependencies if "conda_dependencies" in said else runconfig.conda_file,
        )
    if compute:
        gives_gpu = options.nvidia_docker if "nvidia_docker" in said else compute.nvidia_docker
        compute = replace(
            compute,
            type=options.type if "type" in said else compute.type,
            base_docker_image=options.base_docker_image if "base_docker_image" in said else compute.base_docker_image,
            nvidia_docker=gives_gpu or _adds_gpu(compute, options),
        )
    return runconfig, compute


def _adds_gpu(compute: Compute, options: TargetOptions) -> bool:
    """Whether `up` adds `nvidiaDocker` to the file: for a machine with a GPU whose jobs run in its own Python."""
    return options.type == REMOTE and options.nvidia_docker and compute.document.value("nvidiaDocker") is None


def _will_say_gpu(compute: Compute | None, options: TargetOptions) -> bool:
    if compute is None:
        return options.type == REMOTEDOCKER or options.nvidia_docker
    return "nvidia_docker" in options.model_fields_set or _adds_gpu(compute, options)


def _new_target(spec: Spec, name: str) -> Target:
    """Return the target that `up` will write for a machine."""
    options = spec.target
    image = options.base_docker_image if options.type == REMOTEDOCKER else None
    return Target(
        name,
        spec.name,
        options.type,
        address="",
        port=22,
        username=spec.admin.username,
        host_key="",
        base_docker_image=image,
        nvidia_docker=options.nvidia_docker,
    )


def _with_runconfig(job: JobSpec, runconfig: RunConfig) -> JobSpec:
    job = replace(
        job,
        framework=runconfig.framework,
        arguments=runconfig.arguments,
        environment=dict(runconfig.environment_variables),
        prepares=runconfig.prepare_environment,
        tracked=runconfig.tracked_run,
        script=runconfig.script or "",
        conda=None if runconfig.user_managed else job.conda,
    )
    docker = runconfig.docker
    if docker is None or not docker.enabled:
        return job
    # The later generation leaves it to the run whether there is a container, and which.
    target = replace(job.target, type=IN_CONTAINER.get(job.target.type, job.target.type))
    return replace(
        job,
        target=target,
        base_image=docker.base_image or job.base_image or DEFAULT_IMAGE,
        gpu_need=GpuNeed.REQUIRED if docker.gpu or target.nvidia_docker else GpuNeed.NO,
        says_gpu=job.says_gpu or runconfig.says("environment", "docker", "gpuSupport"),
        share=job.share if docker.shared_volumes else None,
        shm_size=parse_size(docker.shm_size) if docker.shm_size else None,
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


def _gpu_need(target: Target, *, says_gpu: bool) -> GpuNeed:
    if target.type in {LOCALDOCKER, REMOTEDOCKER} or says_gpu:
        return GpuNeed.REQUIRED if target.nvidia_docker else GpuNeed.NO
    return GpuNeed.IF_ANY


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


def script_path(project: Path, given: str, here: Path) -> str:
    """A script by its path in the project. What is given may also be a path from the current folder."""
    found = next((path for path in (project / given, here / given) if _is_file(path)), None)
    if found is None:
        raise _no_script(project, given)
    try:
        inside = found.resolve().relative_to(project.resolve())
    except ValueError:
        raise outside(given, f"it is not below `{project.absolute()}`, and only that is sent to the target") from None
    # As it was named, where that is in the project too: a link may have a name that matters.
    named = PurePosixPath(given)
    if not named.is_absolute() and ".." not in named.parts and _is_file(project / given):
        return named.as_posix()
    return inside.as_posix()


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that no system takes
        return False


def outside(given: str, note: str) -> Problem:
    """A script that would not be on the target."""
    return Problem(
        Diagnostic(
            Code.SCRIPT_OUTSIDE,
            "the script is not sent along",
            note=f"`{given}`: {note}",
            help="move it into the project, or give its folder by `--workspace`",
        ),
        exit_code=Exit.USAGE,
    )


def _no_script(project: Path, given: str) -> Problem:
    try:
        names = [each.name for each in (project / given).parent.iterdir()]
    except (OSError, ValueError):
        names = []
    nearest = did_you_mean(PurePosixPath(given).name, names)
    diagnostic = Diagnostic(
        Code.NO_SCRIPT,
        "no such script",
        note=f"`{given[:200]}` is not a file in `{project.absolute()}`",
        help=nearest or "give its path from the project's folder",
    )
    return Problem(diagnostic, exit_code=Exit.USAGE)
