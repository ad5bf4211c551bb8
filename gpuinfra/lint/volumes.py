"""A shared folder that is named and not mounted."""

from __future__ import annotations

from collections.abc import Iterator

from gpuinfra.diagnostics import Code, Diagnostic, Severity
from gpuinfra.lint.finding import Finding
from gpuinfra.workbench.compute import SHARE
from gpuinfra.workbench.project import Project

_FOLDER, _VOLUMES = "nativeSharedDirectory", "sharedVolumes"


def not_shared(project: Project) -> Iterator[Finding]:
    """Only a folder of the user's own: the usual one stands beside `sharedVolumes: false` in many templates."""
    for compute in project.computes.values():
        said = compute.document.value(_FOLDER)
        if not compute.is_docker or compute.shared_volumes or not isinstance(said, str):
            continue
        if said.strip().rstrip("/") in {"", SHARE.rstrip("/")}:
            continue
        yield Finding(
            Diagnostic(
                Code.NO_EFFECT,
                "without effect",
                compute.document.span(compute.document.root.items[_FOLDER]),
                f"a container does not see it, for `{_VOLUMES}` is false",
                help=f"write `{_VOLUMES}: true`, or remove `{_FOLDER}`",
                severity=Severity.WARNING,
            )
        )
