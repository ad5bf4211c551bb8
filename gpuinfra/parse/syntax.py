"""Explain the YAML parser's errors, with a fix."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpuinfra.diagnostics import Code, Diagnostic

if TYPE_CHECKING:
    import yaml

    from gpuinfra.parse.source import Source

# The parser's message, what it means, and the fix.
_WORDS: tuple[tuple[str, str, str | None], ...] = (
    (
        "mapping values are not allowed",
        "a key is not allowed here",
        "check the indentation; quote text that contains `: `",
    ),
    ("could not find expected ':'", "this key has no `:`", "write `key: value`"),
    ("found unexpected end of stream", "this quote is never closed", "close it on the same line"),
    ("found unexpected document separator", "this quote is never closed", "close it on the same line"),
    ("expected ',' or ']'", "this `[` is never closed", "close it with `]`"),
    ("expected ',' or '}'", "this `{` is never closed", "close it with `}`"),
    ("expected <block end>", "wrong indentation", "align it with the other entries"),
    ("expected the node content", "a value is missing before this", None),
    ("expected the document start", "the document has already ended", "start another one with `---`"),
    ("sequence entries are not allowed", "a list cannot start here", "start it on a new line"),
    ("found unknown escape character", "unknown escape sequence", r"write `\\` for a backslash, or use single quotes"),
    ("expected escape sequence", "incomplete escape sequence", None),
    ("cannot start any token", "a value cannot start with this character", "put the text in quotes"),
    ("found undefined tag handle", "tags are not supported", "put the text in quotes"),
    ("found incompatible YAML document", "unsupported YAML version", "remove the `%YAML` line"),
)
# Errors whose cause is where the parser started, not where it stopped.
_CAUSED_EARLIER = ("is never closed", "this key has no `:`")
_CONFLICT = re.compile(r"^(?:<{7}|={7}|>{7})(?= |\r?$)", re.MULTILINE)


def syntax_error(source: Source, error: yaml.MarkedYAMLError) -> Diagnostic:
    """Return a diagnostic for the parser's error."""
    mark = error.problem_mark or error.context_mark
    place = mark.index if mark else 0
    if source.text[place : place + 1] == "\t":
        return Diagnostic(
            Code.TAB,
            "tab in YAML",
            source.span(place, place + 1),
            "expected a space, found a tab",
            help="indent with spaces",
        )
    if conflict := _CONFLICT.search(source.text):
        return Diagnostic(
            Code.INVALID_YAML,
            "invalid YAML",
            source.span(*conflict.span()),
            "unresolved git conflict",
            help="keep one side, and remove the three marker lines",
        )
    problem = error.problem or ""
    label, help_line = next(
        ((label, fix) for words, label, fix in _WORDS if words in problem),
        (re.sub(r"\s+", " ", problem), None),
    )
    if _lacks_comma(source.text[place:], problem):
        label, help_line = "a `,` is missing before this", "separate the entries with commas"
    elif label.endswith(_CAUSED_EARLIER) and error.context_mark:
        place = error.context_mark.index
    elif place >= (end := len(source.text.rstrip())):
        place, label, help_line = max(0, end - 1), "unexpected end of the file", None
    return Diagnostic(Code.INVALID_YAML, "invalid YAML", source.span(place, place + 1), label or None, help=help_line)


def _lacks_comma(rest: str, problem: str) -> bool:
    """Return whether the bracket is closed later, so that only a comma is missing."""
    found = re.match(r"expected ',' or '([\]}])', but got '(<scalar>|:)'", problem)
    return found is not None and found[1] in rest
