"""A file's text and locations in it."""

import codecs
import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

from gpuinfra.diagnostics import Code, Diagnostic, Problem, Span
from gpuinfra.parse.redaction import PRIVATE_KEY, lines_of_secrets, masked

# Enough for a hundred long specs. The YAML parser needs seconds for more.
MAX_BYTES = 256 * 1024

# All characters that YAML does not allow.
_NOT_ALLOWED = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Source:
    """Named text. Offsets count characters from 0."""

    name: str
    text: str
    shows_lines: bool = True
    """Whether diagnostics may show its lines."""

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(found.end() for found in re.finditer(r"\r\n|\n|\r", self.text))]

    def position(self, offset: int) -> tuple[int, int]:
        """Return line and column, from 1."""
        line = bisect_right(self._line_starts, offset)
        return line, offset - self._line_starts[line - 1] + 1

    def span(self, start: int, end: int) -> Span:
        """Return the span from `start` to before `end`, with its first line."""
        start = min(start, len(self.text))
        line, column = self.position(start)
        end_line, end_column = self.position(min(max(end, start), len(self.text)))
        return Span(self.name, line, column, end_line, end_column, self._showable(line))

    def _showable(self, number: int) -> str:
        """Return a line without secrets, safe for CI logs."""
        return self._showable_lines[number - 1] if self.shows_lines else ""

    @cached_property
    def _showable_lines(self) -> list[str]:
        """The lines without secrets. Whether a line is hidden depends on the lines above."""
        ends = [*self._line_starts[1:], len(self.text)]
        lines = [self.text[start:end].rstrip("\r\n") for start, end in zip(self._line_starts, ends, strict=True)]
        hidden = {*lines_of_secrets(lines)}
        for secret in PRIVATE_KEY.finditer(self.text):
            hidden |= {*range(self.position(secret.start())[0] - 1, self.position(secret.end() - 1)[0])}
        return ["" if number in hidden else masked(line) for number, line in enumerate(lines)]


def decode(name: str, data: bytes, *, shows_lines: bool = True) -> Source:
    """Decode a file, without its byte order mark. Raises a Problem if it cannot be YAML text."""
    if len(data) > MAX_BYTES:
        raise _unreadable(
            Diagnostic(
                Code.FILE_TOO_LARGE,
                "file too large",
                Span(name, 1, 1, 1, 1, ""),
                note=f"the limit is {MAX_BYTES // 1024} KiB",
                help="split it into several files; commands accept a folder",
            )
        )
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise _unreadable(
            Diagnostic(
                Code.NOT_UTF8,
                "not UTF-8 text",
                Span(name, 1, 1, 1, 1, ""),
                note="the file is UTF-16",
                help="save it as UTF-8",
            )
        )
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        source = Source(name, data.decode("utf-8"), shows_lines)
    except UnicodeDecodeError as error:
        before = Source(name, data[: error.start].decode("utf-8"), shows_lines)
        raise _unreadable(
            Diagnostic(
                Code.NOT_UTF8,
                "not UTF-8 text",
                before.span(len(before.text), len(before.text)),
                label=f"byte 0x{data[error.start]:02X} is not UTF-8",
                help="save it as UTF-8",
            )
        ) from None
    if found := _NOT_ALLOWED.search(source.text):
        raise _unreadable(
            Diagnostic(
                Code.BAD_CHARACTER,
                "character not allowed",
                source.span(found.start(), found.end()),
                label=f"U+{ord(found.group()):04X} is not allowed in YAML",
                help="remove it, or write it as an escape in double quotes",
            )
        )
    return source


def _unreadable(diagnostic: Diagnostic) -> Problem:
    return Problem(diagnostic)
