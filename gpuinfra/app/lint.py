"""Check targets, run configurations and environments of projects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpuinfra.app.settings import Settings
from gpuinfra.diagnostics import Code, Exit, Problem, problem
from gpuinfra.lint.fix import LintResult, check_projects, fix_projects
from gpuinfra.parse.source import holds_spec, yaml_files
from gpuinfra.workbench.project import Project, SpecJob, find_projects, load_project

if TYPE_CHECKING:
    from gpuinfra.models.spec import Spec
    from gpuinfra.runner.job_spec import JobSpec


def lint(settings: Settings, projects: Sequence[Path], *, fix: bool) -> tuple[list[Path], LintResult]:
    """Return the projects in these folders, or in the workspace, and their problems."""
    folders = list(projects) or [settings.folder]
    found = projects_in(folders)
    # A link may lead out of a project that comes from others.
    own = [folder for folder in folders if not folder.is_symlink()]
    return found, fix_projects(found, own, load_with_specs) if fix else check_projects(found, load_with_specs)


def projects_in(folders: Sequence[Path]) -> list[Path]:
    """Return every project in these folders, without duplicates. Raise Problem if there is none."""
    found: dict[Path, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            note = f"`{folder}` is not a directory"
            raise problem(Code.FILE_NOT_FOUND, "no such project", note, exit_code=Exit.USAGE)
        for root in (*find_projects(folder), *_folders_of_specs(folder)):
            found.setdefault(root.resolve(), root)
    if found:
        return list(found.values())
    listed = ", ".join(f"`{folder}`" for folder in folders)
    raise problem(
        Code.NO_PROJECT_FOUND,
        "no project found",
        f"there is no spec, and no folder `aml_config` with targets, run configurations or environments, in {listed}",
        "name a project's folder: gpuinfra lint PROJECT",
        exit_code=Exit.USAGE,
    )


def _folders_of_specs(folder: Path) -> list[Path]:
    return sorted(each for each in {file.parent for file in yaml_files(folder)} if holds_spec(each))


def load_with_specs(root: Path) -> Project:
    """Return a project, with the jobs and environments of the specs in its folder.

    Errors in a spec itself are for `validate`.
    """
    project = load_project(root)
    for spec in _specs_of(root):
        try:
            project.jobs.append(_spec_job(project, spec, _resolve(root, spec)))
        except Problem as found:
            project.diagnostics += [each for each in found.diagnostics if each not in project.diagnostics]
    return project


def _specs_of(root: Path) -> Iterator[Spec]:
    if not holds_spec(root):
        return
    from gpuinfra.parse.files import load_paths  # imports pydantic

    files = sorted(file for file in root.iterdir() if file.suffix in {".yaml", ".yml"} and file.is_file())
    for located in load_paths([str(file) for file in files]).specs:
        yield located.spec


def _resolve(root: Path, spec: Spec) -> JobSpec:
    """Return the job of a spec without its command."""
    from gpuinfra.app.workspace import with_options
    from gpuinfra.runner.resolve import read_job, with_spec_job

    return with_spec_job(with_options(read_job(root, spec.target_name, spec), spec), spec)


def _spec_job(project: Project, spec: Spec, job: JobSpec) -> SpecJob:
    from gpuinfra.models.images import ALIAS_CUDA, ALIAS_DRIVER, ALIASES
    from gpuinfra.runner.sources.dockerfile import base_image, installed_packages
    from gpuinfra.workbench.base_images import choose_base_image
    from gpuinfra.workbench.cuda import shown

    packages = job.packages if job.installs_packages else None
    driver = ALIAS_CUDA if spec.image in ALIASES else None
    image, base = job.base_image if job.in_container else None, None
    if job.dockerfile:
        packages, base = installed_packages(job.project, job.dockerfile), base_image(job.project, job.dockerfile)
        image = base.text if base else None
    elif job.in_container and image is None and job.requires_gpu and driver:
        image = choose_base_image(str(ALIAS_DRIVER), shown(driver)).name
    if packages:
        packages = project.condas.setdefault(packages.path, packages)
    return SpecJob(spec.target_name, packages, image, job.requires_gpu, driver, base)
