"""Choose the target that a spec is created from. With several candidates, the user must choose."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem, did_you_mean, listed, problem
from gpuinfra.models.names import BUILT_IN_TARGETS
from gpuinfra.workbench import compute as compute_file
from gpuinfra.workbench.compute import CLUSTER, LOCALDOCKER, REMOTE, REMOTEDOCKER, Compute
from gpuinfra.workbench.cuda import is_for_gpu
from gpuinfra.workbench.project import FOLDER, Project
from gpuinfra.workbench.runconfig import RunConfig

# SDK v1 tools wrote this copy after each run. It is not a configuration of its own.
_COPY = "lastRun"


@dataclass(frozen=True)
class TargetChoice:
    """A target, and how scripts run on it."""

    name: str | None
    """None if jobs ran only on the user's own computer."""
    compute: Compute | None
    """None if its file is missing: run configurations can name targets outside the project."""
    runconfig: RunConfig | None

    @property
    def is_remote(self) -> bool:
        """Whether it was a remote machine. Then its files stay in use."""
        return self.name is not None and (self.compute is None or self.compute.is_remote)


def choose_target(project: Project, asked: str | None) -> TargetChoice:
    """Return the requested target, or the only one. Raises a Problem if there are several."""
    if asked is not None:
        return _asked(project, asked)
    computes = project.computes.values()
    machines = [each for each in computes if each.type in {REMOTEDOCKER, REMOTE}]
    with_gpu = [each for each in machines if each.type == REMOTEDOCKER and _has_gpu(project, each)]
    containers = [each for each in computes if each.type == LOCALDOCKER and _has_gpu(project, each)]
    for found in (with_gpu, machines, containers):
        if found:
            return _of_compute(project, _only(each.name for each in found))
    if lost := _lost(project):
        name = _only(lost)
        return TargetChoice(name, None, _runconfig(project, name))
    return TargetChoice(None, None, _own(project))


def _asked(project: Project, name: str) -> TargetChoice:
    if name in project.computes:
        return _of_compute(project, name)
    path = f"{FOLDER}/{name}{compute_file.SUFFIX}"
    if path in project.unreadable:
        raise Problem(*_about(project, project.root / path))
    if name in _lost(project) or name in project.runconfigs:
        runconfig = _runconfig(project, name)
        target = runconfig.target or name if runconfig else name
        if target in project.computes:
            return TargetChoice(target, project.computes[target], runconfig)
        return TargetChoice(None if target in BUILT_IN_TARGETS else target, None, runconfig)
    known = _names(project)
    help_line = did_you_mean(name, known) or (
        f"choose from {listed(known)}" if known else "it has no targets: omit `--target`"
    )
    note = f"the project has no target `{name}`"
    raise problem(Code.NO_SUCH_TARGET, "no such target", note, help_line, exit_code=Exit.USAGE)


def _of_compute(project: Project, name: str) -> TargetChoice:
    compute = project.computes[name]
    file = Path(compute.document.source.name)
    if not compute.type:
        raise Problem(*_about(project, file))
    if compute.type == CLUSTER:
        span = compute.document.span(compute.document.root.items.get("type", compute.document.root))
        label, help_line = "gpuinfra does not create clusters", "choose another target with `--target`"
        diagnostic = Diagnostic(Code.NO_SUCH_TARGET, "unsupported target", span, label, help=help_line)
        raise Problem(diagnostic, exit_code=Exit.USAGE)
    return TargetChoice(name, compute, _runconfig(project, name))


def _only(names: Iterable[str]) -> str:
    first, *others = sorted(names)
    if not others:
        return first
    note = f"the project has {listed([first, *others], 'and')}"
    raise problem(
        Code.USAGE,
        "several targets to choose from",
        note,
        f"choose one: `--target {first}`; to import each, repeat the command with `--output`",
        exit_code=Exit.USAGE,
    )


def _has_gpu(project: Project, compute: Compute) -> bool:
    runconfig = _runconfig(project, compute.name)
    asked = runconfig is not None and runconfig.docker is not None and runconfig.docker.gpu
    return asked or compute.nvidia_docker or is_for_gpu(compute.base_docker_image)


def _lost(project: Project) -> list[str]:
    """Return targets that run configurations name, but that have no file."""
    named = {each.target or each.name for each in project.runconfigs.values()}
    unreadable = {Path(path).stem for path in project.unreadable if path.endswith(compute_file.SUFFIX)}
    return sorted(named - project.computes.keys() - unreadable - BUILT_IN_TARGETS)


def _names(project: Project) -> list[str]:
    return sorted({name for name, each in project.computes.items() if each.type != CLUSTER} | set(_lost(project)))


def _runconfig(project: Project, name: str) -> RunConfig | None:
    """Return the run configuration with this name, as for `-c NAME`, or one for the target with this name."""
    if name in project.runconfigs:
        return project.runconfigs[name]
    others = [each for each in project.runconfigs.values() if each.target == name]
    return min(others, key=lambda each: (each.name == _COPY, each.name), default=None)


def _own(project: Project) -> RunConfig | None:
    """Return a run configuration for the user's own computer, preferably in a container."""
    order = {"docker": 0, "local": 1, _COPY: 3}
    return min(project.runconfigs.values(), key=lambda each: (order.get(each.name, 2), each.name), default=None)


def _about(project: Project, file: Path) -> list[Diagnostic]:
    """Return the problems of one file."""
    return [each for each in project.diagnostics if each.span and Path(each.span.file) == file]
