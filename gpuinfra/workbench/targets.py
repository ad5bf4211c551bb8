"""The two files that describe a compute target: written for a machine, and read again."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem
from gpuinfra.models.hosts import is_host, is_user
from gpuinfra.models.resource import parse_machine_id
from gpuinfra.models.target import ASK, KEYRING, Target
from gpuinfra.parse.document import Document, EditError, written
from gpuinfra.parse.scalars import Value
from gpuinfra.suggest import did_you_mean
from gpuinfra.workbench import compute as compute_file
from gpuinfra.workbench import runconfig as runconfig_file
from gpuinfra.workbench.compute import (
    CLUSTER,
    LOCAL,
    LOCALDOCKER,
    OLDER_TYPES,
    REMOTE,
    REMOTEDOCKER,
    SHARE,
    Compute,
    joined_address,
)
from gpuinfra.workbench.project import FOLDER, Project, load_project, read_content, read_file
from gpuinfra.workbench.runconfig import PYTHON
from gpuinfra.workspace import STATE, check_folder, check_inside, check_writable, write_bytes

# Files are named by others as well; a spec's own targets have no `.` in them.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


# These need no files: this computer, as Workbench's own templates had it.
BUILT_IN = {"local": LOCAL, "docker": LOCALDOCKER}


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
        _change(compute, compute_text(target), lambda found: _compute_values(target, found)),
        _change(runconfig, runconfig_text(target), lambda found: _runconfig_values(target, found)),
    ]
    changed = [change for change in changes if change.after != change.before]
    for change in changed:
        check_inside(change.path, workspace)
        change.check()
    for change in changed:
        write_bytes(change.path.resolve(), change.after, replace=True)  # a link in the project, or it was not read
    return [change.path for change in changed]


@dataclass(frozen=True)
class _Change:
    """One file, before and after."""

    path: Path
    before: bytes | None
    after: bytes

    def check(self) -> None:
        """That it can be written, and is still what was read: an edit of the user's own must not be lost."""
        check_writable(self.path)
        if self.before is not None and read_content(self.path) != self.before:
            note = f"`{self.path}` was changed by something else meanwhile, and left as it is"
            raise Problem(Diagnostic(Code.FILE_CHANGED, "file has changed", note=note, help="run it again"))


def check_files(workspace: Path, name: str) -> None:
    """Raise a Problem if this target's files cannot be what they should: better before a machine is billed."""
    folder = workspace / FOLDER
    if os.path.lexists(folder) and not folder.is_dir():
        note = f"`{folder}` is no folder, and target files are to be in it"
        raise Problem(Diagnostic(Code.FILE_UNWRITABLE, "file cannot be written", note=note, help="move it away"))
    for path in _paths(workspace, name):
        if os.path.lexists(path) and read_content(path).strip():
            read_file(path)
    check_destination(load_project(workspace), name)


def check_destination(project: Project, name: str) -> None:
    """Raise a Problem if the files of a machine's target send its jobs to another place."""
    runconfig, compute = project.runconfigs.get(name), project.computes.get(name)
    if runconfig and (other := runconfig.target or name) != name:
        place, span = f"`{other}`", runconfig.place("target" if runconfig.is_later else "Target")
        help_line = f"set it to `{name}`; or rename the file, and give `-c` its new name"
    elif compute and compute.type in {LOCAL, LOCALDOCKER, CLUSTER}:
        place = "a cluster" if compute.type == CLUSTER else "this computer"
        node = compute.document.root.items.get("type")
        span = compute.document.span(node) if node else compute.document.source.span(0, 0)
        help_line = "set it to `remotedocker` or `remote`; or give the machine's target another name"
    else:
        return
    label = f"`{name}` is a machine's target, and its jobs would go to {place}"
    diagnostic = Diagnostic(Code.OTHER_TARGET, "jobs would not go to the machine", span, label, help=help_line)
    raise Problem(diagnostic, exit_code=Exit.USAGE)


def check_writable_files(workspace: Path, name: str) -> None:
    """Raise a Problem if this target's files, or what is known of runs, cannot be written in the workspace."""
    try:
        for path in _paths(workspace, name):
            check_writable(path)
        for folder in (FOLDER, STATE):
            check_folder(workspace / folder)
    except OSError as error:
        note = f"`{error.filename}`: {error.strerror}; nothing was created"
        help_line = "make it writable, or name another folder with `--workspace`"
        diagnostic = Diagnostic(Code.FILE_UNWRITABLE, "file cannot be written", note=note, help=help_line)
        raise Problem(diagnostic) from error


def target_files(workspace: Path, name: str) -> list[Path]:
    """The files that there are for a target."""
    # Unlike Path's own, it takes a name that no file can have for one that no file has.
    return [path for path in _paths(workspace, name) if os.path.isfile(path)]  # noqa: PTH113


def _paths(workspace: Path, name: str) -> tuple[Path, Path]:
    folder = workspace / FOLDER
    return folder / f"{name}{compute_file.SUFFIX}", folder / f"{name}{runconfig_file.SUFFIX}"


def _change(path: Path, fresh: str, ours: Callable[[Document], dict[str, Value]]) -> _Change:
    """What has to be done about a file."""
    if not os.path.lexists(path):
        return _Change(path, None, fresh.encode())
    content = read_content(path)
    if not content.strip():
        return _Change(path, content, fresh.encode())
    document = read_file(path)
    values = ours(document)
    try:
        return _Change(path, document.encode(), document.with_values(**values).encode())
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


def _compute_values(target: Target, found: Document) -> dict[str, Value]:
    values: dict[str, Value] = {**_reached(target)}
    asked: dict[str, tuple[str, Value]] = {
        "type": ("type", target.type),
        "base_docker_image": ("baseDockerImage", target.base_docker_image),
        "nvidia_docker": ("nvidiaDocker", target.nvidia_docker),
    }
    values |= {key: value for name, (key, value) in asked.items() if name in target.said}
    if _has_checked_gpu(target) and found.value("nvidiaDocker") is None:
        values["nvidiaDocker"] = True
    # What is simulated says so; and a machine that is real is not called so because its predecessor was.
    if target.simulated or found.value("simulated"):
        values["simulated"] = target.simulated
    # A new way to log in replaces the old one. A login of a real machine is not for a simulated one, nor the reverse.
    is_other = found.value("hostKey") is not None and bool(found.value("simulated")) != target.simulated
    for name, key in (("identity", "privateKeyFile"), ("password", "password")):
        if (is_other or name in target.said) and key not in values and found.value(key) is not None:
            values[key] = None
    # `attach` does not know the id of the machine that it meets; that of the machine before would be wrong.
    if not target.resource_id and found.value("resourceId") and found.value("hostKey") != target.host_key:
        values["resourceId"] = None
    # An older name of the same type is as good.
    if OLDER_TYPES.get(str(found.value("type"))) == target.type:
        values.pop("type", None)
    return values


def _has_checked_gpu(target: Target) -> bool:
    """Whether a machine whose jobs run in its own Python has a GPU: the file says so, and no job runs without it."""
    return target.type == REMOTE and target.nvidia_docker


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
        "resourceId": target.resource_id,
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
    elif _has_checked_gpu(target):
        values["nvidiaDocker"] = True
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
    found = Targets(diagnostics=project.diagnostics)
    for compute in project.computes.values():
        # Later projects keep such files elsewhere, and other programs write them.
        if not compute.type or Path(compute.document.source.name).parent.name != FOLDER:
            continue
        problems = list(_unfit(compute))
        found.diagnostics += problems
        if not problems:
            found.targets.append(target_of(workspace, project, compute))
    return found


def find_target(workspace: Path, name: str) -> Target | None:
    """The target of this name; None where there is no such file. One that is no good raises a Problem."""
    path = _paths(workspace, name)[0]
    if not _NAME.fullmatch(name) or path not in target_files(workspace, name):
        return None
    project = load_project(workspace)
    compute = project.computes.get(name)
    problems = [each for each in project.diagnostics if _is_about(each, path)]
    problems += _unfit(compute) if compute else ()
    if problems:
        raise Problem(*problems)
    return target_of(workspace, project, compute) if compute else None


def _is_about(diagnostic: Diagnostic, path: Path) -> bool:
    # A file that cannot be read at all has no place in it to point at.
    return Path(diagnostic.span.file) == path if diagnostic.span else f"`{path}`" in (diagnostic.note or "")


def _unfit(compute: Compute) -> Iterator[Diagnostic]:
    """Values that other programs would read as something else: projects come from others."""
    document = compute.document
    if not _NAME.fullmatch(compute.name):
        label, span = "letters, digits, `_`, `-` and `.`, 64 at most", document.source.span(0, 0)
        yield Diagnostic(Code.BAD_NAME, "invalid name of a target", span, label, help="rename the file")
    if problem := redefinition(compute):
        yield problem
    if compute.address and not is_host(compute.address):
        span = document.span(document.root.items["address"])
        label = "neither a name nor an address of a machine"
        yield Diagnostic(Code.BAD_ADDRESS, "invalid address", span, label, help="as in `203.0.113.7` or `gpu.lab`")
    if compute.username and not is_user(compute.username):
        span = document.span(document.root.items["username"])
        yield Diagnostic(Code.BAD_USERNAME, "invalid user name", span, "nobody is called so", help="as in `azureuser`")
    if compute.private_key_file and not compute.private_key_file.isprintable():
        span = document.span(document.root.items["privateKeyFile"])
        yield Diagnostic(Code.BAD_PATH, "invalid path", span, "it has characters that cannot be seen")


def redefinition(compute: Compute) -> Diagnostic | None:
    """The problem of a file that makes something else of a built-in target; None where there is none."""
    if compute.type in {BUILT_IN.get(compute.name), ""} or compute.name not in BUILT_IN:
        return None
    node = compute.document.root.items.get("type")
    span = compute.document.span(node) if node else compute.document.source.span(0, 0)
    label = f"`{compute.name}` is built in, for this computer: its type is `{BUILT_IN[compute.name]}`"
    return Diagnostic(Code.BAD_NAME, "built-in name of a target", span, label, help="rename the file")


def nearest_target(workspace: Path, name: str) -> str | None:
    """The help for a name that no target has."""
    return did_you_mean(name, load_project(workspace).computes)


def target_of(workspace: Path, project: Project, compute: Compute) -> Target:
    """A file as a target, whatever else may be wrong with it."""
    runconfig = project.runconfigs.get(compute.name)
    identity = _to_home(compute.private_key_file)
    machine = parse_machine_id(compute.resource_id)
    return Target(
        name=compute.name,
        machine=machine.name if machine else compute.name,
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
        resource_id=str(machine) if machine else "",
    )


def _to_home(path: str | None) -> Path | None:
    try:
        return Path(path).expanduser() if path else None
    except RuntimeError:  # `~somebody` who is not known here
        return None
