"""References between files: missing targets and environments, placeholders, unused folders, misspelt keys."""

import os
from collections.abc import Iterator
from pathlib import Path
from shlex import quote

from gpuinfra.diagnostics import Code, Diagnostic, Severity, did_you_mean, nearest, plain
from gpuinfra.lint.finding import Finding, is_nearly, is_placeholder, is_placeholder_address, rename_key, replace_value
from gpuinfra.lint.passwords import unshown
from gpuinfra.models.names import BUILT_IN_TARGETS
from gpuinfra.parse.document import Document
from gpuinfra.parse.tree import Scalar, node_at
from gpuinfra.workbench import compute as compute_file
from gpuinfra.workbench import runconfig as runconfig_file
from gpuinfra.workbench.compute import LOCALDOCKER, SHARE, SUFFIX, Compute
from gpuinfra.workbench.project import FOLDER, Project, file_within, plain_path
from gpuinfra.workbench.runconfig import CONDA_FILE, PYSPARK, RunConfig

_SPARK_FILE = "aml_config/spark_dependencies.yml"


def unknown_target(project: Project) -> Iterator[Finding]:
    """Find targets without a file. Built-in targets need none, and those of SDK v1 are in Azure."""
    for runconfig in project.runconfigs.values():
        name = runconfig.target
        if name and not runconfig.is_sdk_v1 and not _is_known(project, name):
            yield _unknown(project, runconfig, name)


def _unknown(project: Project, runconfig: RunConfig, name: str) -> Finding:
    # A target with the run configuration's name probably has a file outside git. Another name was typed by hand.
    is_pair = name == runconfig.name
    diagnostic = Diagnostic(
        Code.UNKNOWN_TARGET,
        "unknown target",
        runconfig.place("Target"),
        f"{FOLDER}/{name}{SUFFIX} does not exist",
        help=(None if is_pair else did_you_mean(name, project.computes)) or _how_to_have(name),
        severity=Severity.WARNING if is_pair else Severity.ERROR,
    )
    node = node_at(runconfig.document.root, "Target")
    same = [each for each in project.computes if each.casefold() == name.casefold()]
    return Finding(diagnostic, replace_value(runconfig.document, node, same[0]) if node and len(same) == 1 else None)


def _is_known(project: Project, name: str) -> bool:
    unreadable = {Path(path).name for path in project.unreadable}
    return name in BUILT_IN_TARGETS or name in project.computes or f"{name}{SUFFIX}" in unreadable


def _how_to_have(name: str) -> str:
    if name.startswith("docker"):
        return f"create it with `type: {LOCALDOCKER}` and a `baseDockerImage`"
    return f"create it with `gpuinfra attach {quote(name)} --address HOST --username USER`"


def missing_files(project: Project) -> Iterator[Finding]:
    """Find missing files. Default names are in every file, and do not count."""
    for runconfig in project.runconfigs.values():
        if runconfig.user_managed:
            continue
        yield from _missing(project, runconfig, CONDA_FILE, *_conda_keys(runconfig))
        if runconfig.framework == PYSPARK:
            yield from _missing(project, runconfig, _SPARK_FILE, "SparkDependenciesFile")


def _conda_keys(runconfig: RunConfig) -> tuple[str, ...]:
    """Return the path of the key that names the environment, or of its older form."""
    if runconfig.is_sdk_v1:
        return "environment", "python", "condaDependenciesFile"
    return ("CondaDependenciesFile" if runconfig.document.value("CondaDependenciesFile") else "CondaFile",)


def _missing(project: Project, runconfig: RunConfig, usual: str, *keys: str) -> Iterator[Finding]:
    node = node_at(runconfig.document.root, *keys)
    if not isinstance(node, Scalar) or not isinstance(node.value, str) or not node.value.strip():
        return
    path = plain_path(node.value)
    if file_within(project.root, path) or path in project.unreadable:
        return
    same = _in_other_case(project.root, Path(path))
    if path == usual and same is None:
        return
    span = runconfig.document.span(node)
    label = f"`{path}` does not exist in the project"
    help_line = f"write `{same}`" if same else "paths are relative to the project's folder"
    diagnostic = Diagnostic(Code.MISSING_FILE, "missing file", span, label, help=help_line)
    yield Finding(diagnostic, replace_value(runconfig.document, node, same) if same else None)


def _in_other_case(root: Path, path: Path) -> str | None:
    """Return the only file whose path differs just in case, which matters on Linux."""
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
    return os.listdir(folder) if folder.is_dir() else []  # noqa: PTH208 only names are needed


def not_filled_in(project: Project) -> Iterator[Finding]:
    """Find machines with a placeholder as address or user. In a sample that is fine, so it is a warning."""
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
        label = f"`{key}` is a placeholder" if text else f"`{key}` is missing"
        help_line = f"run `gpuinfra attach {quote(compute.name)} --address HOST --username USER`"
        yield Finding(
            Diagnostic(Code.PLACEHOLDER, "target not filled in", span, label, None, help_line, Severity.WARNING)
        )
        return


_SHARED_FOLDER, _VOLUMES = "nativeSharedDirectory", "sharedVolumes"


def not_shared(project: Project) -> Iterator[Finding]:
    """Find a shared folder that is not mounted. The default folder does not count: many templates have it."""
    for compute in project.computes.values():
        said = compute.document.value(_SHARED_FOLDER)
        if not compute.is_docker or compute.shared_volumes or not isinstance(said, str):
            continue
        if said.strip().rstrip("/") in {"", SHARE.rstrip("/")}:
            continue
        yield Finding(
            Diagnostic(
                Code.NO_EFFECT,
                "key without effect",
                compute.document.span(compute.document.root.items[_SHARED_FOLDER]),
                f"not mounted in containers, because `{_VOLUMES}` is false",
                help=f"write `{_VOLUMES}: true`, or remove `{_SHARED_FOLDER}`",
                severity=Severity.WARNING,
            )
        )


def misspelt_keys(project: Project) -> Iterator[Finding]:
    """Find misspelt keys in targets and run configurations. SDK v1 files belong to another program."""
    for compute in project.computes.values():
        yield from _misspelt(compute.document, compute_file.KEYS)
    for runconfig in project.runconfigs.values():
        if not runconfig.is_sdk_v1:
            yield from _misspelt(runconfig.document, runconfig_file.KEYS)


def _misspelt(document: Document, known: frozenset[str]) -> Iterator[Finding]:
    for key, node in document.root.keys.items():
        near = None if key in known else nearest(key, sorted(known))
        # Other keys may be the user's own, or from an unknown version.
        if near is None or not is_nearly(key, near):
            continue
        span = document.span(node)
        diagnostic = Diagnostic(
            Code.UNKNOWN_KEY,
            "unknown key",
            unshown(span) if near == "password" else span,
            f"`{key}` has no effect" + (f", and `{near}` also exists" if near in document.root.keys else ""),
            help=f"did you mean `{near}`?",
            severity=Severity.WARNING,
        )
        yield Finding(diagnostic, rename_key(document, key, near) if plain(key) == plain(near) else None)
