"""The port for progress reports."""

from typing import Protocol


class Progress(Protocol):
    """A receiver of progress reports, thread-safe. `step` is a line on the screen, such as `machine my-dsvm`."""

    def begin(self, step: str, doing: str) -> None:
        """Report the start of a step: `doing` is `creating`, `deleting`, `starting`, …."""

    def end(self, step: str, outcome: str) -> None:
        """Report the end of a step: `outcome` is `created`, `deleted`, …."""

    def fail(self, step: str, reason: str) -> None:
        """Report the failure of a step."""

    def wait(self, reason: str, seconds: float) -> None:
        """Report a wait that Azure requested."""

    def note(self, text: str) -> None:
        """Report a line of text."""


class Silent:
    """A Progress that ignores all reports."""

    def begin(self, step: str, doing: str) -> None:
        """Do nothing."""

    def end(self, step: str, outcome: str) -> None:
        """Do nothing."""

    def fail(self, step: str, reason: str) -> None:
        """Do nothing."""

    def wait(self, reason: str, seconds: float) -> None:
        """Do nothing."""

    def note(self, text: str) -> None:
        """Do nothing."""
