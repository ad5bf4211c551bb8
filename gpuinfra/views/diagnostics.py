"""Diagnostics as text with an excerpt, and as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any

from gpuinfra.views.terminal import complete, counted, harmless, messages

if TYPE_CHECKING:
    from rich.text import Text

    from gpuinfra.diagnostics import Diagnostic, Span

# Longer source lines are shortened around the problem.
MAX_WIDTH = 100
MAX_SHOWN = 200


def show(diagnostics: Iterable[Diagnostic], *, names: bool = False) -> None:
    """Print the first diagnostics on standard error, separated by blank lines, and how many more there are."""
    console = messages()
    left = iter(diagnostics)
    for number, diagnostic in enumerate(islice(left, MAX_SHOWN)):
        if number:
            console.print()
        console.print(render(diagnostic, names=names))
    if more := sum(1 for _ in left):
        console.print(f"\n… and {counted(more, 'more problem')}")


def render(diagnostic: Diagnostic, *, names: bool = False) -> Text:
    """Return summary, location, excerpt, note and help as text; with `names` also the machine's name."""
    from rich.text import Text

    style = "bold red" if diagnostic.severity == "error" else "bold yellow"
    text = Text.assemble((diagnostic.severity.value, style), (f": {harmless(diagnostic.summary)}", "bold"))
    span, gutter = diagnostic.span, " " * 3
    if span:
        gutter = " " * (len(str(span.line)) + 2)
        text.append(f"\n{gutter[1:]}--> ", "blue")
        text.append(f"{harmless(span.file)}:{span.line}:{span.column}")
        if names and diagnostic.machine:
            text.append(f", machine {harmless(diagnostic.machine)}")
    if span and span.text:
        _append_excerpt(text, span, gutter, diagnostic.label, style)
    elif diagnostic.label:
        text.append(f"\n{gutter}= ", "blue").append(f"note: {harmless(diagnostic.label)}")
    if diagnostic.note:
        first, *rest = diagnostic.note.splitlines() or [""]
        text.append(f"\n{gutter}= ", "blue").append(f"note: {harmless(first)}")
        for line in rest:  # a table; indented, so that its lines do not look like gpuinfra's own
            text.append(f"\n{gutter}|   ", "blue").append(harmless(line))
    if diagnostic.help:
        text.append("\nhelp", "bold cyan").append(f": {harmless(diagnostic.help)}")
    return text


def _append_excerpt(text: Text, span: Span, gutter: str, label: str | None, style: str) -> None:
    from rich.cells import cell_len

    start = span.column - 1
    end = span.end_column - 1 if span.end_line == span.line else len(span.text)
    before, marked, after = span.text[:start], span.text[start:end], span.text[end:]
    if len(span.text) > MAX_WIDTH:
        before = f"…{before[-30:]}" if len(before) > 31 else before
        marked = f"{marked[:60]}…" if len(marked) > 61 else marked
        after = f"{after[:20]}…" if len(after) > 21 else after
    before, marked, after = harmless(before), harmless(marked), harmless(after)
    text.append(f"\n{gutter}|\n {span.line} | ", "blue").append(f"{before}{marked}{after}".rstrip())
    text.append(f"\n{gutter}| ", "blue").append(" " * cell_len(before))
    text.append("^" * max(1, cell_len(marked.rstrip())), style)
    if label:
        text.append(f" {harmless(label)}", style)


def as_payload(diagnostics: Iterable[Diagnostic]) -> dict[str, Any]:
    """Return the JSON key `diagnostics`, or nothing without problems."""
    found = [as_json(diagnostic) for diagnostic in diagnostics]
    return {"diagnostics": found} if found else {}


def as_json(diagnostic: Diagnostic) -> dict[str, Any]:
    """Return a diagnostic as a JSON object; absent fields are omitted."""
    span = diagnostic.span
    place = (
        {
            "file": span.file,
            "line": span.line,
            "column": span.column,
            "endLine": span.end_line,
            "endColumn": span.end_column,
        }
        if span
        else {}
    )
    words = {"machine": diagnostic.machine, "label": diagnostic.label, "note": diagnostic.note, "help": diagnostic.help}
    return {
        "severity": diagnostic.severity.value,
        "code": diagnostic.code.value,
        "summary": diagnostic.summary,
        **place,
        **{key: complete(value) for key, value in words.items() if value},
    }
