"""Consoles that respect NO_COLOR, pipes, and text that tries to drive the terminal."""

from __future__ import annotations

import errno
import io
import os
import unicodedata
from typing import TYPE_CHECKING, Any, TextIO

from gpuinfra.views.suggestions import CommandCompleter

if TYPE_CHECKING:
    from rich.console import Console

TAB = "→   "


def results() -> Console:
    """Return the console for results: standard output."""
    return _console(stderr=False)


def messages() -> Console:
    """Return the console for messages: standard error."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=True)
    console.push_render_hook(CommandCompleter())  # type: ignore[arg-type]  # its base class would import rich
    if stderr:
        # rich would exit on a broken pipe; the program must continue, to deallocate the machine.
        console.on_broken_pipe = lambda: setattr(console, "quiet", True)  # type: ignore[method-assign]
    return console


class TerminalFile(io.FileIO):
    """A terminal that may close. Text for a closed terminal is dropped.

    The kernel refuses writes before it sends SIGHUP. An error in between would end a teardown half-way; SIGHUP
    interrupts the command, unless `nohup` lets the command continue.
    """

    def write(self, data: Any, /) -> int:
        """Write bytes, and return how many."""
        try:
            return super().write(data)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)
            return len(data)


def survive_closed_terminal(stream: TextIO) -> TextIO:
    """Return a stream to the same place. If that is a terminal, it may close."""
    if not stream.isatty():
        return stream
    raw = TerminalFile(stream.fileno(), "wb", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding=stream.encoding, line_buffering=True)


def harmless(text: str) -> str:
    """Return `text` on one line, without control and bidirectional characters."""
    return "".join(TAB if character == "\t" else _harmless(character) for character in text)


def _harmless(character: str) -> str:
    # C: control, format (bidirectional marks among them), surrogates; Zl and Zp: line and paragraph separators.
    category = unicodedata.category(character)
    return "\N{REPLACEMENT CHARACTER}" if category[0] == "C" or category in {"Zl", "Zp"} else character
