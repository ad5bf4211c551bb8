"""A Workbench project: the files in `aml_config`, and the files that they name."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from gpuinfra.diagnostics import Code, Diagnostic, Problem, listed, problem
from gpuinfra.parse.document import Document, read_document
from gpuinfra.parse.source import MAX_BYTES
from gpuinfra.parse.tree import Scalar
from gpuinfra.workbench import compute as compute_file
from gpuinfra.workbench import runconfig as runconfig_file
from gpuinfra.workbench.compute import Compute, read_compute
from gpuinfra.workbench.conda import Conda, read_conda
from gpuinfra.workbench.cuda import Cuda
from gpuinfra.workbench.runconfig import CONDA_FILE, RunConfig, read_runconfig

FOLDER = "aml_config"
# Folders for these files. The project is the parent folder.
_FOLDERS = {FOLDER, ".azureml"}
_SKIPPED = {"node_modules", "__pycache__"}
# What is read in such a folder outside the project.
_SHARED = (compute_file.SUFFIX, runconfig_file.SUFFIX, ".yml", ".yaml")

T = TypeVar("T")


@dataclass(frozen=True)
class SpecJob:
    """How jobs run on a spec's machine."""

    name: str
    """The target's name."""
    packages: Conda | None
    """What is installed for them; None if no file of the project says."""
    image: str | None
    """The base image of their containers, or None without a container."""
    needs_gpu: bool
    driver: Cuda | None
    """The newest CUDA that the driver of the machine's image supports, if known."""
    base: Scalar | None = None
    """Where a Dockerfile names the image."""


@dataclass
class Project:
    """A project's files. `diagnostics` has the problems of reading them."""

    root: Path
    computes: dict[str, Compute] = field(default_factory=dict)
    runconfigs: dict[str, RunConfig] = field(default_factory=dict)
    condas: dict[str, Conda] = field(default_factory=dict)
    """By path relative to the project."""
    sparks: dict[str, Document] = field(default_factory=dict)
    """Spark settings by path. They have no equivalent, so they are not parsed further."""
    unreadable: set[str] = field(default_factory=set)
    """Relative paths of files that exist, but cannot be read."""
    jobs: list[SpecJob] = field(default_factory=list)
    """Jobs of the project's specs, if these were read. Their packages are among `condas`."""
    diagnostics: list[Diagnostic] = field(default_factory=list)

    def target_of(self, runconfig: RunConfig) -> Compute | None:
        """Return the target of a run configuration, if its file exists."""
        return self.computes.get(runconfig.target or runconfig.name)

    def conda_of(self, runconfig: RunConfig) -> Conda | None:
        """Return the environment of a run configuration, if its file exists."""
        return self.condas.get(plain_path(runconfig.conda_file))


def find_projects(folder: Path) -> Iterator[Path]:
    """Return every project at and below this folder. For `aml_config` itself, return its parent."""
    if folder.absolute().name in _FOLDERS and _has_files(folder):
        yield folder.parent if folder.name else folder / ".."
        return
    for current, subfolders, _ in os.walk(folder):
        subfolders[:] = sorted(
            name for name in subfolders if name in _FOLDERS or not (name.startswith(".") or name in _SKIPPED)
        )
        if any(_has_files(Path(current, name)) for name in _FOLDERS & set(subfolders)):
            yield Path(current)


def load_project(root: Path) -> Project:
    """Load a project. Files that cannot be read get a diagnostic."""
    project = Project(root)
    for folder in sorted(_FOLDERS):
        for file in _files(root / folder):
            path = f"{folder}/{file.name}"
            if file.suffix == compute_file.SUFFIX:
                _take(project, path, project.computes, file.stem, read_compute)
            elif file.suffix == runconfig_file.SUFFIX:
                _take(project, path, project.runconfigs, file.stem, read_runconfig)
    for path in _conda_paths(project):
        _take(project, path, project.condas, path, read_conda)
    for path in sorted({plain_path(each.spark_file) for each in project.runconfigs.values() if each.spark_file}):
        if file_within(root, path):
            _take(project, path, project.sparks, path, lambda _, document: (document, []))
    return project


def load_conda(project: Project, path: str) -> Conda | None:
    """Return the environment file at this path of the project, read now if it was not; None if there is none."""
    path = plain_path(path)
    if path not in project.condas and path not in project.unreadable and file_within(project.root, path):
        _take(project, path, project.condas, path, read_conda)
    return project.condas.get(path)


def _take(
    project: Project,
    path: str,
    into: dict[str, T],
    name: str,
    reader: Callable[[str, Document], tuple[T, list[Diagnostic]]],
) -> None:
    try:
        is_inside = (project.root / path).resolve().is_relative_to(project.root.resolve())
        if not is_inside:
            _check_shared(project.root, path)
        document = read_file(project.root / path, shows_lines=is_inside)
    except Problem as problem:
        project.unreadable.add(path)
        project.diagnostics += problem.diagnostics
        return
    into[name], found = reader(name, document)
    project.diagnostics += found


def _check_shared(root: Path, path: str) -> None:
    """Raise a Problem if a file outside the project is not one that teams share.

    The folder itself may be a link, but in a foreign project that may lead to any folder of the user.
    """
    real = (root / path).resolve()
    if not any(real.is_relative_to((root / folder).resolve()) for folder in _FOLDERS):
        raise _unreadable(root / path, "a symbolic link leads out of the project")
    if real.suffix not in _SHARED:
        raise _unreadable(root / path, f"a symbolic link leads out of the project, and it is not {listed(_SHARED)}")


def read_file(file: Path, *, shows_lines: bool = True) -> Document:
    """Return a file as a document. Raises a Problem if it cannot be read."""
    return read_document(str(file), read_content(file), shows_lines=shows_lines)


def read_content(file: Path) -> bytes:
    """Return a file's content, up to a limit. Raises a Problem if it cannot be read.

    Foreign projects may contain endless special files, and links to private files.
    """
    try:
        if not file.is_file():
            raise _unreadable(file, "it is not a regular file")
        if file.is_symlink() and not file.resolve().is_relative_to(file.parent.parent.resolve()):
            raise _unreadable(file, "it is a symbolic link that leads out of the project")
        with file.open("rb") as stream:
            return stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise _unreadable(file, str(error.strerror)) from error


def _unreadable(file: Path, reason: str) -> Problem:
    return problem(Code.FILE_UNREADABLE, "file cannot be read", f"`{file}`: {reason}")


def _conda_paths(project: Project) -> list[str]:
    """Return environment files that run configurations name, and those in the same folders."""
    named = {plain_path(each.conda_file) for each in project.runconfigs.values() if not each.user_managed}
    for folder in _FOLDERS:
        named |= {
            f"{folder}/{file.name}"
            for file in _files(project.root / folder)
            if file.suffix in {".yml", ".yaml"} and ("conda" in file.stem.lower() or file.stem == "environment")
        }
    return sorted(path for path in named | {CONDA_FILE} if file_within(project.root, path))


def file_within(root: Path, path: str) -> Path | None:
    """Return the file at a path from a project file; None if it is missing or outside the project."""
    plain = Path(plain_path(path))
    if plain.is_absolute() or ".." in plain.parts:
        return None
    try:
        return root / plain if (root / plain).is_file() else None
    except (OSError, ValueError):
        # Not a valid file name.
        return None


def plain_path(path: str) -> str:
    """Return a path with forward slashes: many of these files come from Windows."""
    return Path(path.strip().replace("\\", "/")).as_posix()


def _has_files(folder: Path) -> bool:
    suffixes = {compute_file.SUFFIX, runconfig_file.SUFFIX}
    return any(file.suffix in suffixes or file.name == Path(CONDA_FILE).name for file in _files(folder))


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(file for file in folder.iterdir() if file.is_file())
    except OSError:
        return []
