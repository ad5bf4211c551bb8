"""Load specs from a file's content, and report every problem in one pass."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path

from pydantic_core import PydanticCustomError

from gpuinfra.diagnostics import Code, Diagnostic, Problem, Span
from gpuinfra.models.hours import MAX_DAYS, is_text_path, parse_days
from gpuinfra.models.spec import Spec
from gpuinfra.parse.fields import check_fields
from gpuinfra.parse.rules import check_rules
from gpuinfra.parse.source import MAX_BYTES, Source, decode
from gpuinfra.parse.tree import Mapping, Node, Scalar, Sequence, read


@dataclass(frozen=True)
class LocatedSpec:
    """A spec, and the location of its name."""

    spec: Spec
    span: Span


@dataclass
class Loaded:
    """Loaded specs and problems. Use the specs only without diagnostics."""

    specs: list[LocatedSpec] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)


def load_bytes(name: str, content: bytes) -> Loaded:
    """Return the specs of a file, one per YAML document."""
    try:
        source = decode(name, content)
    except Problem as problem:
        return Loaded(diagnostics=list(problem.diagnostics))
    reading = read(source)
    loaded = Loaded(diagnostics=list(reading.diagnostics))
    documents = [node for node in reading.documents if not _is_empty(node)]
    if not documents and not loaded.diagnostics:
        span = source.span(0, 0)
        loaded.diagnostics.append(
            Diagnostic(
                Code.EMPTY_FILE,
                "no spec in the file",
                span,
                help="`gpuinfra init` writes a starter",
            )
        )
    for node in documents:
        _load_document(source, node, loaded)
    if reading.diagnostics:
        loaded.specs.clear()  # ambiguous values and duplicate keys make all specs unusable
    loaded.diagnostics.sort(key=_place)
    return loaded


def _load_document(source: Source, node: Node, loaded: Loaded) -> None:
    if not isinstance(node, Mapping):
        span = source.span(node.start, node.end)
        label = "expected a mapping of keys and values"
        loaded.diagnostics.append(
            Diagnostic(Code.WRONG_TYPE, "wrong type", span, label, help="start with `apiVersion: gpuinfra/v1`")
        )
        return
    whole, found = with_holidays(source, _with_long_forms(node))
    found += [*_check_text(source, node), *check_rules(source, node)]
    spec, problems = check_fields(source, whole)
    loaded.diagnostics += found + problems
    if spec is not None and not found:
        name = node.items["name"]
        loaded.specs.append(LocatedSpec(spec, source.span(name.start, name.end)))


def _is_empty(node: Node) -> bool:
    return isinstance(node, Scalar) and node.value is None and not node.doubtful


def _with_long_forms(document: Mapping) -> Mapping:
    """Expand `region: x` to `regions: [x]`, likewise size, and `gpu: x` to `gpu: {model: x}`.

    If both `region` and `regions` are present, keep the list; a rule reports it.
    """
    items, keys = dict(document.items), dict(document.keys)
    for short, full in (("region", "regions"), ("size", "sizes")):
        if short in items:
            node, key = items.pop(short), keys.pop(short)
            items.setdefault(full, Sequence(node.start, node.end, (node,)))
            keys.setdefault(full, key)
    gpu = items.get("gpu")
    if isinstance(gpu, Scalar) and isinstance(gpu.value, str):
        items["gpu"] = Mapping(gpu.start, gpu.end, {"model": gpu}, {"model": gpu})
    return replace(document, items=items, keys=keys)


def _check_text(source: Source, document: Mapping) -> Iterator[Diagnostic]:
    """Report what JSON Schema cannot see: empty values, and tags that differ only in case."""
    yield from _check_empty(source, document)
    tags = document.items.get("tags")
    seen: dict[str, str] = {}
    for name, key in tags.keys.items() if isinstance(tags, Mapping) else ():
        first = seen.setdefault(name.casefold(), name)
        if first != name:
            span = source.span(key.start, key.end)
            label = f"Azure ignores case, so it equals `{first}`"
            yield Diagnostic(Code.DUPLICATE_KEY, "duplicate key", span, label, help="keep one of them")


def _check_empty(source: Source, node: Node, key: Scalar | None = None) -> Iterator[Diagnostic]:
    match node:
        case Mapping():
            for name, value in node.items.items():
                yield from _check_empty(source, value, node.keys[name])
        case Sequence():
            for item in node.items:
                yield from _check_empty(source, item)
        case Scalar(value=None, doubtful=False):
            # Point at the key of an empty value.
            place = key if key and node.start == node.end else node
            span = source.span(place.start, place.end)
            help_line = "add a value, or remove the key to use the default"
            yield Diagnostic(Code.EMPTY_VALUE, "empty value", span, "it has no value", help=help_line)


def _place(diagnostic: Diagnostic) -> tuple[int, int]:
    return (diagnostic.span.line, diagnostic.span.column) if diagnostic.span else (0, 0)


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
        if len(days) > MAX_DAYS:
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
            content = stream.read(MAX_BYTES + 1)
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
