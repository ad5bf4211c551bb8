"""The port for progress reports."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Hears of every step; `step` is a line on the screen. Calls may come from any thread."""

    def begin(self, step: str, doing: str) -> None:
        """A step begins, or does something else now."""

    def amount(self, step: str, done: int, total: int | None) -> None:
        """How many bytes of a step are done, of how many. Cheap to call often."""

    def end(self, step: str, outcome: str) -> None:
        """It is done."""

    def fail(self, step: str, reason: str) -> None:
        """It failed."""

    def note(self, text: str) -> None:
        """Something worth a line that stays."""


def counted(count: int, noun: str) -> str:
    """`1 file`, `2 files`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
