"""Consoles that respect NO_COLOR, pipes, and text that tries to drive the terminal."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

TAB = "→   "


def results() -> Console:
    """Where a command's answer goes: standard output."""
    return _console(stderr=False)


def messages() -> Console:
    """Where all else goes: standard error."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=True)
    if stderr:
        # rich would end the program: that nobody reads what it says is no reason to leave a machine on.
        console.on_broken_pipe = lambda: setattr(console, "quiet", True)  # type: ignore[method-assign]
    return console


def harmless(text: str) -> str:
    """`text` on one line, with nothing in it that moves the cursor, sets colours or turns writing round."""
    return "".join(TAB if character == "\t" else _harmless(character) for character in text)


def _harmless(character: str) -> str:
    # C: control, format (bidirectional marks among them), surrogates; Zl and Zp: line and paragraph separators.
    category = unicodedata.category(character)
    return "\N{REPLACEMENT CHARACTER}" if category[0] == "C" or category in {"Zl", "Zp"} else character
