"""Load specs from a file's content, and report every problem in one pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from gpuinfra.diagnostics import Code, Diagnostic, Problem, Span
from gpuinfra.models.spec import Spec
from gpuinfra.parse.fields import check_fields
from gpuinfra.parse.holidays import with_holidays
from gpuinfra.parse.rules import check_rules
from gpuinfra.parse.source import Source, decode
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
