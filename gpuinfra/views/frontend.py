"""Progress, events and questions on a terminal."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable
from textwrap import fill
from typing import TYPE_CHECKING

import typer

from gpuinfra.models.consent import (
    CommandInterrupted,
    ConsentDetails,
    Effect,
    Event,
    HostKeyDetails,
    PlanReady,
    Question,
    ReapInterrupted,
    unknown_runs,
)
from gpuinfra.views.progress import ProgressView
from gpuinfra.views.terminal import columns, harmless, messages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuinfra.models.consent import Decision
    from gpuinfra.views.job import TerminalSink

# After this time without an answer, the default applies.
ANSWER_SECONDS = 120.0
LOOK_SECONDS = 0.2


class TerminalFrontend(ProgressView):
    """Shows progress and events on standard error, and asks questions there."""

    def __init__(self, *, json: bool = False, verbose: bool = False) -> None:
        super().__init__(plain=json or verbose)
        self._json = json

    @property
    def can_ask(self) -> bool:
        """Whether standard input is a terminal and `--json` is not set."""
        return sys.stdin.isatty() and not self._json

    @property
    def terminal(self) -> dict[str, str]:
        """The type, size and colours of the terminal, if both streams of a job appear on it."""
        if self._json or not (self._is_live and sys.stdout.isatty()):
            return {}
        width, height = self._console.size
        given = {name: os.environ[name] for name in ("TERM", "COLORTERM", "NO_COLOR") if os.environ.get(name)}
        # Programs that find no terminal use these. A job's streams are pipes, so that they stay apart.
        colours = {} if "NO_COLOR" in given else {"FORCE_COLOR": "1"}
        # tqdm does not read COLUMNS.
        sizes = {"COLUMNS": str(width), "LINES": str(height), "TQDM_NCOLS": str(width - 1)}
        return {**given, **colours, **sizes}

    def show(self, event: Event) -> None:
        from gpuinfra.views import plan, reap
        from gpuinfra.views import plan as plan_view

        with self.paused():
            if isinstance(event, PlanReady):
                plan.show_first(event)
            elif isinstance(event, ReapInterrupted):
                reap.show_interrupted(event.under_way, event.not_begun)
            elif isinstance(event, CommandInterrupted):
                plan_view.show_all_interrupted(event)
            else:
                plan_view.show_interrupted(event)

    def confirm(self, question: Question) -> bool:
        """Ask a yes-or-no question. Raises typer.Abort at the end of the input."""
        with self.paused():
            _show_details(question)
            text = "\n".join(harmless(line) for line in question.text.split("\n"))
            return typer.confirm(text, default=question.default, err=True)

    def ask_choice(self, question: str, default: str, is_over: Callable[[], bool]) -> str | None:
        """Return the first letter of the answer, the default after two minutes, or None as soon as `is_over`."""
        with self.paused():
            try:
                return _ask_until(question, default, is_over)
            except (typer.Abort, KeyboardInterrupt):  # a second Ctrl-C, or the terminal is closed
                typer.echo(err=True)
                return default

    def ask_password(self, prompt: str) -> str:
        """Ask for a password without echoing it."""
        with self.paused():
            return str(typer.prompt(harmless(prompt), hide_input=True, err=True))

    def open_output(self) -> TerminalSink:
        from gpuinfra.views.job import TerminalSink

        return TerminalSink(json=self._json, progress=self)


def _show_details(question: Question) -> None:
    match question.details:
        case str(text):
            messages().print(harmless(text))
        case ConsentDetails(name, decision, attached):
            _show_consent(name, decision, attached)
        case HostKeyDetails(place, kind, fingerprint):
            _show_host_key(place, kind, fingerprint)


def _ask_until(question: str, default: str, is_over: Callable[[], bool]) -> str | None:
    typer.echo(f"{_wrapped(question)} [{default}]: ", err=True, nl=False)
    ends = time.monotonic() + ANSWER_SECONDS
    # A terminal is readable after a complete line.
    while not select.select([sys.stdin], [], [], LOOK_SECONDS)[0]:
        if is_over():
            typer.echo("\nthe job has ended", err=True)
            return None
        if time.monotonic() >= ends:
            typer.echo(f"\nno answer within {ANSWER_SECONDS:g} s; using `{default}`", err=True)
            return default
    try:
        line = sys.stdin.readline()
    except OSError:  # the terminal has closed
        line = ""
    if not line:
        raise typer.Abort
    return line.strip().lower()[:1] or default


def _wrapped(text: str) -> str:
    """Return lines that fit the terminal; what does not fit continues below the text of a choice."""
    width = messages().width
    return "\n".join(fill(line, width, subsequent_indent=" " * 5) if line else line for line in text.split("\n"))


CONSENT_HEADINGS = {
    Effect.GO_OFF_SOONER: "This switches {} off sooner than before, and may stop:",
    Effect.RESTART: "This restarts {} and stops:",
    Effect.POWER_OFF: "This switches {} off and stops:",
    Effect.DELETE_DISK: "This deletes {} and everything on its disk:",
}


def _show_consent(name: str, decision: Decision, attached: Sequence[str] = ()) -> None:
    """Print the affected runs, other losses, and attached resources on stderr."""
    console, lines = messages(), []
    if decision.runs:
        rows = [("RUN", "SCRIPT", "STATE", "OUTPUTS")]
        rows += [
            (run.id, run.script or "(another workspace)", run.state, "not fetched" if run.is_unfetched else "-")
            for run in decision.runs
        ]
        lines += [f"  {line}" for line in columns(rows)]
    if decision.effect is Effect.DELETE_DISK:
        lines.append("  the shared folder (~/.azureml/share), and all other files on the disk")
    if lines:
        console.print(CONSENT_HEADINGS[decision.effect].format(name), style="bold")
    for line in lines:
        console.print(line)
    if decision.unknown:
        console.print(f"note: {unknown_runs(name, decision.unknown)}")
    if attached and decision.effect is Effect.DELETE_DISK:
        console.print(f"note: {', '.join(attached)} will be detached and kept")


def _show_host_key(where: str, kind: str, fingerprint: str) -> None:
    """Print a new machine's host key before the question."""
    console = messages()
    console.print(f"{harmless(where)} is not known yet. Its host key is")
    console.print(f"  {fingerprint} ({kind})")
    name = kind.removeprefix("ssh-").partition("-")[0]
    console.print(f"To compare, run on the machine: ssh-keygen -lf /etc/ssh/ssh_host_{harmless(name)}_key.pub")
