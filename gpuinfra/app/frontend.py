"""The interface through which a use case reports progress and asks questions, and consent to one change."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gpuinfra.app.settings import Settings
    from gpuinfra.diagnostics import Problem
    from gpuinfra.models.consent import Event, Question
    from gpuinfra.models.run import Frame, LiveStatus


class JobOutput(Protocol):
    """A receiver of a job's output."""

    def __call__(self, frame: Frame) -> None:
        """Show one frame."""

    def finish(self) -> None:
        """End an unfinished line."""


class Frontend(Protocol):
    """What the caller of a use case provides. Thread-safe."""

    @property
    def can_ask(self) -> bool:
        """Whether a person can answer a question."""

    @property
    def terminal(self) -> dict[str, str]:
        """The variables that describe the terminal to a job whose output it shows; empty without a terminal."""

    def begin(self, step: str, doing: str) -> None:
        """Report that a step begins, or changes what it does."""

    def amount(self, step: str, done: int, total: int | None) -> None:
        """Report how many bytes of a step are done, and the total if known."""

    def end(self, step: str, outcome: str) -> None:
        """Report that a step is done."""

    def fail(self, step: str, reason: str) -> None:
        """Report that a step failed."""

    def wait(self, reason: str, seconds: float) -> None:
        """Report a wait that Azure requested."""

    def note(self, text: str) -> None:
        """Report a line of text."""

    def show(self, event: Event) -> None:
        """Show an event."""

    def confirm(self, question: Question) -> bool:
        """Ask a question. Call it only if `can_ask`."""

    def ask_choice(self, question: str, default: str, is_over: Callable[[], bool]) -> str | None:
        """Ask for one letter. Return None once `is_over`, or the default after two minutes without an answer."""

    def ask_password(self, prompt: str) -> str:
        """Ask for a password without showing it."""

    @property
    def shows_status(self) -> bool:
        """Whether it shows what `set_status` gets."""

    def set_status(self, read: Callable[[], LiveStatus | None] | None) -> None:
        """Show from now on what `read` returns, while the job prints nothing; nothing more without `read`."""

    def open_output(self) -> JobOutput:
        """Return the receiver for a job's output."""


def ask_or_refuse(settings: Settings, frontend: Frontend, question: Question, refusal: Problem) -> None:
    """Return if `--yes` was given or the user agrees; raise `refusal` otherwise, and without a terminal."""
    if not settings.yes and not (frontend.can_ask and frontend.confirm(question)):
        raise refusal
