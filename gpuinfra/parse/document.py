"""Edit a YAML file in place: everything else keeps every byte.

Round-trip libraries lose line ends, widths and unusual indentation. This module replaces only changed values.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gpuinfra.diagnostics import Code, Diagnostic, Problem, Span
from gpuinfra.parse.source import Source, decode
from gpuinfra.parse.tree import Mapping, Node, Scalar, Sequence, Value, data, read, read_scalar

# Text that needs no quotes anywhere, not even in a flow collection.
_PLAIN = re.compile(r"[A-Za-z0-9_./~$\\(+](?:[A-Za-z0-9_./~$\\()*+=@;%^ -]|:(?=[^\s,\[\]{}]))*")
_LINE_BREAK = re.compile(r"\r\n|\n|\r")
_ALIAS = re.compile(r"\s*:\s*(\*[^\s,\[\]{}]+)")
_REMARK = re.compile(r"[ \t]+#[^\r\n]*")


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace the text from `start` to before `end`. Offsets count characters."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Document:
    """A file that holds one mapping."""

    source: Source
    root: Mapping
    marked: bool
    """Whether the file starts with a byte order mark."""

    def encode(self) -> bytes:
        return (codecs.BOM_UTF8 if self.marked else b"") + self.source.text.encode("utf-8")

    def value(self, key: str) -> Any:
        """Return the value of a top-level key, or None if it is missing or null."""
        node = self.root.items.get(key)
        return None if node is None else data(node)

    def span(self, node: Node) -> Span:
        return self.source.span(node.start, node.end)

    def key_span(self, key: str) -> Span:
        """Return a key's location, or the start of the file without that key."""
        node = self.root.keys.get(key)
        return self.span(node) if node else self.source.span(0, 0)

    # Changes, as data

    def setting(self, key: str, value: Value) -> tuple[Edit, ...]:
        """Return the edits that set a key; none if it already has the value."""
        node = self.root.items.get(key)
        if node is None:
            return (self._adding(key, value),)
        if isinstance(node, Scalar) and node.value == value and type(node.value) is type(value):
            return ()
        if alias := self._alias(key):
            return (Edit(alias.start(1), alias.end(1), written(value)),)
        if isinstance(node, Scalar) or self.source.text[node.start : node.start + 1] in {"[", "{"}:
            return (self.replacing(node, value),)
        # Replace a block, which starts on its own line, with a value on the key's line.
        colon = self.source.text.index(":", self.root.keys[key].end)
        if "#" in self.source.text[colon : node.start]:
            raise EditError(f"a comment after `{key}` in {self.source.name} would be lost")
        return (Edit(colon + 1, self._visible_end(node), f" {written(value)}"),)

    def replacing(self, node: Node, value: Value) -> Edit:
        """Return the edit that replaces a node's value, with the same quotes."""
        old = self.source.text[node.start : node.end]
        if _has_remark(old):
            raise EditError(f"a comment inside a value in {self.source.name} would be lost")
        text = written(value, old[:1])
        if node.start == node.end and self.source.text[node.start - 1 : node.start] not in {" ", ""}:
            text = f" {text}"
        return Edit(node.start, self._visible_end(node), text)

    def edited(self, edits: Iterable[Edit]) -> Document:
        """Return the document after these edits. Raises EditError if they overlap, or the result is invalid YAML."""
        text, end = [], 0
        for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
            if edit.start < end:
                raise EditError(f"two changes at {self.source.position(edit.start)} of {self.source.name}")
            text += [self.source.text[end : edit.start], edit.text]
            end = edit.end
        content = "".join([*text, self.source.text[end:]]).encode("utf-8", "surrogatepass")
        try:
            # Decoding drops one byte order mark; add one so that it drops nothing else.
            return _document(decode(self.source.name, codecs.BOM_UTF8 + content), marked=self.marked)
        except Problem as problem:
            raise EditError(f"{self.source.name} would be invalid YAML: {problem}") from problem

    def with_values(self, **values: Value) -> Document:
        """Return the document with these top-level keys set, and nothing else changed."""
        document = self
        for key, value in values.items():
            wanted = {**data(document.root), key: value}
            document = document.edited(document.setting(key, value))
            if data(document.root) != wanted:
                raise EditError(f"`{key}` of {self.source.name} cannot be changed in place")
        return document

    def _adding(self, key: str, value: Value) -> Edit:
        text, root = self.source.text, self.root
        if not root.items:
            return Edit(root.end - 1, root.end - 1, f"{written(key)}: {written(value)}")
        last = max(root.items, key=lambda each: root.keys[each].start)
        name = root.keys[last]
        alias = self._alias(last)
        place = alias.end(1) if alias else max(name.end, self._before_break(root.items[last].end))
        entry = f"{written(key, text[name.start])}: {written(value, text[name.start])}"
        line_start = self._line_start(name.start)
        indent = text[line_start : name.start]
        if text[root.start : root.start + 1] == "{":
            return self._adding_to_flow(place, line_start, indent, entry)
        place = self._line_end(place)
        return Edit(place, place, f"{self._line_break(line_start)}{indent}{entry}")

    def _adding_to_flow(self, place: int, line_start: int, indent: str, entry: str) -> Edit:
        text = self.source.text
        comma = re.compile(r"\s*,").match(text, place)
        start = comma.end() if comma else place
        # A comment on the last entry stays with it.
        remark = _REMARK.match(text, start)
        gap = f"{self._line_break(line_start)}{re.sub('[^ ]', ' ', indent)}" if remark or not indent.strip() else " "
        said = f"{'' if comma else ','}{remark[0] if remark else ''}"
        return Edit(start, remark.end() if remark else start, f"{said}{gap}{entry}")

    def _alias(self, key: str) -> re.Match[str] | None:
        """Return the match of `*name` if a key's value is an alias, whose node is further up."""
        name = self.root.keys[key]
        return _ALIAS.match(self.source.text, name.end) if self.root.items[key].start < name.start else None

    def _visible_end(self, node: Node) -> int:
        """Return the end of a node without trailing line breaks."""
        return node.start + len(self.source.text[node.start : node.end].rstrip("\r\n"))

    def _before_break(self, place: int) -> int:
        """Return the end of the previous line if this is the start of a line."""
        found = (ending for ending in ("\r\n", "\n", "\r") if self.source.text.endswith(ending, 0, place))
        return place - len(next(found, ""))

    def _line_start(self, place: int) -> int:
        return place - (self.source.position(place)[1] - 1)

    def _line_end(self, place: int) -> int:
        found = _LINE_BREAK.search(self.source.text, place)
        return found.start() if found else len(self.source.text)

    def _line_break(self, place: int) -> str:
        """Return the line break of the neighbouring lines: a file may mix both kinds."""
        text = self.source.text
        before = list(_LINE_BREAK.finditer(text, 0, place))
        found = _LINE_BREAK.search(text, place) or (before[-1] if before else None)
        return found[0] if found else "\n"


class EditError(ValueError):
    """A change that would affect more than it should."""


def read_document(name: str, content: bytes, *, shows_lines: bool = True) -> Document:
    """Parse a file with one mapping, by the rules of YAML 1.1, like Azure ML Workbench.

    Raises a Problem with every location if the file is something else.
    """
    return _document(decode(name, content, shows_lines=shows_lines), marked=content.startswith(codecs.BOM_UTF8))


def _document(source: Source, *, marked: bool) -> Document:
    reading = read(source, older=True)
    if reading.diagnostics:
        raise Problem(*reading.diagnostics)
    if not reading.documents or _is_empty(reading.documents[0]):
        raise Problem(Diagnostic(Code.EMPTY_FILE, "empty file", source.span(0, 0)))
    first, *others = reading.documents
    if others:
        span = source.span(others[0].start, others[0].end)
        raise Problem(Diagnostic(Code.INVALID_YAML, "invalid YAML", span, "expected one document, found a second one"))
    if not isinstance(first, Mapping):
        span = source.span(first.start, first.end)
        found = "a list" if isinstance(first, Sequence) else "a single value"
        label = f"expected a mapping of keys and values, found {found}"
        raise Problem(Diagnostic(Code.WRONG_TYPE, "wrong type", span, label))
    return Document(source, first, marked)


def _has_remark(text: str) -> bool:
    """Return whether a block scalar's first line, or a flow collection, has a comment."""
    if text[:1] in {"|", ">"}:
        return "#" in text.partition("\n")[0]
    return text[:1] in {"[", "{"} and re.search(r"[ \t]#[^\n]*\n", text) is not None


def _is_empty(node: Node) -> bool:
    return isinstance(node, Scalar) and node.value is None


def written(value: Value, quote: str = "") -> str:
    """Return a value as YAML, with the given quotes, or without quotes if it needs none."""
    if not isinstance(value, str):
        return json.dumps(value)
    if quote == "'" and value.isprintable():
        return "'{}'".format(value.replace("'", "''"))
    if quote != '"' and _PLAIN.fullmatch(value) and not value.endswith(" ") and _is_text(value):
        return value
    return re.sub(r"[^ -~]", _escaped, json.dumps(value, ensure_ascii=False))


def _escaped(found: re.Match[str]) -> str:
    """Return an invisible character or line break as an escape."""
    character = found[0]
    if character.isprintable():
        return character
    return f"\\u{ord(character):04x}" if ord(character) < 0x10000 else f"\\U{ord(character):08x}"


def _is_text(value: str) -> bool:
    """Return whether both versions of YAML read it as text without quotes."""
    return all(read_scalar(value, plain=True, older=older) == (value, None) for older in (True, False))
