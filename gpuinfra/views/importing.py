"""What `gpuinfra import` made of a project, and what has no equivalent."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuinfra.views import document, files
from gpuinfra.views.terminal import harmless, messages

if TYPE_CHECKING:
    from gpuinfra.models.spec import Spec
    from gpuinfra.workbench.importing import Imported
    from gpuinfra.workbench.unsupported import Missing


def show(imported: Imported, spec: Spec, file: Path | None, hint: str, *, json: bool) -> None:
    """The spec on stdout where it has no file, and on stderr what it does not say; or all of it as one object."""
    if json:
        document.show(
            {
                "file": str(file) if file else None,
                "spec": spec.as_json(),
                **({} if file else {"content": imported.spec_text}),
                "target": imported.target,
                "withoutEquivalent": [_as_json(missing) for missing in imported.missing],
            }
        )
        return
    if file is None:
        sys.stdout.write(imported.spec_text)
        sys.stdout.flush()
    if imported.is_later:
        messages().print(
            "note: the project is of Azure ML SDK v1, which followed the Workbench; what means the same is kept"
        )
    _show_missing(imported.missing)
    if file is not None:
        files.show_written([file], hint)


def _show_missing(found: Sequence[Missing]) -> None:
    console = messages()
    if not found:
        return
    console.print(f"{len(found)} without equivalent:" if len(found) > 1 else "Without equivalent:")
    for missing in found:
        span = missing.span
        place = f"{harmless(span.file)}:{span.line}:{span.column}: " if span else ""
        console.print(f"  {place}{harmless(missing.what)}")
        console.print(f"      instead: {harmless(missing.instead)}")


def _as_json(missing: Missing) -> dict[str, Any]:
    span = missing.span
    place = {"file": span.file, "line": span.line, "column": span.column} if span else {}
    return {**place, "what": missing.what, "instead": missing.instead}
