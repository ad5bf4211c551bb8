"""Load specs from a file's content, check each field, and report every problem in one pass."""

import json
import re
import types
from collections.abc import Iterator
from collections.abc import Mapping as PlainMapping
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from gpuinfra.diagnostics import Code, Diagnostic, Problem, Span, nearest
from gpuinfra.models.base import Model
from gpuinfra.models.hours import MAX_DAYS, is_text_path, parse_days
from gpuinfra.models.job import COMMAND_KINDS
from gpuinfra.models.spec import Spec
from gpuinfra.parse.rules import check_rules
from gpuinfra.parse.source import MAX_BYTES, SECRET_NAME, Source, decode
from gpuinfra.parse.tree import Mapping, Node, Scalar, Sequence, data, node_at, read

# pydantic's error types, and the expected type. `test_fields.py` checks that the table is complete.
_EXPECTED = {
    "string_type": "text",
    "bool_type": "`true` or `false`",
    "int_type": "a whole number",
    "float_type": "a number",
    "model_type": "a mapping",
    "dict_type": "a mapping",
    "tuple_type": "a list",
}
_BOUNDS = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than_equal": ("le", "at most"),
}
_CODES = {code.value for code in Code}


def check_fields(source: Source, document: Mapping) -> tuple[Spec | None, list[Diagnostic]]:
    """Return the document's spec, or its problems."""
    try:
        return Spec.model_validate(data(document)), []
    except ValidationError as error:
        found = error.errors(include_url=False)
    return None, [diagnostic for detail in found for diagnostic in _diagnose(source, document, detail)]


def _diagnose(source: Source, document: Mapping, detail: ErrorDetails) -> Iterator[Diagnostic]:
    kind, path = detail["type"], tuple(step for step in detail["loc"] if step not in COMMAND_KINDS)
    node, key = _find(document, path)
    context: dict[str, Any] = detail.get("ctx", {})
    if isinstance(node, Scalar) and (node.doubtful or node.value is None):
        return  # already reported
    if kind == "extra_forbidden":
        yield _unknown_key(source, path, key)
    elif kind == "missing":
        if path == ("regions",):
            return  # a rule reports it, together with `region`
        yield _missing_key(source, document, path)
    elif kind in _CODES:
        place = key if path[-1] == "[key]" else node
        span = source.span(place.start, place.end)
        yield Diagnostic(Code(kind), context["summary"], span, context["label"] or None, help=context["help"])
    elif kind in _EXPECTED:
        label = f"expected {_EXPECTED[kind]}, found {_found(node)}"
        span = source.span(node.start, node.end)
        yield Diagnostic(Code.WRONG_TYPE, "wrong type", span, label, help=_example(path, node))
    elif kind in _BOUNDS:
        bound, words = _BOUNDS[kind]
        span = source.span(node.start, node.end)
        label, info = f"expected {words} {context[bound]:g}", _field(tuple(map(str, path)))
        yield Diagnostic(Code.OUT_OF_RANGE, "value out of range", span, label, info.description if info else None)
    elif kind == "too_short":
        # Also raised for a list whose items were all refused, each with its own diagnostic.
        if isinstance(node, Sequence) and not node.items:
            span = source.span(node.start, node.end)
            yield Diagnostic(
                Code.EMPTY_VALUE, "empty list", span, "expected at least one entry", help=_example(path, node)
            )
    else:
        raise AssertionError(f"no text for pydantic's {kind}")


def _find(document: Mapping, path: tuple[int | str, ...]) -> tuple[Node, Scalar]:
    """Return the node at a path, or the deepest existing one, and its key."""
    node: Node = document
    key = Scalar(document.start, document.start, "", "")
    for step in path:
        if isinstance(node, Mapping) and step in node.items:
            key, node = node.keys[str(step)], node.items[str(step)]
        elif isinstance(node, Sequence) and isinstance(step, int):
            node = node.items[step]
    return node, key


def _unknown_key(source: Source, path: tuple[int | str, ...], key: Scalar) -> Diagnostic:
    span, name = source.span(key.start, key.end), str(path[-1])
    if re.search(rf"{SECRET_NAME}\Z", name):
        help_line = "remove it: gpuinfra uses SSH keys and your Azure login"
        return Diagnostic(
            Code.SECRET_IN_SPEC,
            "secret in a spec",
            span,
            "specs are in git, where others can read them",
            help=help_line,
        )
    known = keys_at(tuple(step for step in path[:-1] if isinstance(step, str)))
    meant = nearest(name, known)
    places = sorted((place for place in _all_keys() if place[-1] == name), key=len)
    if meant:
        help_line = f"did you mean `{meant}`?"
    elif places and all(len(places[0]) < len(other) for other in places[1:]):
        parent = ".".join(places[0][:-1])
        help_line = f"`{name}` belongs under `{parent}:`" if parent else f"`{name}` belongs at the top level"
    else:
        help_line = f"known keys: {', '.join(known)}"
    return Diagnostic(Code.UNKNOWN_KEY, "unknown key", span, "not a spec field", help=help_line)


def _missing_key(source: Source, document: Mapping, path: tuple[int | str, ...]) -> Diagnostic:
    name, (_, key) = str(path[-1]), _find(document, path[:-1])
    span = source.span(key.start, key.end)
    label = f"`{key.text}` needs the key `{name}`" if key.text else f"the key `{name}` is missing"
    return Diagnostic(Code.MISSING_KEY, "missing key", span, label, help=_example(path, None))


def _found(node: Node) -> str:
    match node:
        case Mapping():
            return "a mapping"
        case Sequence():
            return "a list"
        case Scalar(value=bool()):
            return f"the boolean `{node.text}`"
        case Scalar(value=int() | float()):
            return f"the number {node.text}" if len(node.text) <= 20 else "a number"
    return "text"


def _example(path: tuple[int | str, ...], node: Node | None) -> str | None:
    field = next((step for step in reversed(path) if isinstance(step, str) and step != "[key]"), None)
    names = tuple(step for step in path if isinstance(step, str))
    if names in {("regions",), ("sizes",)} and isinstance(node, Sequence):
        return f"for several, use `{field}:`"
    if path and isinstance(path[-1], int):
        return "put text in quotes" if isinstance(node, Scalar) else None
    if names[:-1] in {("tags",), ("job", "env")} and isinstance(node, Scalar):
        return f'write `{field}: "{node.text}"`'
    info = _field(names)
    if info is None or not info.examples:
        return None
    return f"for example `{field}: {flow(info.examples[0])}`"


def flow(value: Any) -> str:
    """Return a value as one line of YAML."""
    match value:
        case dict():
            return f"{{{', '.join(f'{key}: {flow(item)}' for key, item in value.items())}}}"
        case list() | tuple():
            return f"[{', '.join(map(flow, value))}]"
        case str() if re.search(r"^[0-9]+\Z| [0-9]{2}:", value):
            return json.dumps(value)
        case str():
            return value
    return json.dumps(value)


def keys_at(path: tuple[str, ...]) -> tuple[str, ...]:
    """Return the keys that are allowed at this path of a spec."""
    return tuple(place[-1] for place in _all_keys() if place[:-1] == path)


def _all_keys() -> Iterator[tuple[str, ...]]:
    for place in _model_keys(Spec, ()):
        if place in {("regions",), ("sizes",)}:
            yield (place[0].removesuffix("s"),)  # the short form that `parse.spec` turns into a list
        yield place


def _model_keys(model: type[Model], path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for info in model.model_fields.values():
        place = (*path, info.alias or "")
        yield place
        if inner := _inner_model(info.annotation):
            yield from _model_keys(inner, place)


def _field(path: tuple[str, ...]) -> Any:
    model: type[Model] | None = Spec
    info = None
    for step in path:
        fields = model.model_fields.values() if model else ()
        info = next((field for field in fields if field.alias == step), None)
        model = _inner_model(info.annotation) if info else None
    return info


def _inner_model(annotation: Any) -> type[Model] | None:
    if get_origin(annotation) in {Union, types.UnionType}:
        return next((found for part in get_args(annotation) if (found := _inner_model(part))), None)
    return annotation if isinstance(annotation, type) and issubclass(annotation, Model) else None


@dataclass(frozen=True)
class LocatedSpec:
    """A spec, and the location of its name."""

    spec: Spec
    span: Span
    places: PlainMapping[str, Span] = field(default_factory=dict)
    """The locations of the keys in `lifecycle`."""


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
        help_line = "`gpuinfra init` writes a starter"
        loaded.diagnostics.append(Diagnostic(Code.EMPTY_FILE, "no spec in the file", span, help=help_line))
    for node in documents:
        found = Loaded()
        _load_document(source, node, found)
        place = source.span(node.start, node.end)
        inside = [each for each in loaded.diagnostics if each.span and place.line <= each.span.line <= place.end_line]
        if not any(each in inside for each in reading.diagnostics):
            loaded.specs += found.specs  # ambiguous values and duplicate keys make a spec unusable, but not the others
        loaded.diagnostics = [each for each in loaded.diagnostics if each not in inside]
        loaded.diagnostics += [replace(each, machine=_name_of(node)) for each in (*inside, *found.diagnostics)]
    loaded.diagnostics.sort(key=_place)
    return loaded


def _name_of(node: Node) -> str | None:
    name = node.items.get("name") if isinstance(node, Mapping) else None
    return name.text if isinstance(name, Scalar) and name.text else None


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
        own = node.items.get("lifecycle")
        keys = own.keys.items() if isinstance(own, Mapping) else ()
        places = {key: source.span(place.start, place.end) for key, place in keys}
        loaded.specs.append(LocatedSpec(spec, source.span(name.start, name.end), places))


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
    """Report what JSON Schema cannot see: empty values, secrets with a value, and tags that differ only in case."""
    yield from _check_empty(source, document)
    env, secrets = node_at(document, "job", "env"), node_at(document, "job", "secrets")
    for node in secrets.items if isinstance(secrets, Sequence) else ():
        if isinstance(node, Scalar) and isinstance(env, Mapping) and node.value in env.items:
            span = source.span(node.start, node.end)
            label = f"`{node.text}` also has a value in `env`"
            yield Diagnostic(Code.DUPLICATE_KEY, "duplicate key", span, label, help="keep one of them")
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
    node = node_at(document, *PLACE)
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


def _replaced(document: Mapping, path: tuple[str, ...], value: Node | None) -> Mapping:
    """Return the document with another value at a path; None removes the key."""
    step, rest = path[0], path[1:]
    inner = document.items[step]
    new = _replaced(inner, rest, value) if rest and isinstance(inner, Mapping) else value
    items = {key: node for key, node in document.items.items() if key != step}
    if new is None:
        return replace(document, items=items, keys={key: document.keys[key] for key in items})
    return replace(document, items={**items, step: new})
