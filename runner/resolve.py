"""Resolve a job from a project's files: its target, environment and command. Contacts no machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem, did_you_mean, listed
from gpuinfra.models.target import Target
from gpuinfra.runner.job_environment import check_conda, check_files, with_environment
from gpuinfra.runner.job_spec import GpuNeed, JobSpec, parse_size
from gpuinfra.workbench.compute import CLUSTER, LOCAL, LOCALDOCKER, REMOTE, REMOTEDOCKER, SHARE, Compute
from gpuinfra.workbench.project import Project, load_conda, load_project, plain_path
from gpuinfra.workbench.runconfig import CONDA_FILE, PYTHON, RunConfig
from gpuinfra.workbench.targets import BUILT_IN, invalid_values, redefinition, target_of

if TYPE_CHECKING:
    from gpuinfra.models.spec import Spec, TargetOptions

IN_CONTAINER = {LOCAL: LOCALDOCKER, REMOTE: REMOTEDOCKER}


def read_job(workspace: Path, configuration: str, spec: Spec | None = None) -> JobSpec:
    """Return the job of a run configuration, or raise Problem if the files do not describe one.

    With the spec of a machine, return the job as it will be after `up`. The files may then be missing, and the target
    has no address yet.
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
    used_files = {each.document.source.name for each in (runconfig, compute, conda) if each}
    check_files(project, configuration, used_files)
    name = (runconfig.target or runconfig.name) if runconfig else configuration
    _check_built_in(configuration, name, runconfig, compute)
    if compute and spec is None and (problems := tuple(invalid_values(compute))):
        raise Problem(*problems, exit_code=Exit.USAGE)
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
        packages=conda,
        framework=spec.target.framework if spec else PYTHON,
        share=compute.native_shared_directory if compute else SHARE,
        share_problem=_share_problem(compute) if compute else None,
        python=compute.python_location if compute else None,
        spark_submit=compute.spark_submit_location if compute else None,
        warnings=tuple(each for each in project.diagnostics if each.span and each.span.file in used_files),
    )
    if compute and not compute.shared_volumes and job.in_container:
        job = replace(job, share=None)
    job = _with_runconfig(job, runconfig) if runconfig else job
    if compute and compute.user_managed_environment:
        return replace(job, packages=None, is_user_managed=True)
    if job.in_container and not (runconfig and runconfig.user_managed):
        check_conda(project, plain_path(conda_file))
    return job


def with_spec_job(job: JobSpec, spec: Spec | None) -> JobSpec:
    """Return the job with the variables and outputs of its machine's spec, and with its environment.

    The spec's environment replaces image and conda file of the run configuration, which `up` writes from other fields.
    """
    found = spec.job if spec else None
    if found is None:
        return with_environment(job, None)
    job = replace(job, spec_environment=dict(found.env), more_outputs=found.more_outputs, ports=dict(found.ports))
    return with_environment(job, found.environment)


def _after_up(
    runconfig: RunConfig | None, compute: Compute | None, options: TargetOptions
) -> tuple[RunConfig | None, Compute | None]:
    """Return the files as they will be after `up`, which changes only the fields that the spec sets."""
    names = options.model_fields_set
    if runconfig and not runconfig.is_sdk_v1:
        runconfig = replace(
            runconfig,
            framework=options.framework if "framework" in names else runconfig.framework,
            conda_file=options.conda_dependencies if "conda_dependencies" in names else runconfig.conda_file,
        )
    if compute:
        has_gpu = options.nvidia_docker if "nvidia_docker" in names else compute.nvidia_docker
        compute = replace(
            compute,
            type=options.type if "type" in names else compute.type,
            base_docker_image=options.base_docker_image if "base_docker_image" in names else compute.base_docker_image,
            nvidia_docker=has_gpu or _adds_gpu(compute, options),
        )
    return runconfig, compute


def _adds_gpu(compute: Compute, options: TargetOptions) -> bool:
    """Return whether `up` adds `nvidiaDocker` to the file, as for GPU machines whose jobs run without Docker."""
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
        packages=None if runconfig.user_managed else job.packages,
        is_user_managed=runconfig.user_managed,
    )
    docker = runconfig.docker
    if docker is None or not docker.enabled:
        return job
    # In the format of the SDK v1, the run configuration can choose a container for any target. It cannot turn one off.
    target = replace(job.target, type=IN_CONTAINER.get(job.target.type, job.target.type))
    return replace(
        job,
        target=target,
        base_image=docker.base_image or job.base_image,
        gpu_need=GpuNeed.REQUIRED if docker.gpu or target.nvidia_docker else GpuNeed.NO,
        says_gpu=job.says_gpu or runconfig.has("environment", "docker", "gpuSupport"),
        share=job.share if docker.shared_volumes else None,
        shm_size=parse_size(docker.shm_size) if docker.shm_size else None,
    )


def _target(workspace: Path, project: Project, compute: Compute | None, name: str) -> Target:
    if compute is None:
        kind = BUILT_IN[name]
        return Target(name, name, kind, "", 0, "", "", nvidia_docker=False)
    target = target_of(workspace, project, compute)
    if target.type == CLUSTER:
        raise _unusable(compute, "jobs cannot run on clusters", "use a target of type `remotedocker` or `remote`")
    if target.type in {REMOTE, REMOTEDOCKER} and not (target.address and target.username):
        help_line = "`gpuinfra up` or `gpuinfra attach` writes both"
        raise _unusable(compute, "the target has no address, or no user name", help_line)
    if target.type in {LOCAL, LOCALDOCKER}:  # any address in the file is ignored
        target = replace(target, address="", machine="")
    return target


def _gpu_need(target: Target, *, says_gpu: bool) -> GpuNeed:
    if target.type in {LOCALDOCKER, REMOTEDOCKER} or says_gpu:
        return GpuNeed.REQUIRED if target.nvidia_docker else GpuNeed.NO
    return GpuNeed.IF_ANY


def _check_built_in(name: str, target: str, runconfig: RunConfig | None, compute: Compute | None) -> None:
    """Raise Problem if the files redefine `local` or `docker`, which always mean this computer."""
    problem = redefinition(compute) if compute else None
    if runconfig and name in BUILT_IN and target != name:
        label = f"`{name}` always means this computer, and this is another target"
        span = runconfig.target_place
        problem = Diagnostic(Code.BAD_NAME, "built-in target name", span, label, help="rename the file")
    if problem:
        raise Problem(problem, exit_code=Exit.USAGE)


def _share_problem(compute: Compute) -> Diagnostic | None:
    """Return an error if the file shares another folder: it could give a job any folder of the machine, as root."""
    if compute.shares_usual_folder:
        return None
    path, document = compute.native_shared_directory, compute.document
    return Diagnostic(
        Code.BAD_PATH,
        "shared folder outside of the default one",
        document.span(document.root.items["nativeSharedDirectory"]),
        f"`{path}` is not below `{SHARE}`",
        help=f"if jobs may read and change everything in it: `--shared-directory {path}`",
    )


def _unknown(project: Project, configuration: str, runconfig: RunConfig | None, target: str) -> Problem:
    if runconfig:
        span = runconfig.target_place
        help_line = did_you_mean(target, project.computes) or "`gpuinfra targets` lists all targets"
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


def _unusable(compute: Compute, label: str, help_line: str) -> Problem:
    span = compute.document.source.span(0, 0)
    diagnostic = Diagnostic(Code.UNFIT_MACHINE, "the target cannot run jobs", span, label, help=help_line)
    return Problem(diagnostic, exit_code=Exit.USAGE)


def script_path(project: Path, given: str, here: Path) -> str:
    """Return a script's path in the project. `given` is relative to the project or to the current folder, `here`."""
    found = next((path for path in (project / given, here / given) if is_file(path)), None)
    if found is None:
        raise no_script(project, given)
    try:
        inside = found.resolve().relative_to(project.resolve())
    except ValueError:
        raise script_not_sent(given, f"only `{project.absolute()}` is sent to the target") from None
    # Keep the name of a link: the script may depend on it.
    named = PurePosixPath(given)
    if not named.is_absolute() and ".." not in named.parts and is_file(project / given):
        return named.as_posix()
    return inside.as_posix()


def is_file(path: Path) -> bool:
    """Return whether there is such a file. The system may not allow its name."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def script_not_sent(given: str, note: str) -> Problem:
    """Return the Problem for a script that would not be on the target."""
    return Problem(
        Diagnostic(
            Code.SCRIPT_OUTSIDE,
            "the script would not be sent",
            note=f"`{given}`: {note}",
            help="move it into the project, or set the project with `--workspace`",
        ),
        exit_code=Exit.USAGE,
    )


def no_script(project: Path, given: str) -> Problem:
    """Return the Problem for a script that does not exist, with the nearest name."""
    try:
        names = [each.name for each in (project / given).parent.iterdir()]
    except (OSError, ValueError):
        names = []
    name = PurePosixPath(given).name
    nearest = None if name in names else did_you_mean(name, names)
    diagnostic = Diagnostic(
        Code.NO_SCRIPT,
        "no such script",
        note=f"`{given[:200]}` is not a file in `{project.absolute()}`",
        help=nearest or "give its path relative to the project",
    )
    return Problem(diagnostic, exit_code=Exit.USAGE)
