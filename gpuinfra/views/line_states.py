"""Reduce what overwrites a line, such as a progress bar, to the line's final state, for files and pipes."""

from __future__ import annotations

import re

# What moves the cursor back in its line, except at the end of a line of Windows.
_OVERWRITES = re.compile(rb"\r(?!\n|\Z)|\x08")
_TOKEN = re.compile(r"\x1b\[(?P<parameters>[0-9;:<=>?]*)[ -/]*(?P<final>[@-~])|\x1b.|.", re.DOTALL)
# An unfinished line that is longer passes as it is, unless it can be reduced.
MAX_LINE = 1 << 16


class LineStates:
    """Keeps an unfinished line back, because the rest of it can overwrite its beginning.

    A stream with a NUL byte is not text, and passes unchanged from there on.
    """

    def __init__(self) -> None:
        self._line = b""
        self._is_begun = self._is_binary = False

    @property
    def is_waiting(self) -> bool:
        """Whether an unfinished line is kept back that nothing has overwritten so far."""
        return bool(self._line) and not self._is_overwritten

    @property
    def _is_overwritten(self) -> bool:
        return b"\r" in self._line or b"\x08" in self._line

    def add(self, data: bytes) -> bytes:
        """Add output, and return the lines that it completes, in their final states."""
        if self._is_binary or b"\0" in data:
            self._is_binary = True
            return self.flush(collapse=False) + data
        lines, end, self._line = (self._line + data).rpartition(b"\n")
        done = self._rest_of_begun(_final_states(lines) + end, lines) if end else b""
        if len(self._line) > MAX_LINE:
            before, overwrite, rest = self._line.rpartition(b"\r")
            self._line = final_state(before) + overwrite + rest
            if len(self._line) > MAX_LINE:
                done += self.flush(collapse=False)
        return done

    def flush(self, *, collapse: bool = True) -> bytes:
        """Return the unfinished line so far."""
        line, self._line = self._line, b""
        if line:
            line, self._is_begun = self._rest_of_begun(final_state(line) if collapse else line, line), True
        return line

    def _rest_of_begun(self, shown: bytes, lines: bytes) -> bytes:
        """Return lines of which the first may be begun already. What overwrites its beginning goes to a new line."""
        is_overwritten = self._is_begun and _OVERWRITES.search(lines.partition(b"\n")[0])
        self._is_begun = False
        return b"\n" + shown if is_overwritten else shown


def _final_states(lines: bytes) -> bytes:
    if not _OVERWRITES.search(lines):
        return lines
    return b"\n".join(final_state(line) for line in lines.split(b"\n"))


def final_state(line: bytes) -> bytes:
    """Return what a terminal shows of a line in the end, with its colours."""
    if not _OVERWRITES.search(line):
        return line
    cells: list[str] = []
    for part in line.decode("utf-8", "surrogateescape").removesuffix("\r").split("\r"):
        if len(part) >= len(cells) and "\x1b" not in part and "\x08" not in part:
            cells = list(part)
        else:
            _overwrite(cells, part)
    return "".join(cells).rstrip(" ").encode("utf-8", "surrogateescape")


def _overwrite(cells: list[str], part: str) -> None:
    """Write a part of a line over its beginning. A cell is a character with the escape sequences before it."""
    column, escapes = 0, ""
    for token in _TOKEN.finditer(part):
        text = token[0]
        if text == "\x08":
            column = max(0, column - 1)
        elif token["final"] == "K":
            start, end = {"1": (0, column + 1), "2": (0, len(cells))}.get(token["parameters"], (column, len(cells)))
            cells[start:end] = " " * (min(end, len(cells)) - start)
        elif text.startswith("\x1b"):
            escapes += text
        else:
            cells += " " * (column - len(cells))
            cells[column : column + 1] = [escapes + text]
            column, escapes = column + 1, ""
    if column:
        cells[column - 1] += escapes
    else:
        cells[:1] = [escapes + (cells[0] if cells else "")]
