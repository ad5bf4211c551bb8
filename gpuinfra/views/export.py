"""What `gpuinfra export` gives: on stdout as it is, or in the one object of `--json`."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpuinfra.views import document, files
from gpuinfra.views.terminal import harmless, messages


def show(name: str, form: str, content: str | bytes, *, json: bool) -> None:
    """The export itself."""
    if json:
        document.show({"name": name, "format": form, **_as_json(content)})
    elif isinstance(content, bytes):
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
    else:
        sys.stdout.write(content)


def show_file(name: str, form: str, file: Path, hint: str, *, json: bool) -> None:
    """Where it was written."""
    if json:
        document.show({"name": name, "format": form, "file": str(file)})
    else:
        files.show_written([file], hint)


def show_notes(notes: Iterable[str]) -> None:
    """What the export itself cannot say, on stderr."""
    for note in notes:
        messages().print(f"note: {harmless(note)}")


def _as_json(content: str | bytes) -> dict[str, Any]:
    if isinstance(content, str):
        return {"content": content}
    return {"content": base64.b64encode(content).decode("ascii"), "encoding": "base64"}
