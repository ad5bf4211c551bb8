"""Files that a command wrote."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from gpuinfra.views.terminal import harmless, messages, results


def show_written(files: Iterable[Path], hint: str) -> None:
    """Their paths on stdout, and on stderr what to do next."""
    console = results()
    for file in files:
        console.print(f"wrote {harmless(str(file))}")
    messages().print(f"Next: {harmless(hint)}")
