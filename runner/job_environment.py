"""What decides a job's environment: the spec, the run configuration, or the project's own files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem, Severity, problem
from gpuinfra.runner.sources import pyproject
from gpuinfra.runner.sources.dockerfile import Dockerfile, check_builder
from gpuinfra.runner.sources.requirements_file import read_requirements, read_source
from gpuinfra.workbench.project import Project, file_within, load_conda, load_project, plain_path

if TYPE_CHECKING:
    from gpuinfra.models.job import Environment
    from gpuinfra.runner.job_spec import JobSpec

    Reader = Callable[[JobSpec, str, str], JobSpec]

CONDA_FILES = ("environment.yml", "environment.yaml")
REQUIREMENTS = "requirements.txt"
DOCKERFILE = "Dockerfile"
BY_SPEC, BY_RUNCONFIG, BY_PROJECT = "`job.environment` of the spec", "the run configuration", "a file of the project"


def with_environment(job: JobSpec, declared: Environment | None) -> JobSpec:
    """Return the job with its environment: the declared one, else that of run configuration or project files.

    Without a declaration, jobs without a container use the machine's Python, as in Workbench.
    """
    if declared:
        return _with_declared(job, declared)
    if not job.in_container or job.is_user_managed or job.environment_source:
        return job
    return _with_project_files(job)


def _with_declared(job: JobSpec, declared: Environment) -> JobSpec:
    job = replace(job, is_user_managed=False)
    if not job.in_container:
        if declared.needs_container:
            raise _needs_container(job)
        # The environment has its own interpreter.
        job = replace(job, has_own_environment=True, python=None)
    if declared.image:
        source = f"the image {declared.image} ({BY_SPEC})"
        return replace(job, base_image=declared.image, packages=None, environment_source=source)
    if declared.dockerfile:
        return _with_dockerfile(job, declared.dockerfile, BY_SPEC, declared.context or ".")
    readers = {_with_conda: declared.conda, _with_requirements: declared.requirements}
    for reader, path in {**readers, _with_pyproject: declared.pyproject}.items():
        if path:
            return reader(job, path, BY_SPEC)
    return _with_project_files(job)


def _with_project_files(job: JobSpec) -> JobSpec:
    """Return the job with the environment that the project's files describe; `docs/jobs.md` has their order."""
    if job.packages:
        return replace(job, environment_source=_shown(job.packages.path, BY_RUNCONFIG))
    chosen = own_file(job.project, in_container=job.in_container)
    if chosen is None:
        # There is nothing to install.
        return replace(job, has_own_environment=False)
    path, reader = chosen
    return reader(job, path, BY_PROJECT)


def own_file(project: Path, *, in_container: bool) -> tuple[str, Reader] | None:
    """Return the file that describes the environment, with its reader, or None if there is none."""
    for path in CONDA_FILES:
        if file_within(project, path):
            return path, _with_conda
    is_project = pyproject.has_dependencies(project, pyproject.FILE)
    if is_project and pyproject.lock_of(project, pyproject.FILE):
        return pyproject.FILE, _with_pyproject
    if file_within(project, REQUIREMENTS):
        return REQUIREMENTS, _with_requirements
    if is_project:
        return pyproject.FILE, _with_pyproject
    if in_container and file_within(project, DOCKERFILE):
        return DOCKERFILE, _with_dockerfile
    return None


def _with_dockerfile(job: JobSpec, path: str, origin: str, context: str = ".") -> JobSpec:
    file, folder = file_within(job.project, path), job.project / context
    if file is None or not folder.is_dir():
        found = f"`{path}` is not a file" if file is None else f"`{context}`, its context, is not a folder"
        note = f"{found} in `{job.project.absolute()}`"
        raise problem(Code.MISSING_FILE, "missing file", note, "correct `job.environment`", exit_code=Exit.USAGE)
    source = read_source(job.project, path)
    check_builder(source)
    dockerfile = Dockerfile(path, context, source.text)
    return replace(job, dockerfile=dockerfile, packages=None, environment_source=_shown(path, origin))


def _with_requirements(job: JobSpec, path: str, origin: str) -> JobSpec:
    return replace(job, packages=read_requirements(job.project, path), environment_source=_shown(path, origin))


def _with_pyproject(job: JobSpec, path: str, origin: str) -> JobSpec:
    packages = pyproject.read_pyproject(job.project, path)
    lock = f" with {pyproject.LOCK}" if pyproject.lock_of(job.project, path) else ""
    return replace(job, packages=packages, environment_source=_shown(f"{path}{lock}", origin))


def _with_conda(job: JobSpec, path: str, origin: str) -> JobSpec:
    project = load_project(job.project)
    conda = load_conda(project, path)
    if conda is None:
        check_conda(project, plain_path(path))
        note = f"`{path}`, the `job.environment` of the spec, is not a file in `{job.project.absolute()}`"
        help_line = "create it, or remove `environment`"
        raise problem(Code.MISSING_FILE, "missing file", note, help_line, exit_code=Exit.USAGE)
    check_files(project, job.configuration, {conda.document.source.name})
    return replace(job, packages=conda, environment_source=_shown(path, origin))


def _shown(path: str, origin: str) -> str:
    return f"{path} ({origin})"


def _needs_container(job: JobSpec) -> Problem:
    note = f"`{job.target.name}` is of type `{job.target.type}`; an image or Dockerfile in `job.environment` needs one"
    help_line = (
        "use `requirements`, `pyproject` or `conda`; or write `target.type: remotedocker`, and `gpuinfra up SPEC`"
    )
    diagnostic = Diagnostic(Code.NO_EFFECT, "an environment that needs a container", note=note, help=help_line)
    return Problem(diagnostic, exit_code=Exit.USAGE)


def check_files(project: Project, configuration: str, used_files: set[str]) -> None:
    """Raise Problem if a file that the job uses, or would use, has an error."""
    names = {f"{configuration}.runconfig", f"{configuration}.compute"}

    def concerns(diagnostic: Diagnostic) -> bool:
        if diagnostic.span:
            return diagnostic.span.file in used_files or Path(diagnostic.span.file).name in names
        # The error of an unreadable file has no span; its note names the file.
        return any(f"/{name}`" in (diagnostic.note or "") for name in names)

    problems = [each for each in project.diagnostics if each.severity is Severity.ERROR and concerns(each)]
    if problems:
        raise Problem(*problems, exit_code=Exit.USAGE)


def check_conda(project: Project, path: str) -> None:
    """Raise Problem if the conda file exists but cannot be read: the job would run without its packages."""
    if path not in project.unreadable:
        return
    file = str(project.root / path)

    def concerns(diagnostic: Diagnostic) -> bool:
        if diagnostic.span:
            return diagnostic.span.file == file
        return (diagnostic.note or "").startswith(f"`{file}`")

    help_line = "put the file itself into the project, or name another one in the run configuration"
    problems = (replace(each, help=each.help or help_line) for each in project.diagnostics if concerns(each))
    raise Problem(*problems, exit_code=Exit.USAGE)
