"""The two files that describe a compute target: written for a machine, and read again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gpuinfra.diagnostics import Code, Diagnostic, Problem
from gpuinfra.load.document import Document, EditError, written
from gpuinfra.load.scalars import Value
from gpuinfra.models.target import ASK, KEYRING, Target
from gpuinfra.suggest import did_you_mean
from gpuinfra.workbench import compute as compute_file
from gpuinfra.workbench import runconfig as runconfig_file
from gpuinfra.workbench.compute import OLDER_TYPES, REMOTEDOCKER, SHARE, Compute, joined_address
from gpuinfra.workbench.project import FOLDER, Project, load_project, read_file
from gpuinfra.workbench.runconfig import PYTHON
from gpuinfra.workspace import write_text


@dataclass
class Targets:
    """The targets of a workspace, by name, and what is wrong with files."""

    targets: list[Target] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)


def is_reference(password: str | None) -> bool:
    """Whether a file's `password` is a reference of ours, and so no secret."""
    return password is not None and (password == ASK or password.startswith(KEYRING))


# Writing


def write_target(workspace: Path, target: Target) -> list[Path]:
    """Write what is missing and bring up to date what is ours; the files that changed.

    All else in a file that is there is the user's own, and keeps every byte. A file that cannot be read raises a
    Problem, one that cannot be written an OSError; then neither was changed.
    """
    compute, runconfig = _paths(workspace, target.name)
    changes = [
        (compute, _change(compute, compute_text(target), lambda found: _compute_values(target, found))),
        (runconfig, _change(runconfig, runconfig_text(target), lambda found: _runconfig_values(target, found))),
    ]
    changed = [(path, text) for path, text in changes if text is not None]
    for path, text in changed:
        write_text(path, text, replace=True)
    return [path for path, _ in changed]


def check_files(workspace: Path, name: str) -> None:
    """Raise a Problem if the files of this target are there and cannot be read: better before a machine is billed."""
    for path in target_files(workspace, name):
        if not _is_blank(path):
            read_file(path)


def target_files(workspace: Path, name: str) -> list[Path]:
    """The files that there are for a target."""
    return [path for path in _paths(workspace, name) if path.is_file()]


def _paths(workspace: Path, name: str) -> tuple[Path, Path]:
    folder = workspace / FOLDER
    return folder / f"{name}{compute_file.SUFFIX}", folder / f"{name}{runconfig_file.SUFFIX}"


def _is_blank(path: Path) -> bool:
    return not path.read_bytes().strip()


def _change(path: Path, fresh: str, ours: Callable[[Document], dict[str, Value]]) -> str | None:
    """The file's new text, or None where it is as it should be."""
    if not path.exists() or _is_blank(path):
        return fresh
    document = read_file(path)
    values = ours(document)
    try:
        edited = document.with_values(**values)
    except EditError as error:
        lines = ", ".join(f"`{key}: {written(value)}`" for key, value in values.items())
        raise Problem(
            Diagnostic(
                Code.FILE_UNWRITABLE,
                "file cannot be changed in place",
                note=f"{path}: {error}",
                help=f"write into it yourself: {lines}; or move it away, and a new one is written",
            )
        ) from error
    return None if edited == document else edited.encode().decode("utf-8")


def _compute_values(target: Target, found: Document) -> dict[str, Value]:
    values: dict[str, Value] = {**_reached(target)}
    asked: dict[str, tuple[str, Value]] = {
        "type": ("type", target.type),
        "base_docker_image": ("baseDockerImage", target.base_docker_image),
        "nvidia_docker": ("nvidiaDocker", target.nvidia_docker),
    }
    values |= {key: value for name, (key, value) in asked.items() if name in target.said}
    # What is simulated says so; and a machine that is real is not called so because its predecessor was.
    if target.simulated or found.value("simulated"):
        values["simulated"] = target.simulated
    # Whoever says anew how to log in has done with the other way.
    for name, key in (("identity", "privateKeyFile"), ("password", "password")):
        if name in target.said and key not in values and found.value(key) is not None:
            values[key] = None
    # An older name of the same type is as good.
    if OLDER_TYPES.get(str(found.value("type"))) == target.type:
        values.pop("type", None)
    return values


def _runconfig_values(target: Target, found: Document) -> dict[str, Value]:
    if runconfig_file.read_runconfig(target.name, found)[0].is_later:
        return {}  # it says these in other words, and is not to say them twice
    asked: dict[str, tuple[str, Value]] = {
        "framework": ("Framework", target.framework),
        "conda_dependencies": ("CondaDependenciesFile", target.conda_dependencies),
    }
    return {key: value for name, (key, value) in asked.items() if name in target.said}


def _reached(target: Target) -> dict[str, str]:
    """How the machine is reached: that is ours, whatever the files say."""
    values = {
        "address": joined_address(target.address, target.port),
        "hostKey": target.host_key,
        "password": target.password,
        # Of a machine from a spec, the spec says which key; here it would be one colleague's path in everybody's file.
        "privateKeyFile": _from_home(target.identity) if "identity" in target.said else None,
        "username": target.username,
    }
    return {key: value for key, value in values.items() if value}


def _from_home(path: str | None) -> str | None:
    """A path that means the same to everybody who has the project, where that can be."""
    if path is None:
        return None
    try:
        return f"~/{Path(path).relative_to(Path.home()).as_posix()}"
    except (ValueError, RuntimeError):
        return path


def compute_text(target: Target) -> str:
    """`NAME.compute`: keys in the order that `az ml computetarget attach` wrote, with the edits made."""
    values: dict[str, Value] = {**_reached(target), "type": target.type}
    if target.type == REMOTEDOCKER:
        values |= {
            "baseDockerImage": target.base_docker_image,
            "nativeSharedDirectory": SHARE,
            "nvidiaDocker": target.nvidia_docker,
            "sharedVolumes": True,
        }
    if target.simulated:
        values["simulated"] = True
    return "".join(f"{key}: {written(value)}\n" for key, value in sorted(values.items()))


def runconfig_text(target: Target) -> str:
    """`NAME.runconfig`. The framework is always said: left out it would be PySpark."""
    return (
        "ArgumentVector:\n"
        f"- {runconfig_file.SCRIPT}\n"
        f"CondaDependenciesFile: {written(target.conda_dependencies)}\n"
        "EnvironmentVariables: null\n"
        f"Framework: {target.framework}\n"
        "PrepareEnvironment: true\n"
        f"Target: {written(target.name)}\n"
        "TrackedRun: true\n"
    )


# Reading


def read_targets(workspace: Path) -> Targets:
    """Every target that has a file."""
    project = load_project(workspace)
    targets = [_target(workspace, project, compute) for compute in project.computes.values() if compute.type]
    return Targets(targets, project.diagnostics)


def find_target(workspace: Path, name: str) -> Target | None:
    """The target of this name; None where there is no such file. One that is no good raises a Problem."""
    path = _paths(workspace, name)[0]
    if not path.is_file():
        return None
    project = load_project(workspace)
    compute = project.computes.get(name)
    problems = [each for each in project.diagnostics if each.span and Path(each.span.file) == path]
    if problems or compute is None:
        raise Problem(*(problems or project.diagnostics))
    return _target(workspace, project, compute)


def nearest_target(workspace: Path, name: str) -> str | None:
    """The help for a name that no target has."""
    return did_you_mean(name, load_project(workspace).computes)


def _target(workspace: Path, project: Project, compute: Compute) -> Target:
    runconfig = project.runconfigs.get(compute.name)
    identity = _to_home(compute.private_key_file)
    return Target(
        name=compute.name,
        machine=compute.name,
        type=compute.type,
        address=compute.address or "",
        port=compute.port,
        username=compute.username or "",
        host_key=compute.host_key or "",
        identity=str(workspace.absolute() / identity) if identity else None,
        password=compute.password if is_reference(compute.password) else None,
        base_docker_image=compute.base_docker_image,
        nvidia_docker=compute.nvidia_docker,
        framework=runconfig.framework if runconfig else PYTHON,
        conda_dependencies=runconfig.conda_file if runconfig else runconfig_file.CONDA_FILE,
        simulated=compute.simulated,
    )


def _to_home(path: str | None) -> Path | None:
    try:
        return Path(path).expanduser() if path else None
    except RuntimeError:  # `~somebody` who is not known here
        return None
