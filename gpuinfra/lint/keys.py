"""Misspelt keys."""

from __future__ import annotations

from collections.abc import Iterator

from gpuinfra.diagnostics import Code, Diagnostic, Severity
from gpuinfra.lint.finding import Finding, rename_key
from gpuinfra.lint.passwords import unshown
from gpuinfra.lint.placeholders import is_nearly, plain
from gpuinfra.parse.document import Document
from gpuinfra.suggest import nearest
from gpuinfra.workbench import compute as compute_file
from gpuinfra.workbench import runconfig as runconfig_file
from gpuinfra.workbench.project import Project


def misspelt_keys(project: Project) -> Iterator[Finding]:
    """Find misspelt keys in targets and run configurations. SDK v1 files belong to another program."""
    for compute in project.computes.values():
        yield from _misspelt(compute.document, compute_file.KEYS)
    for runconfig in project.runconfigs.values():
        if not runconfig.is_later:
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
