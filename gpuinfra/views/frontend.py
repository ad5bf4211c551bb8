"""Progress, events and questions on a terminal."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from gpuinfra.models.events import ConsentDetails, Event, HostKeyDetails, PlanReady, Question, ReapInterrupted
from gpuinfra.views.progress import ProgressView
from gpuinfra.views.terminal import harmless, messages

if TYPE_CHECKING:
    from gpuinfra.views.job import TerminalSink

# For an answer; then the default is taken.
ANSWER_SECONDS = 120.0
LOOK_SECONDS = 0.2


class TerminalFrontend(ProgressView):
    """Shows what a use case reports on standard error, and asks its questions there."""

    def __init__(self, *, json: bool = False, verbose: bool = False) -> None:
        super().__init__(plain=json or verbose)
        self._json = json

    @property
    def can_ask(self) -> bool:
        """Whether standard input is a terminal, and the caller is not a program."""
        return sys.stdin.isatty() and not self._json

    def show(self, event: Event) -> None:
        """Show an event."""
        from gpuinfra.views import plan, reap, up

        with self.paused():
            if isinstance(event, PlanReady):
                plan.show_first(event.plan)
            elif isinstance(event, ReapInterrupted):
                reap.show_interrupted(event.under_way, event.not_begun)
            else:
                up.show_interrupted(event)

    def confirm(self, question: Question) -> bool:
        """Ask a question with yes or no for an answer. Raises typer.Abort at the end of the input."""
        with self.paused():
            _show_details(question)
            return typer.confirm(question.text, default=question.default, err=True)

    def ask_choice(self, question: str, default: str, is_over: Callable[[], bool]) -> str | None:
        """Return the first letter of the answer, the default after two minutes, or None as soon as `is_over`."""
        try:
            with self.paused():
                return _ask_until(question, default, is_over)
        except (typer.Abort, KeyboardInterrupt):  # Ctrl-C once more, or the terminal is gone
            return default

    def ask_password(self, prompt: str) -> str:
        """Ask for a password without showing it."""
        with self.paused():
            return str(typer.prompt(harmless(prompt), hide_input=True, err=True))

    def open_output(self) -> TerminalSink:
        """Return where the output of a job goes."""
        from gpuinfra.views.job import TerminalSink

        return TerminalSink(json=self._json, progress=self)


def _show_details(question: Question) -> None:
    match question.details:
        case str(text):
            messages().print(harmless(text))
        case ConsentDetails(name, decision, attached):
            from gpuinfra.views import consent

            consent.show(name, decision, attached)
        case HostKeyDetails(place, kind, fingerprint):
            from gpuinfra.views import attached as view

            view.show_host_key(place, kind, fingerprint)


def _ask_until(question: str, default: str, is_over: Callable[[], bool]) -> str | None:
    typer.echo(f"{question} [{default}]: ", err=True, nl=False)
    ends = time.monotonic() + ANSWER_SECONDS
    # A terminal has something to read when a whole line was typed.
    while not select.select([sys.stdin], [], [], LOOK_SECONDS)[0]:
        if is_over():
            typer.echo("\nthe job has ended", err=True)
            return None
        if time.monotonic() >= ends:
            typer.echo(f"\nno answer within {ANSWER_SECONDS:g} s: `{default}`", err=True)
            return default
    line = sys.stdin.readline()
    if not line:
        raise typer.Abort
    return line.strip().lower()[:1] or default
