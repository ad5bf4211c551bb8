"""Read the text file of holidays that a spec names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path

from pydantic_core import PydanticCustomError

from gpuinfra.diagnostics import Code, Diagnostic, Problem, Span
from gpuinfra.models.hours import MOST_DAYS, is_text_path, parse_days
from gpuinfra.parse.source import LARGEST, Source, decode
from gpuinfra.parse.tree import Mapping, Node, Scalar, Sequence

PLACE = ("lifecycle", "hours", "holidays")
# A line without its comment and surrounding space.
_ENTRY = re.compile(r"^[^\S\n]*([^\s#](?:[^\n#]*[^\s#])?)", re.MULTILINE)


def with_holidays(source: Source, document: Mapping) -> tuple[Mapping, list[Diagnostic]]:
    """Return the document with the file's dates instead of its path, and the file's problems."""
    node = _at(document, PLACE)
    if not isinstance(node, Scalar) or not isinstance(node.value, str) or not is_text_path(node.value):
        return document, []
    days: list[date] = []
    try:
        found = _read(source.span(node.start, node.end), Path(source.name).parent, node.value)
    except Problem as problem:
        return _replaced(document, PLACE, None), list(problem.diagnostics)
    diagnostics = list(_collect(found, days))
    items = tuple(Scalar(node.start, node.end, day.isoformat(), node.text) for day in days)
    return _replaced(document, PLACE, Sequence(node.start, node.end, items) if items else None), diagnostics


def _collect(file: Source, days: list[date]) -> Iterator[Diagnostic]:
    """Add the file's days to the list, and report bad lines."""
    for entry in _ENTRY.finditer(file.text):
        try:
            days += parse_days(entry[1])
        except PydanticCustomError as error:
            context = error.context or {}
            span = file.span(entry.start(1), entry.end(1))
            yield Diagnostic(Code(error.type), context["summary"], span, context["label"], help=context["help"])
        if len(days) > MOST_DAYS:
            return  # the model reports too many days


def _read(place: Span, folder: Path, name: str) -> Source:
    file = folder / name
    try:
        if file.exists() and not file.is_file():
            raise _unreadable(place, file, "it is not a file")
        # In a foreign project, a link could lead to a private file, and errors print lines.
        real = file.resolve()
        if not real.is_relative_to(folder.resolve()):
            outside = "a symbolic link leads out of the spec's folder"
            help_line = "put a copy of the file next to the spec, or list the dates in the spec"
            raise _unreadable(place, file, outside, help_line)
        with real.open("rb") as stream:
            content = stream.read(LARGEST + 1)
    except FileNotFoundError:
        note = f"`{file}` does not exist; the path is relative to the spec's folder"
        raise Problem(Diagnostic(Code.FILE_NOT_FOUND, "no such file", place, note=note)) from None
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: links in a circle, before Python 3.13
        reason = (error.strerror or "") if isinstance(error, OSError) else str(error)
        raise _unreadable(place, file, reason) from None
    return decode(str(file), content.replace(b"\r\n", b"\n").replace(b"\r", b"\n"))


def _unreadable(place: Span, file: Path, reason: str, help_line: str | None = None) -> Problem:
    note = f"`{file}`: {reason}"
    return Problem(Diagnostic(Code.FILE_UNREADABLE, "file cannot be read", place, note=note, help=help_line))


def _at(node: Node | None, path: tuple[str, ...]) -> Node | None:
    for step in path:
        node = node.items.get(step) if isinstance(node, Mapping) else None
    return node


def _replaced(document: Mapping, path: tuple[str, ...], value: Node | None) -> Mapping:
    """Return the document with another value at a path; None removes the key."""
    step, rest = path[0], path[1:]
    inner = document.items[step]
    new = _replaced(inner, rest, value) if rest and isinstance(inner, Mapping) else value
    items = {key: node for key, node in document.items.items() if key != step}
    if new is None:
        return replace(document, items=items, keys={key: document.keys[key] for key in items})
    return replace(document, items={**items, step: new})
