"""The two ways back from a use case to its caller: progress and questions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gpuinfra.models.events import Event, Question
    from gpuinfra.runner.jobs.port import Frame


class JobOutput(Protocol):
    """Receives what a job prints."""

    def __call__(self, frame: Frame) -> None:
        """Show one frame."""

    def finish(self) -> None:
        """End an unfinished line."""


class Frontend(Protocol):
    """What the caller of a use case provides. Calls may come from any thread."""

    @property
    def can_ask(self) -> bool:
        """Whether a person can answer a question."""

    def begin(self, step: str, doing: str) -> None:
        """Report that a step begins, or does something else now."""

    def amount(self, step: str, done: int, total: int | None) -> None:
        """Report how many bytes of a step are done, of how many."""

    def end(self, step: str, outcome: str) -> None:
        """Report that a step is done."""

    def fail(self, step: str, reason: str) -> None:
        """Report that a step failed."""

    def wait(self, reason: str, seconds: float) -> None:
        """Report that everything waits because Azure asked for it."""

    def note(self, text: str) -> None:
        """Report something worth a line."""

    def show(self, event: Event) -> None:
        """Show an event."""

    def confirm(self, question: Question) -> bool:
        """Ask a question. Call it only if `can_ask`."""

    def ask_choice(self, question: str, default: str, is_over: Callable[[], bool]) -> str | None:
        """Ask for one letter; None as soon as `is_over`. Without an answer, return the default after two minutes."""

    def ask_password(self, prompt: str) -> str:
        """Ask for a password without showing it."""

    def open_output(self) -> JobOutput:
        """Return where the output of a job goes."""
