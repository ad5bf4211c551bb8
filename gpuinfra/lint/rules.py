"""All rules, and their findings in a project."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from gpuinfra.lint.finding import Finding
from gpuinfra.lint.images import for_the_cpu, gpu_not_passed_on, malformed, mixed_versions, no_cuda, pyspark
from gpuinfra.lint.newer_cuda import newer_cuda
from gpuinfra.lint.packages import cpu_only, wrong_cuda
from gpuinfra.lint.passwords import hidden_lines, secrets, unshown
from gpuinfra.lint.references import missing_files, misspelt_keys, not_filled_in, not_shared, unknown_target
from gpuinfra.lint.requirements import bad_requirements, wheels
from gpuinfra.parse.source import without_logins
from gpuinfra.workbench.project import Project

RULES: tuple[Callable[[Project], Iterator[Finding]], ...] = (
    pyspark,
    gpu_not_passed_on,
    no_cuda,
    for_the_cpu,
    cpu_only,
    wrong_cuda,
    newer_cuda,
    wheels,
    not_shared,
    secrets,
    malformed,
    mixed_versions,
    unknown_target,
    missing_files,
    not_filled_in,
    misspelt_keys,
    bad_requirements,
)


def check(project: Project) -> list[Finding]:
    """Return all findings in a project, sorted by file and line, including unreadable files."""
    found = [Finding(diagnostic) for diagnostic in project.diagnostics]
    found += [finding for rule in RULES for finding in rule(project)]
    hidden = hidden_lines(project)
    return sorted((_without_secrets(finding, hidden) for finding in found), key=_place)


def _without_secrets(finding: Finding, hidden: set[tuple[str, int]]) -> Finding:
    """Remove secrets from a finding's line and texts."""
    diagnostic, span = finding.diagnostic, finding.diagnostic.span
    if span and (span.file, span.line) in hidden:
        span = unshown(span)
    diagnostic = replace(
        diagnostic,
        span=span,
        label=_masked(diagnostic.label),
        note=_masked(diagnostic.note),
        help=_masked(diagnostic.help),
    )
    # Applied fixes are shown, too.
    is_safe = finding.fix is None or without_logins(finding.fix.what) == finding.fix.what
    return replace(finding, diagnostic=diagnostic, fix=finding.fix if is_safe else None)


def _masked(text: str | None) -> str | None:
    return text and without_logins(text)


def _place(finding: Finding) -> tuple[str, int, int, str]:
    span = finding.diagnostic.span
    return (span.file, span.line, span.column, finding.diagnostic.code) if span else ("", 0, 0, finding.diagnostic.code)
