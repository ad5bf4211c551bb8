"""The result of `gpuinfra validate`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuinfra.views import diagnostics as diagnostics_view
from gpuinfra.views import json_output
from gpuinfra.views.terminal import harmless, messages, results

if TYPE_CHECKING:
    from gpuinfra.diagnostics import Diagnostic
    from gpuinfra.parse.spec import LocatedSpec


def show(
    specs: Sequence[LocatedSpec], diagnostics: Sequence[Diagnostic], warnings: Sequence[Diagnostic], *, json: bool
) -> None:
    """Print valid specs on stdout, problems and warnings on stderr; or everything as one JSON object."""
    if json:
        json_output.show(
            {
                "valid": not diagnostics,
                "specs": [
                    {
                        "name": located.spec.name,
                        "file": located.span.file,
                        "line": located.span.line,
                        "digest": located.spec.digest(),
                        "spec": located.spec.as_json(),
                    }
                    for located in specs
                ],
                "diagnostics": [diagnostics_view.as_json(diagnostic) for diagnostic in (*diagnostics, *warnings)],
            }
        )
        return
    console = results()
    rejected = {diagnostic.span.file for diagnostic in diagnostics if diagnostic.span}
    for located in specs:
        if located.span.file in rejected:
            continue
        console.print(f"valid  {located.spec.name}  {harmless(located.span.file)}:{located.span.line}")
    diagnostics_view.show([*diagnostics, *warnings])
    if len(diagnostics) > 1:
        messages().print(f"\n{len(diagnostics)} problems found")
