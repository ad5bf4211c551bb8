"""Findings of rules, and safe fixes for them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from gpuinfra.diagnostics import Diagnostic, plain
from gpuinfra.parse.document import Document, Edit, EditError
from gpuinfra.parse.tree import Mapping, Node, Scalar, Sequence, Value, data

# Variables of shells and pipelines, and tokens that a pipeline replaces. Lower-case names need several words: passwords
# can start with `$`, too.
_VARIABLE = re.compile(
    r"\$\{[\w.]+\}|\$\([\w.-]+\)|\$[A-Z][A-Z0-9_]*\b|\$[a-z]+(?:_[a-z]+)+\b|%[A-Z0-9_]+%|#\{[^{}]+\}#|__[A-Za-z]\w*__"
)
_STANDS_FOR = re.compile(rf"\S*<.+>\S*|\{{.*\}}|\[.*\]|{_VARIABLE.pattern}")
_MASK = re.compile(
    r"[\W_xX]*|(?:redacted|hidden|masked|removed|none|null|todo|tbd|changeme|change[ _-]me)", re.IGNORECASE
)
_SECRET = r"(?:pass(?:word|wd|phrase)?|secret|token|key|credential|connection[ _-]?string)s?"  # noqa: S105 a pattern
_YOURS = re.compile(
    rf"(?:(?:enter|insert|my|the|your)[ _-](?:[a-z]+[ _-])*)?{_SECRET}(?:[ _-](?:goes[ _-])?here)?", re.IGNORECASE
)
_ADDRESS = re.compile(r"x{3}|\bx\.x|ip[ _-]?addr|^your|fqdn|^(?:ip|host|hostname|address)$", re.IGNORECASE)


def is_placeholder(text: str) -> bool:
    """Return whether the text is a placeholder or a redacted value."""
    stripped = text.strip()
    return any(pattern.fullmatch(stripped) for pattern in (_STANDS_FOR, _MASK, _YOURS))


def has_variable(text: str) -> bool:
    """Return whether the text contains a variable."""
    return "${" in text or _VARIABLE.search(text) is not None


def is_placeholder_address(text: str) -> bool:
    """Return whether the text is a placeholder for an address, such as `x.x.x.x` or `IP_ADDRESS`."""
    return _STANDS_FOR.fullmatch(text.strip()) is not None or _ADDRESS.search(text.strip()) is not None


def is_nearly(word: str, other: str) -> bool:
    """Return whether one word is probably a misspelling of the other."""
    return SequenceMatcher(None, plain(word), plain(other)).ratio() >= 0.85


Path = tuple[str | int, ...]
"""Keys and indexes from a file's mapping to a value."""


@dataclass(frozen=True)
class Fix:
    """A change of one value, or of one key's name, in one file."""

    document: Document
    edits: tuple[Edit, ...]
    path: Path
    value: Value
    renames: bool = False

    @property
    def start(self) -> int:
        return min(edit.start for edit in self.edits)

    @property
    def end(self) -> int:
        return max(edit.end for edit in self.edits)

    @property
    def what(self) -> str:
        return f"now `{self.value}`" if self.renames else f"now `{_shown(self.path, self.value)}`"

    def applied_to(self, document: Document) -> Document:
        """Return the document with only this change, or raise EditError."""
        edited = document.edited(self.edits)
        if data(edited.root) != _altered(data(document.root), self.path, self.value, renames=self.renames):
            raise EditError(f"the fix would change more in {document.source.name}")
        return edited


@dataclass(frozen=True)
class Finding:
    """One problem of one file."""

    diagnostic: Diagnostic
    fix: Fix | None = None


def set_value(document: Document, key: str, value: Value) -> Fix | None:
    """Return a fix that sets a top-level key, or None if it cannot be made in place.

    It is also None if a similar key, probably a misspelling, exists: that key has its own finding.
    """
    if key not in document.root.keys and any(is_nearly(other, key) for other in document.root.keys):
        return None
    try:
        return _safe(Fix(document, document.setting(key, value), (key,), value))
    except EditError:
        return None


def replace_value(document: Document, node: Node, value: Value) -> Fix | None:
    """Return a fix that replaces a value."""
    path = path_of(document.root, node)
    return _safe(Fix(document, (document.replacing(node, value),), path, value)) if path else None


def replace_part(document: Document, node: Scalar, old: str, new: str) -> Fix | None:
    """Return a fix that replaces part of a text, and keeps quotes and comments."""
    path = path_of(document.root, node)
    place = document.source.text.find(old, node.start, node.end)
    if path is None or place < 0:
        return None
    edit = Edit(place, place + len(old), new)
    return _safe(Fix(document, (edit,), path, node.text.replace(old, new, 1)))


def rename_key(document: Document, key: str, name: str) -> Fix | None:
    """Return a fix that renames a top-level key."""
    if name in document.root.keys:
        return None
    edit = document.replacing(document.root.keys[key], name)
    return _safe(Fix(document, (edit,), (key,), name, renames=True))


def part_cut_off(document: Document, node: Scalar, place: int) -> Fix | None:
    """Return a fix that turns the rest of a plain text into a comment."""
    path = path_of(document.root, node)
    if path is None or document.source.text[node.start : node.end] != node.text:
        return None
    edit = Edit(node.start + place, node.start + place, " ")
    return _safe(Fix(document, (edit,), path, node.text[:place].rstrip()))


def path_of(root: Node, wanted: Node) -> Path | None:
    """Return the path to a node, or None."""
    return next(_paths(root, wanted), None)


def _paths(node: Node, wanted: Node) -> Iterator[Path]:
    if node is wanted:
        yield ()
    elif isinstance(node, Mapping):
        yield from ((key, *rest) for key, item in node.items.items() for rest in _paths(item, wanted))
    elif isinstance(node, Sequence):
        yield from ((number, *rest) for number, item in enumerate(node.items) for rest in _paths(item, wanted))


def _safe(fix: Fix) -> Fix | None:
    """Return the fix if it changes exactly what it should, else None."""
    try:
        fix.applied_to(fix.document)
    except EditError:
        return None
    return fix if fix.edits else None


def _altered(value: Any, path: Path, new: Value, *, renames: bool) -> Any:
    first, *rest = path
    if isinstance(value, tuple):
        items = list(value)
        items[int(first)] = _altered(items[int(first)], tuple(rest), new, renames=renames) if rest else new
        return tuple(items)
    if renames and not rest:
        return {new if key == first else key: item for key, item in value.items()}
    return {**value, first: _altered(value[first], tuple(rest), new, renames=renames) if rest else new}


def _shown(path: Path, value: Value) -> str:
    text = {True: "true", False: "false"}.get(value, str(value)) if isinstance(value, bool) else str(value)
    return f"{path[-1]}: {text}" if isinstance(path[-1], str) else text
