"""A question on the terminal that does not wait for ever."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Callable

import typer

# For an answer; then the default is taken.
SECONDS = 120.0
LOOK_SECONDS = 0.2


def ask_until(question: str, default: str, is_over: Callable[[], bool]) -> str | None:
    """Return the first letter of the answer, or the default after two minutes; None as soon as `is_over`.

    Raises typer.Abort if the terminal's input ends, and KeyboardInterrupt at Ctrl-C.
    """
    typer.echo(f"{question} [{default}]: ", err=True, nl=False)
    ends = time.monotonic() + SECONDS
    # A terminal has something to read when a whole line was typed.
    while not select.select([sys.stdin], [], [], LOOK_SECONDS)[0]:
        if is_over():
            typer.echo("\nthe job has ended", err=True)
            return None
        if time.monotonic() >= ends:
            typer.echo(f"\nno answer within {SECONDS:g} s: `{default}`", err=True)
            return default
    line = sys.stdin.readline()
    if not line:
        raise typer.Abort
    return line.strip().lower()[:1] or default
