"""The port for progress reports."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives the steps of a task; each `step` is one line on the screen. Calls may come from any thread."""

    def begin(self, step: str, doing: str) -> None:
        """Start a step, or change what it is doing."""

    def amount(self, step: str, done: int, total: int | None) -> None:
        """Report how many bytes of a step are done, and the total if known. Cheap enough to call often."""

    def end(self, step: str, outcome: str) -> None:
        """Report that a step succeeded."""

    def fail(self, step: str, reason: str) -> None:
        """Report that a step failed."""

    def note(self, text: str) -> None:
        """Print a line that stays on the screen."""


def counted(count: int, noun: str) -> str:
    """Return `1 file` or `2 files`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
