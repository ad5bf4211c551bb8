"""The YAML parser's errors in words that say what to do."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpuinfra.diagnostics import Code, Diagnostic

if TYPE_CHECKING:
    import yaml

    from gpuinfra.parse.source import Source

# The parser's own words, what they mean to a person, and the fix.
_WORDS: tuple[tuple[str, str, str | None], ...] = (
    (
        "mapping values are not allowed",
        "a `:` where no key can stand",
        "is the line indented right? a text with `: ` in it goes in quotes",
    ),
    ("could not find expected ':'", "this key is never followed by a `:`", "write `key: value`"),
    ("found unexpected end of stream", "this quote is never closed", "close it on the same line"),
    ("found unexpected document separator", "this quote is never closed", "close it on the same line"),
    ("expected ',' or ']'", "this `[` is never closed", "close it with `]`"),
    ("expected ',' or '}'", "this `{` is never closed", "close it with `}`"),
    ("expected <block end>", "this does not belong to the block above", "indent it like its neighbours"),
    ("expected the node content", "a value is missing before this", None),
    ("expected the document start", "a document has ended before this", "start another with `---`"),
    ("sequence entries are not allowed", "a list cannot start here", "start it on a line of its own"),
    ("found unknown escape character", "no such escape", r"write `\\` for a backslash, or use single quotes"),
    ("expected escape sequence", "an escape that is cut off", None),
    ("cannot start any token", "no value starts with this character", "put the text in quotes"),
    ("found undefined tag handle", "tags are not read", "put the text in quotes"),
    ("found incompatible YAML document", "a version of YAML that is not known", "remove the `%YAML` line"),
)
# Errors whose cause is where the parser began, not where it gave up.
_CAUSED_EARLIER = ("is never closed", "is never followed by a `:`")
_CONFLICT = re.compile(r"^(?:<{7}|={7}|>{7})(?= |\r?$)", re.MULTILINE)


def syntax_error(source: Source, error: yaml.MarkedYAMLError) -> Diagnostic:
    """One diagnostic for what stopped the parser."""
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
            "git left a conflict here",
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
        place, label, help_line = max(0, end - 1), "the file ends here, in the middle of something", None
    return Diagnostic(Code.INVALID_YAML, "invalid YAML", source.span(place, place + 1), label or None, help=help_line)


def _lacks_comma(rest: str, problem: str) -> bool:
    """Whether a bracket is closed after all, and what stands inside is not separated."""
    found = re.match(r"expected ',' or '([\]}])', but got '(<scalar>|:)'", problem)
    return found is not None and found[1] in rest
