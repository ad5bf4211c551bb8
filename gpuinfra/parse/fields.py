"""Check each field of a document against the model, with one diagnostic per field."""

import json
import re
import types
from collections.abc import Iterator
from typing import Any, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gpuinfra.diagnostics import Code, Diagnostic
from gpuinfra.models.base import Model
from gpuinfra.models.spec import Spec
from gpuinfra.parse.redaction import SECRET_NAME
from gpuinfra.parse.source import Source
from gpuinfra.parse.tree import Mapping, Node, Scalar, Sequence, data
from gpuinfra.suggest import nearest

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
    kind, path = detail["type"], detail["loc"]
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
    places = [place for place in _all_keys() if place[-1] == name]
    if meant:
        help_line = f"did you mean `{meant}`?"
    elif len(places) == 1:
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
    if names[:1] == ("tags",) and len(names) == 2 and isinstance(node, Scalar):
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
    for field in model.model_fields.values():
        place = (*path, field.alias or "")
        yield place
        if inner := _inner_model(field.annotation):
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
