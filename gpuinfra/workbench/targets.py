"""Read and write the two files of a compute target."""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem, did_you_mean, problem
from gpuinfra.models.plan import parse_machine_id
from gpuinfra.models.target import ASK, KEYRING, VARIABLE, Target, is_host, is_user
from gpuinfra.parse.document import Document, EditError, written
from gpuinfra.parse.tree import Value
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

# Users may name files, too; targets of specs have no `.`.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


# Targets without files: this computer, as in Workbench's templates.
BUILT_IN = {"local": LOCAL, "docker": LOCALDOCKER}


_OF_MACHINE = ("address", "hostKey", "resourceId", "vmId")
"""Keys that no later machine of the same name has in common with this one."""


@dataclass
class Targets:
    """The targets of a workspace, and problems of their files."""

    targets: list[Target] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)


def is_reference(password: str | None) -> bool:
    """Return whether a file's `password` is a reference, and not a secret."""
    return password is not None and (password == ASK or password.startswith(KEYRING))


# Writing


def write_target(workspace: Path, target: Target) -> list[Path]:
    """Create or update a target's files, and return those that changed.

    In existing files, only keys that gpuinfra manages change. Raises a Problem if a file cannot be read and OSError if
    one cannot be written; then no file was changed.
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


def remove_target(workspace: Path, target: Target) -> list[Path]:
    """Remove the files of a target whose machine was deleted, and return those that changed.

    Of a `.compute` file that the user edited, only the connection is removed, and its run configuration stays. Raises
    a Problem or OSError if a file cannot be changed.
    """
    compute, runconfig = _paths(workspace, target.name)
    check_inside(compute.parent, workspace)
    if read_content(compute) != compute_text(target).encode():
        document = read_file(compute)
        gone: dict[str, Value] = {key: None for key in _OF_MACHINE if document.value(key) is not None}
        write_bytes(compute.resolve(), document.with_values(**gone).encode(), replace=True)
        return [compute]
    # The file that defines the target goes last, so that an interrupted removal can be repeated.
    is_ours = runconfig.is_file() and read_content(runconfig) == runconfig_text(target).encode()
    removed = [*([runconfig] if is_ours else []), compute]
    for path in removed:
        path.unlink(missing_ok=True)
    return removed


@dataclass(frozen=True)
class _Change:
    """One file, before and after."""

    path: Path
    before: bytes | None
    after: bytes

    def check(self) -> None:
        """Check that the file is writable and has not changed since it was read."""
        check_writable(self.path)
        if self.before is not None and read_content(self.path) != self.before:
            note = f"another program changed `{self.path}` in the meantime; gpuinfra did not write it"
            raise problem(Code.FILE_CHANGED, "file has changed", note, "run the command again")


def check_files(workspace: Path, name: str) -> None:
    """Raise a Problem if this target's files cannot be used. Called before a machine is billed."""
    folder = workspace / FOLDER
    if os.path.lexists(folder) and not folder.is_dir():
        note = f"`{folder}` must be a folder for target files"
        raise problem(Code.FILE_UNWRITABLE, "file cannot be written", note, "rename or move it")
    for path in _paths(workspace, name):
        check_inside(path, workspace)
        if os.path.lexists(path) and read_content(path).strip():
            read_file(path)
    check_destination(load_project(workspace), name)


def check_destination(project: Project, name: str) -> None:
    """Raise a Problem if a machine's target files send its jobs elsewhere."""
    runconfig, compute = project.runconfigs.get(name), project.computes.get(name)
    if runconfig and (other := runconfig.target or name) != name:
        place, span = f"`{other}`", runconfig.target_place
        help_line = f"set it to `{name}`; or rename the file, and use the new name with `-c`"
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
    """Raise a Problem if target files or run records cannot be written in the workspace."""
    try:
        for path in _paths(workspace, name):
            check_writable(path)
        for folder in (FOLDER, STATE):
            check_folder(workspace / folder)
    except OSError as error:
        note = f"`{error.filename}`: {error.strerror}; nothing was created"
        help_line = "make it writable, or use another folder with `--workspace`"
        diagnostic = Diagnostic(Code.FILE_UNWRITABLE, "file cannot be written", note=note, help=help_line)
        raise Problem(diagnostic) from error


def target_files(workspace: Path, name: str) -> list[Path]:
    """Return the existing files of a target."""
    # Unlike Path.is_file, this returns False for invalid names.
    return [path for path in _paths(workspace, name) if os.path.isfile(path)]  # noqa: PTH113


def _paths(workspace: Path, name: str) -> tuple[Path, Path]:
    folder = workspace / FOLDER
    return folder / f"{name}{compute_file.SUFFIX}", folder / f"{name}{runconfig_file.SUFFIX}"


def _change(path: Path, fresh: str, ours: Callable[[Document], dict[str, Value]]) -> _Change:
    """Return the change of a file."""
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
        raise problem(
            Code.FILE_UNWRITABLE,
            "file cannot be changed in place",
            f"{path}: {error}",
            f"add the lines yourself: {lines}; or rename the file, and gpuinfra writes a new one",
        ) from error


def _compute_values(target: Target, found: Document) -> dict[str, Value]:
    values: dict[str, Value] = {**_reached(target)}
    asked: dict[str, tuple[str, Value]] = {
        "type": ("type", target.type),
        "base_docker_image": ("baseDockerImage", target.base_docker_image),
        "nvidia_docker": ("nvidiaDocker", target.nvidia_docker),
        "python": ("pythonLocation", target.python),
    }
    values |= {key: value for name, (key, value) in asked.items() if name in target.explicit_fields}
    if _has_checked_gpu(target) and found.value("nvidiaDocker") is None:
        values["nvidiaDocker"] = True
    # Mark simulated machines, and remove the mark if a real machine replaces one.
    if target.simulated or found.value("simulated"):
        values["simulated"] = target.simulated
    # A new login replaces the old one. Real and simulated machines do not share a login.
    is_other = found.value("hostKey") is not None and bool(found.value("simulated")) != target.simulated
    for name, key in (("identity", "privateKeyFile"), ("password", "password")):
        if (is_other or name in target.explicit_fields) and key not in values and found.value(key) is not None:
            values[key] = None
    # `attach` does not know the machine's id; the id of a previous machine would be wrong.
    for key, known in (("resourceId", target.resource_id), ("vmId", target.vm_id)):
        if not known and found.value(key) and found.value("hostKey") != target.host_key:
            values[key] = None
    # Keep an older name of the same type.
    if OLDER_TYPES.get(str(found.value("type"))) == target.type:
        values.pop("type", None)
    return values


def _has_checked_gpu(target: Target) -> bool:
    """Return whether jobs in the machine's own Python require its GPU."""
    return target.type == REMOTE and target.nvidia_docker


def _runconfig_values(target: Target, found: Document) -> dict[str, Value]:
    if runconfig_file.read_runconfig(target.name, found)[0].is_sdk_v1:
        return {}  # SDK v1 files have these under other keys
    asked: dict[str, tuple[str, Value]] = {
        "framework": ("Framework", target.framework),
        "conda_dependencies": ("CondaDependenciesFile", target.conda_dependencies),
    }
    return {key: value for name, (key, value) in asked.items() if name in target.explicit_fields}


def _reached(target: Target) -> dict[str, str]:
    """Return the connection keys, which gpuinfra always manages."""
    values = {
        "address": joined_address(target.address, target.port),
        "hostKey": target.host_key,
        "password": target.password,
        # Not for machines from a spec: the file is shared, and the path is personal.
        "privateKeyFile": _from_home(target.identity) if "identity" in target.explicit_fields else None,
        "resourceId": target.resource_id,
        "username": target.username,
        "vmId": target.vm_id,
    }
    return {key: value for key, value in values.items() if value}


def _from_home(path: str | None) -> str | None:
    """Return a path relative to the home folder if possible, so that others can use it."""
    if path is None:
        return None
    try:
        return f"~/{Path(path).relative_to(Path.home()).as_posix()}"
    except (ValueError, RuntimeError):
        return path


def compute_text(target: Target) -> str:
    """Return a new `NAME.compute`, with keys in the order of `az ml computetarget attach`."""
    values: dict[str, Value] = {**_reached(target), "type": target.type}
    if target.type == REMOTEDOCKER:
        if target.base_docker_image:
            values["baseDockerImage"] = target.base_docker_image
        values |= {
            "nativeSharedDirectory": SHARE,
            "nvidiaDocker": target.nvidia_docker,
            "sharedVolumes": True,
        }
    elif _has_checked_gpu(target):
        values["nvidiaDocker"] = True
    if target.python:
        values["pythonLocation"] = target.python
    if target.simulated:
        values["simulated"] = True
    return "".join(f"{key}: {written(value)}\n" for key, value in sorted(values.items()))


def runconfig_text(target: Target) -> str:
    """Return a new `NAME.runconfig`. The framework is explicit: the default would be PySpark."""
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
    """Return every target with a file."""
    project = load_project(workspace)
    found = Targets(diagnostics=project.diagnostics)
    for compute in project.computes.values():
        # SDK v1 keeps such files in other folders, and other programs write them.
        if not compute.type or Path(compute.document.source.name).parent.name != FOLDER:
            continue
        problems = list(invalid_values(compute))
        found.diagnostics += problems
        if not problems:
            found.targets.append(target_of(workspace, project, compute))
    return found


def find_target(workspace: Path, name: str) -> Target | None:
    """Return the target with this name, or None without a file. Raises a Problem if the file is invalid."""
    path = _paths(workspace, name)[0]
    if not _NAME.fullmatch(name) or path not in target_files(workspace, name):
        return None
    project = load_project(workspace)
    compute = project.computes.get(name)
    problems = [each for each in project.diagnostics if _is_about(each, path)]
    problems += invalid_values(compute) if compute else ()
    if problems:
        raise Problem(*problems)
    return target_of(workspace, project, compute) if compute else None


def _is_about(diagnostic: Diagnostic, path: Path) -> bool:
    # An unreadable file has no location inside.
    return Path(diagnostic.span.file) == path if diagnostic.span else f"`{path}`" in (diagnostic.note or "")


def invalid_values(compute: Compute) -> Iterator[Diagnostic]:
    """Return problems of values that other programs would misread, in foreign projects."""
    document = compute.document
    if not _NAME.fullmatch(compute.name):
        label, span = "use at most 64 letters, digits, `_`, `-` and `.`", document.source.span(0, 0)
        yield Diagnostic(Code.BAD_NAME, "invalid target name", span, label, help="rename the file")
    if problem := redefinition(compute):
        yield problem
    if compute.address and not is_host(compute.address):
        span = document.span(document.root.items["address"])
        label = "not a host name or address"
        yield Diagnostic(
            Code.BAD_ADDRESS, "invalid address", span, label, help="for example `203.0.113.7` or `gpu.lab`"
        )
    if compute.username and not is_user(compute.username):
        span = document.span(document.root.items["username"])
        yield Diagnostic(
            Code.BAD_USERNAME, "invalid user name", span, "not a valid user name", help="for example `azureuser`"
        )
    if (path := compute.private_key_file) and (not path.isprintable() or VARIABLE in path):
        span = document.span(document.root.items["privateKeyFile"])
        label = (
            f"OpenSSH would read a variable at `{VARIABLE}`" if VARIABLE in path else "it contains invisible characters"
        )
        yield Diagnostic(Code.BAD_PATH, "invalid path", span, label)


def redefinition(compute: Compute) -> Diagnostic | None:
    """Return the problem of a file that redefines a built-in target, or None."""
    if compute.type in {BUILT_IN.get(compute.name), ""} or compute.name not in BUILT_IN:
        return None
    node = compute.document.root.items.get("type")
    span = compute.document.span(node) if node else compute.document.source.span(0, 0)
    label = f"`{compute.name}` is a built-in target for this computer, with type `{BUILT_IN[compute.name]}`"
    return Diagnostic(Code.BAD_NAME, "reserved target name", span, label, help="rename the file")


def nearest_target(workspace: Path, name: str) -> str | None:
    """Return a suggestion for an unknown target name."""
    return did_you_mean(name, load_project(workspace).computes)


def target_of(workspace: Path, project: Project, compute: Compute) -> Target:
    """Return a file as a target, without checks."""
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
        vm_id=compute.vm_id if machine else "",
        python=compute.python_location,
    )


def _to_home(path: str | None) -> Path | None:
    try:
        return Path(path).expanduser() if path else None
    except RuntimeError:  # `~user` of an unknown user
        return None
