"""The findings of `gpuinfra lint`, and applied fixes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpuinfra.diagnostics import Severity
from gpuinfra.views import diagnostics as diagnostics_view
from gpuinfra.views import json_output
from gpuinfra.views.terminal import counted, harmless, messages, results

if TYPE_CHECKING:
    from gpuinfra.lint.fix import LintResult


def show(projects: Sequence[Path], outcome: LintResult, *, json: bool) -> None:
    """Print applied fixes and the summary on stdout, findings on stderr; or everything as one JSON object."""
    if json:
        json_output.show(
            {
                "projects": [str(project) for project in projects],
                "findings": [
                    {**diagnostics_view.as_json(finding.diagnostic), "fixable": finding.fix is not None}
                    for finding in outcome.findings
                ],
                "fixed": [
                    {"file": fixed.file, "line": fixed.line, "code": fixed.code.value, "what": fixed.what}
                    for fixed in outcome.fixed
                ],
            }
        )
        return
    for fixed in outcome.fixed:
        results().print(f"fixed {harmless(fixed.file)}:{fixed.line} {harmless(fixed.what)}")
    diagnostics_view.show(finding.diagnostic for finding in outcome.findings)
    if outcome.findings:
        messages().print()
    results().print(summary(outcome))


def summary(outcome: LintResult) -> str:
    """Return `3 errors, 2 warnings in 4 files; 3 can be fixed by --fix`."""
    if not outcome.findings:
        return f"no problems in {counted(len(outcome.files), 'file')}"
    severities = [finding.diagnostic.severity for finding in outcome.findings]
    errors, warnings = severities.count(Severity.ERROR), severities.count(Severity.WARNING)
    counts = [(errors, "error"), (warnings, "warning")]
    files = {finding.diagnostic.span.file for finding in outcome.findings if finding.diagnostic.span}
    text = ", ".join(counted(count, word) for count, word in counts if count)
    text += f" in {counted(len(files), 'file')}" if files else ""
    fixable = sum(finding.fix is not None for finding in outcome.findings)
    return f"{text}; {fixable} can be fixed by --fix" if fixable else text
