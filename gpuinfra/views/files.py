"""What `init`, `export`, `import` and `ssh --config` write."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuinfra.views import json_output
from gpuinfra.views.terminal import harmless, messages, results

if TYPE_CHECKING:
    from gpuinfra.models.spec import Spec
    from gpuinfra.workbench.project_import import ImportResult
    from gpuinfra.workbench.unsupported import UnsupportedItem


def show_written(files: Iterable[Path], hint: str) -> None:
    """Print the paths on stdout, and the next step on stderr."""
    console = results()
    for file in files:
        console.print(f"wrote {harmless(str(file))}")
    messages().print(f"Next: {harmless(hint)}")


def show_export(name: str, form: str, content: str | bytes, *, json: bool) -> None:
    """Print the export."""
    if json:
        json_output.show({"name": name, "format": form, **_export_as_json(content)})
    elif isinstance(content, bytes):
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
    else:
        sys.stdout.write(content)


def show_export_file(name: str, form: str, file: Path, hint: str, *, json: bool) -> None:
    """Print where the export was written."""
    if json:
        json_output.show({"name": name, "format": form, "file": str(file)})
    else:
        show_written([file], hint)


def show_notes(notes: Iterable[str]) -> None:
    """Print notes about the export on stderr."""
    for note in notes:
        messages().print(f"note: {harmless(note)}")


def _export_as_json(content: str | bytes) -> dict[str, Any]:
    if isinstance(content, str):
        return {"content": content}
    return {"content": base64.b64encode(content).decode("ascii"), "encoding": "base64"}


def show_import(imported: ImportResult, spec: Spec, file: Path | None, hint: str, *, json: bool) -> None:
    """Print the spec, or its file, and what has no equivalent; or everything as one JSON object."""
    if json:
        json_output.show(
            {
                "file": str(file) if file else None,
                "spec": spec.as_json(),
                **({} if file else {"content": imported.spec_text}),
                "target": imported.target,
                "withoutEquivalent": [_unsupported_as_json(missing) for missing in imported.missing],
            }
        )
        return
    if file is None:
        sys.stdout.write(imported.spec_text)
        sys.stdout.flush()
    if imported.is_sdk_v1:
        messages().print(
            "note: this is an Azure ML SDK v1 project; gpuinfra imports what has the same meaning in Workbench"
        )
    _show_unsupported(imported.missing)
    if file is not None:
        show_written([file], hint)


def _show_unsupported(found: Sequence[UnsupportedItem]) -> None:
    console = messages()
    if not found:
        return
    console.print(f"Without equivalent ({len(found)}):")
    for missing in found:
        span = missing.span
        place = f"{harmless(span.file)}:{span.line}:{span.column}: " if span else ""
        console.print(f"  {place}{harmless(missing.what)}")
        console.print(f"      instead: {harmless(missing.instead)}")


def _unsupported_as_json(missing: UnsupportedItem) -> dict[str, Any]:
    span = missing.span
    place = {"file": span.file, "line": span.line, "column": span.column} if span else {}
    return {**place, "what": missing.what, "instead": missing.instead}
