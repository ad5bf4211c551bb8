"""Typed values of a mapping. A value of another type gets a diagnostic and counts as missing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuinfra.diagnostics import Code, Diagnostic, Severity
from gpuinfra.parse.source import Source
from gpuinfra.parse.tree import Mapping, Node, Scalar, Sequence, data

NOTHING = Mapping(0, 0, {}, {})


class Fields:
    """The keys of one mapping. Null counts as missing: these files use it for "default"."""

    def __init__(self, source: Source, mapping: Mapping, diagnostics: list[Diagnostic]) -> None:
        self.source, self.mapping, self.diagnostics = source, mapping, diagnostics

    def text(self, key: str) -> str | None:
        """Return text; numbers as written."""
        node = self._node(key)
        if node is None:
            return None
        if isinstance(node, Scalar) and not isinstance(node.value, bool):
            return node.text
        self._complain(key, node, "text")
        return None

    def truth(self, key: str, *, default: bool) -> bool:
        """Return a boolean."""
        node = self._node(key)
        if node is None:
            return default
        if isinstance(node, Scalar) and isinstance(node.value, bool):
            return node.value
        self._complain(key, node, "`true` or `false`")
        return default

    def whole(self, key: str) -> int | None:
        """Return an integer."""
        node = self._node(key)
        if node is None:
            return None
        if isinstance(node, Scalar) and isinstance(node.value, int) and not isinstance(node.value, bool):
            return node.value
        self._complain(key, node, "a whole number")
        return None

    def texts(self, key: str) -> tuple[str, ...] | None:
        """Return a list of texts."""
        node = self._node(key)
        if node is None:
            return None
        if isinstance(node, Sequence) and all(isinstance(item, Scalar) for item in node.items):
            return tuple(item.text for item in node.items if isinstance(item, Scalar) and item.value is not None)
        self._complain(key, node, "a list of texts")
        return None

    def variables(self, key: str) -> dict[str, str]:
        """Return a mapping of names to texts."""
        node = self._node(key)
        if node is None:
            return {}
        if isinstance(node, Mapping) and all(isinstance(item, Scalar) for item in node.items.values()):
            found = {name: item for name, item in node.items.items() if isinstance(item, Scalar)}
            return {name: item.text for name, item in found.items() if item.value is not None}
        self._complain(key, node, "a mapping of names to texts")
        return {}

    def below(self, key: str) -> Fields:
        """Return the fields of a nested mapping; empty if it is missing."""
        node = self._node(key)
        if node is not None and not isinstance(node, Mapping):
            self._complain(key, node, "a mapping")
        return Fields(self.source, node if isinstance(node, Mapping) else NOTHING, self.diagnostics)

    def says(self, key: str) -> bool:
        """Return whether the key has a value."""
        return self._node(key) is not None

    def node(self, key: str) -> Node:
        """Return the value's node, the key's if the value is empty, or the mapping's without the key."""
        node = self.mapping.items.get(key, self.mapping)
        return self.mapping.keys[key] if node.start == node.end and key in self.mapping.keys else node

    def others(self, known: frozenset[str]) -> Iterator[Scalar]:
        """Return the keys that are not among these."""
        return (key for name, key in self.mapping.keys.items() if name not in known)

    def _node(self, key: str) -> Node | None:
        node = self.mapping.items.get(key)
        return None if node is None or (isinstance(node, Scalar) and node.value is None) else node

    def _complain(self, key: str, node: Node, expected: str) -> None:
        span = self.source.span(node.start, node.end)
        label = f"expected {expected}, found {_found(data(node))}"
        self.diagnostics.append(Diagnostic(Code.WRONG_TYPE, "wrong type", span, label, help=_help(key, node)))


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


def has_errors(diagnostics: list[Diagnostic]) -> bool:
    """Return whether any diagnostic is an error."""
    return any(diagnostic.severity is Severity.ERROR for diagnostic in diagnostics)
