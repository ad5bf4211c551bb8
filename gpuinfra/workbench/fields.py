"""Typed values of a mapping. A value of another type gets a diagnostic and counts as missing."""

from collections.abc import Callable
from typing import Any, Self, TypeVar

from gpuinfra.diagnostics import Code, Diagnostic
from gpuinfra.parse.source import Source
from gpuinfra.parse.tree import Mapping, Node, Scalar, Sequence, data

NOTHING = Mapping(0, 0, {}, {})

T = TypeVar("T")


class Fields:
    """The keys of one mapping. Null counts as missing: these files use it for "default"."""

    def __init__(self, source: Source, mapping: Mapping, diagnostics: list[Diagnostic]) -> None:
        self.source, self.mapping, self.diagnostics = source, mapping, diagnostics

    def text(self, key: str) -> str | None:
        """Return text; numbers as written."""
        return self._typed(key, None, _text, "text")

    def boolean(self, key: str, *, default: bool) -> bool:
        return self._typed(key, default, _boolean, "`true` or `false`")

    def texts(self, key: str) -> tuple[str, ...]:
        return self._typed(key, (), _texts, "a list of texts")

    def variables(self, key: str) -> dict[str, str]:
        """Return a mapping of names to texts."""
        return self._typed(key, {}, _variables, "a mapping of names to texts")

    def section(self, key: str) -> Self:
        """Return the fields of a nested mapping; empty if it is missing."""
        mapping = self._typed(key, NOTHING, lambda node: node if isinstance(node, Mapping) else None, "a mapping")
        return type(self)(self.source, mapping, self.diagnostics)

    def has(self, key: str) -> bool:
        """Return whether the key has a value."""
        return self._node(key) is not None

    def node(self, key: str) -> Node:
        """Return the value's node, the key's if the value is empty, or the mapping's without the key."""
        node = self.mapping.items.get(key, self.mapping)
        return self.mapping.keys[key] if node.start == node.end and key in self.mapping.keys else node

    def complain(self, node: Node, code: Code, summary: str, label: str, help_line: str | None = None) -> None:
        """Add a diagnostic at a node."""
        span = self.source.span(node.start, node.end)
        self.diagnostics.append(Diagnostic(code, summary, span, label, help=help_line))

    def _node(self, key: str) -> Node | None:
        node = self.mapping.items.get(key)
        return None if node is None or (isinstance(node, Scalar) and node.value is None) else node

    def _typed(self, key: str, default: T, read: Callable[[Node], T | None], expected: str) -> T:
        """Return what `read` finds, or the default if the key is missing or, with a diagnostic, of another type."""
        node = self._node(key)
        if node is None:
            return default
        found = read(node)
        if found is None:
            label = f"expected {expected}, found {_found(data(node))}"
            self.complain(node, Code.WRONG_TYPE, "wrong type", label, _help(key, node))
            return default
        return found


def _text(node: Node) -> str | None:
    return node.text if isinstance(node, Scalar) and not isinstance(node.value, bool) else None


def _boolean(node: Node) -> bool | None:
    return node.value if isinstance(node, Scalar) and isinstance(node.value, bool) else None


def _texts(node: Node) -> tuple[str, ...] | None:
    if not isinstance(node, Sequence) or not all(isinstance(item, Scalar) for item in node.items):
        return None
    return tuple(item.text for item in node.items if isinstance(item, Scalar) and item.value is not None)


def _variables(node: Node) -> dict[str, str] | None:
    if not isinstance(node, Mapping) or not all(isinstance(item, Scalar) for item in node.items.values()):
        return None
    found = {name: item for name, item in node.items.items() if isinstance(item, Scalar)}
    return {name: item.text for name, item in found.items() if item.value is not None}


def _found(value: Any) -> str:
    match value:
        case tuple():
            return "a list"
        case dict():
            return "a mapping"
        case bool():
            return "a boolean"
        case str():
            return "text"
    return "a number"


def _help(key: str, node: Node) -> str | None:
    if key == "address" and isinstance(node, Sequence):
        return "write the machine's address here; a placeholder in brackets is a list to YAML"
    return None
