"""What one file says of another: targets and environments that are not there, machines without an address."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from gpuinfra.diagnostics import Code, Diagnostic, Severity
from gpuinfra.lint.finding import Finding, node_at, replace_value
from gpuinfra.lint.words import is_placeholder, is_placeholder_address
from gpuinfra.models.names import BUILT_IN_TARGETS
from gpuinfra.parse.tree import Scalar
from gpuinfra.suggest import did_you_mean
from gpuinfra.workbench.compute import LOCALDOCKER, SUFFIX, Compute
from gpuinfra.workbench.project import FOLDER, Project, file_within, plain_path
from gpuinfra.workbench.runconfig import CONDA_FILE, PYSPARK, RunConfig

_SPARK_FILE = "aml_config/spark_dependencies.yml"


def unknown_target(project: Project) -> Iterator[Finding]:
    """A target without a file. This computer needs none, and those of the later generation are in Azure."""
    for runconfig in project.runconfigs.values():
        name = runconfig.target
        if name and not runconfig.is_later and not _is_known(project, name):
            yield _unknown(project, runconfig, name)


def _unknown(project: Project, runconfig: RunConfig, name: str) -> Finding:
    # One of the same name was written together with the target's file, which may well be somewhere: it has an address
    # in it, and many keep it out of git. Another name was written by hand.
    is_pair = name == runconfig.name
    diagnostic = Diagnostic(
        Code.UNKNOWN_TARGET,
        "unknown target",
        runconfig.place("Target"),
        f"there is no {FOLDER}/{name}{SUFFIX}",
        help=(None if is_pair else did_you_mean(name, project.computes)) or _how_to_have(name),
        severity=Severity.WARNING if is_pair else Severity.ERROR,
    )
    node = node_at(runconfig.document, "Target")
    same = [each for each in project.computes if each.casefold() == name.casefold()]
    return Finding(diagnostic, replace_value(runconfig.document, node, same[0]) if node and len(same) == 1 else None)


def _is_known(project: Project, name: str) -> bool:
    unreadable = {Path(path).name for path in project.unreadable}
    return name in BUILT_IN_TARGETS or name in project.computes or f"{name}{SUFFIX}" in unreadable


def _how_to_have(name: str) -> str:
    if name.startswith("docker"):
        return f"write it: `type: {LOCALDOCKER}` and a `baseDockerImage`"
    return f"gpuinfra attach {name} --address HOST --username USER writes it"


def missing_files(project: Project) -> Iterator[Finding]:
    """Files that are named and not there. The usual names stand in every file, whether the project has them or not."""
    for runconfig in project.runconfigs.values():
        if runconfig.user_managed:
            continue
        yield from _missing(project, runconfig, CONDA_FILE, *_conda_keys(runconfig))
        if runconfig.framework == PYSPARK:
            yield from _missing(project, runconfig, _SPARK_FILE, "SparkDependenciesFile")


def _conda_keys(runconfig: RunConfig) -> tuple[str, ...]:
    """Where the environment is named; the older word for it counts where today's says nothing."""
    if runconfig.is_later:
        return "environment", "python", "condaDependenciesFile"
    return ("CondaDependenciesFile" if runconfig.document.value("CondaDependenciesFile") else "CondaFile",)


def _missing(project: Project, runconfig: RunConfig, usual: str, *keys: str) -> Iterator[Finding]:
    node = node_at(runconfig.document, *keys)
    if not isinstance(node, Scalar) or not isinstance(node.value, str) or not node.value.strip():
        return
    path = plain_path(node.value)
    if file_within(project.root, path) or path in project.unreadable:
        return
    same = _in_other_case(project.root, Path(path))
    if path == usual and same is None:
        return
    span = runconfig.document.span(node)
    label = f"there is no file `{path}` in the project"
    help_line = f"write `{same}`" if same else "paths are from the project's folder"
    diagnostic = Diagnostic(Code.MISSING_FILE, "missing file", span, label, help=help_line)
    yield Finding(diagnostic, replace_value(runconfig.document, node, same) if same else None)


def _in_other_case(root: Path, path: Path) -> str | None:
    """The one file whose path differs in case alone: Windows makes no difference, Linux does."""
    if path.is_absolute() or ".." in path.parts:
        return None
    found = [Path()]
    for part in path.parts:
        found = [
            folder / name for folder in found for name in _names(root / folder) if name.casefold() == part.casefold()
        ]
    files = [each for each in found if (root / each).is_file()]
    return files[0].as_posix() if len(files) == 1 else None


def _names(folder: Path) -> list[str]:
    return os.listdir(folder) if folder.is_dir() else []  # noqa: PTH208 names alone are asked for


def not_filled_in(project: Project) -> Iterator[Finding]:
    """Machines whose address or user is still to be written. A sample is right so, but it cannot run: a warning."""
    for compute in project.computes.values():
        if compute.is_remote:
            yield from _not_filled_in(compute)


def _not_filled_in(compute: Compute) -> Iterator[Finding]:
    document = compute.document
    for key, is_open in (("address", is_placeholder_address), ("username", is_placeholder)):
        node = document.root.items.get(key)
        text = node.text if isinstance(node, Scalar) and node.value is not None else ""
        if (node is not None and not isinstance(node, Scalar)) or (text.strip() and not is_open(text)):
            continue
        span = document.span(node) if text and node else document.key_span(key)
        label = f"`{key}` is to be written here" if text else f"`{key}` is missing"
        help_line = f"gpuinfra attach {compute.name} --address HOST --username USER"
        yield Finding(
            Diagnostic(Code.PLACEHOLDER, "target not filled in", span, label, None, help_line, Severity.WARNING)
        )
        return
