"""What is going on, told to whoever shows it."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Hears of every step. `step` is a line on the screen, such as `machine my-dsvm`; calls come from any thread."""

    def begin(self, step: str, doing: str) -> None:
        """A step begins: `doing` is `creating`, `deleting`, `starting`, …."""

    def end(self, step: str, outcome: str) -> None:
        """It is done: `created`, `deleted`, …."""

    def fail(self, step: str, reason: str) -> None:
        """It failed."""

    def wait(self, reason: str, seconds: float) -> None:
        """Azure asked to wait, and so everything waits."""

    def note(self, text: str) -> None:
        """Something worth a line."""


class Silent:
    """Tells nobody."""

    def begin(self, step: str, doing: str) -> None:
        """Nothing."""

    def end(self, step: str, outcome: str) -> None:
        """Nothing."""

    def fail(self, step: str, reason: str) -> None:
        """Nothing."""

    def wait(self, reason: str, seconds: float) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""
