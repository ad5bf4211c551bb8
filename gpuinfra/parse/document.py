"""A YAML file that is edited in place: what is not changed keeps every byte.

Loading a file and writing it again, as round-trip libraries do, loses line ends, widths and odd indentation. Here the
places that reading found are cut out of the text and filled anew; the rest is never touched.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gpuinfra.diagnostics import Code, Diagnostic, Problem, Span
from gpuinfra.parse.scalars import Value, read_scalar
from gpuinfra.parse.source import Source, decode
from gpuinfra.parse.tree import Mapping, Node, Scalar, Sequence, data, read

# What a plain text can be made of and stand anywhere, in a flow collection too; all else is quoted.
_PLAIN = re.compile(r"[A-Za-z0-9_./~$\\(+](?:[A-Za-z0-9_./~$\\()*+=@;%^ -]|:(?=[^\s,\[\]{}]))*")
_LINE_BREAK = re.compile(r"\r\n|\n|\r")
_ALIAS = re.compile(r"\s*:\s*(\*[^\s,\[\]{}]+)")
_REMARK = re.compile(r"[ \t]+#[^\r\n]*")


@dataclass(frozen=True, slots=True)
class Edit:
    """Text from `start` to before `end` is replaced. Offsets are characters of the source."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Document:
    """A file that holds one mapping."""

    source: Source
    root: Mapping
    marked: bool
    """Whether the file begins with a byte order mark."""

    def encode(self) -> bytes:
        """The file's bytes."""
        return (codecs.BOM_UTF8 if self.marked else b"") + self.source.text.encode("utf-8")

    def value(self, key: str) -> Any:
        """The plain value of a top-level key; None where it is missing or null."""
        node = self.root.items.get(key)
        return None if node is None else data(node)

    def span(self, node: Node) -> Span:
        """Where something stands."""
        return self.source.span(node.start, node.end)

    def key_span(self, key: str) -> Span:
        """Where a key stands; the file's beginning where it does not."""
        node = self.root.keys.get(key)
        return self.span(node) if node else self.source.span(0, 0)

    # Changes, as data

    def setting(self, key: str, value: Value) -> tuple[Edit, ...]:
        """What makes `value` the key's value: nothing where it is that already."""
        node = self.root.items.get(key)
        if node is None:
            return (self._adding(key, value),)
        if isinstance(node, Scalar) and node.value == value and type(node.value) is type(value):
            return ()
        if alias := self._alias(key):
            return (Edit(alias.start(1), alias.end(1), written(value)),)
        if isinstance(node, Scalar) or self.source.text[node.start : node.start + 1] in {"[", "{"}:
            return (self.replacing(node, value),)
        # A block begins on a line of its own; its new value stands beside the key.
        colon = self.source.text.index(":", self.root.keys[key].end)
        if "#" in self.source.text[colon : node.start]:
            raise EditError(f"a comment behind `{key}` of {self.source.name} would be lost")
        return (Edit(colon + 1, self._visible_end(node), f" {written(value)}"),)

    def replacing(self, node: Node, value: Value) -> Edit:
        """What puts a value in a node's place, quoted as it was."""
        old = self.source.text[node.start : node.end]
        if _has_remark(old):
            raise EditError(f"a comment inside a value of {self.source.name} would be lost")
        text = written(value, old[:1])
        if node.start == node.end and self.source.text[node.start - 1 : node.start] not in {" ", ""}:
            text = f" {text}"
        return Edit(node.start, self._visible_end(node), text)

    def edited(self, edits: Iterable[Edit]) -> Document:
        """The document after all of these; they must not overlap. What is no YAML any more is refused."""
        text, end = [], 0
        for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
            if edit.start < end:
                raise EditError(f"two changes at {self.source.position(edit.start)} of {self.source.name}")
            text += [self.source.text[end : edit.start], edit.text]
            end = edit.end
        content = "".join([*text, self.source.text[end:]]).encode("utf-8", "surrogatepass")
        try:
            # The mark is what decoding drops, whether the file has one or not.
            return _document(decode(self.source.name, codecs.BOM_UTF8 + content), marked=self.marked)
        except Problem as problem:
            raise EditError(f"{self.source.name} would be no YAML any more: {problem}") from problem

    def with_values(self, **values: Value) -> Document:
        """The document with top-level keys set, and all others as they were."""
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
        # What is remarked on the last entry stays behind it.
        remark = _REMARK.match(text, start)
        gap = f"{self._line_break(line_start)}{re.sub('[^ ]', ' ', indent)}" if remark or not indent.strip() else " "
        said = f"{'' if comma else ','}{remark[0] if remark else ''}"
        return Edit(start, remark.end() if remark else start, f"{said}{gap}{entry}")

    def _alias(self, key: str) -> re.Match[str] | None:
        """The `*name` that is a key's value. Its node is the one that the name stands for, further up."""
        name = self.root.keys[key]
        return _ALIAS.match(self.source.text, name.end) if self.root.items[key].start < name.start else None

    def _visible_end(self, node: Node) -> int:
        """A block of text ends where the next thing begins; what is seen of it, with its last character."""
        return node.start + len(self.source.text[node.start : node.end].rstrip("\r\n"))

    def _before_break(self, place: int) -> int:
        """The end of the line before, where this is the beginning of one."""
        found = (ending for ending in ("\r\n", "\n", "\r") if self.source.text.endswith(ending, 0, place))
        return place - len(next(found, ""))

    def _line_start(self, place: int) -> int:
        return place - (self.source.position(place)[1] - 1)

    def _line_end(self, place: int) -> int:
        found = _LINE_BREAK.search(self.source.text, place)
        return found.start() if found else len(self.source.text)

    def _line_break(self, place: int) -> str:
        """As the neighbours end: a file may have both kinds."""
        text = self.source.text
        before = list(_LINE_BREAK.finditer(text, 0, place))
        found = _LINE_BREAK.search(text, place) or (before[-1] if before else None)
        return found[0] if found else "\n"


class EditError(ValueError):
    """A change that cannot be made without touching more than it should."""


def read_document(name: str, content: bytes) -> Document:
    """One mapping, its plain values those of YAML 1.1, as the programs that these files are from read them.

    What is none raises a Problem with every place.
    """
    return _document(decode(name, content), marked=content.startswith(codecs.BOM_UTF8))


def _document(source: Source, *, marked: bool) -> Document:
    reading = read(source, older=True)
    if reading.diagnostics:
        raise Problem(*reading.diagnostics)
    if not reading.documents or _is_empty(reading.documents[0]):
        raise Problem(Diagnostic(Code.EMPTY_FILE, "nothing in the file", source.span(0, 0)))
    first, *others = reading.documents
    if others:
        span = source.span(others[0].start, others[0].end)
        raise Problem(Diagnostic(Code.INVALID_YAML, "invalid YAML", span, "a second document; expected one"))
    if not isinstance(first, Mapping):
        span = source.span(first.start, first.end)
        found = "a list" if isinstance(first, Sequence) else "a single value"
        label = f"expected a mapping of keys and values, found {found}"
        raise Problem(Diagnostic(Code.WRONG_TYPE, "wrong type", span, label))
    return Document(source, first, marked)


def _has_remark(text: str) -> bool:
    """Whether a block of text has a comment beside its mark, or a collection in brackets one among its entries."""
    if text[:1] in {"|", ">"}:
        return "#" in text.partition("\n")[0]
    return text[:1] in {"[", "{"} and re.search(r"[ \t]#[^\n]*\n", text) is not None


def _is_empty(node: Node) -> bool:
    return isinstance(node, Scalar) and node.value is None


def written(value: Value, quote: str = "") -> str:
    """A value as YAML has it, in the quotes that are given, or in none where it needs none."""
    if not isinstance(value, str):
        return json.dumps(value)
    if quote == "'" and value.isprintable():
        return "'{}'".format(value.replace("'", "''"))
    if quote != '"' and _PLAIN.fullmatch(value) and not value.endswith(" ") and _is_text(value):
        return value
    return re.sub(r"[^ -~]", _escaped, json.dumps(value, ensure_ascii=False))


def _escaped(found: re.Match[str]) -> str:
    """A character that nobody can see, or that ends a line, as an escape."""
    character = found[0]
    if character.isprintable():
        return character
    return f"\\u{ord(character):04x}" if ord(character) < 0x10000 else f"\\U{ord(character):08x}"


def _is_text(value: str) -> bool:
    """Whether it is text without quotes as well, to both versions of YAML."""
    return all(read_scalar(value, plain=True, older=older) == (value, None) for older in (True, False))
