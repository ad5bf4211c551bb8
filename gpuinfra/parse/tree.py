"""YAML as a tree of plain values, each with its place. Syntax only: what a spec means is asked elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from gpuinfra.diagnostics import Code, Diagnostic
from gpuinfra.parse.scalars import Value, read_scalar
from gpuinfra.parse.syntax import syntax_error

if TYPE_CHECKING:
    from gpuinfra.parse.source import Source

# Far more than a spec needs, and little enough that no input costs time or memory.
DEEPEST = 32
MOST_VALUES = 10_000


@dataclass(frozen=True, slots=True)
class Node:
    """Something at a place. Offsets are characters of the source; `end` is the first one outside."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Scalar(Node):
    """A single value. `doubtful` ones have their diagnostic already, so nobody need complain again."""

    value: Value
    text: str
    doubtful: bool = False


@dataclass(frozen=True, slots=True)
class Sequence(Node):
    """A list."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Mapping(Node):
    """Keys and values. A key is its text, whatever YAML would make of it: `on` is no truth value here."""

    items: dict[str, Node]
    keys: dict[str, Scalar]


def data(node: Node) -> Any:
    """The plain Python value of a node; lists are tuples, for they do not change."""
    match node:
        case Mapping(items=entries):
            return {key: data(value) for key, value in entries.items()}
        case Sequence(items=values):
            return tuple(data(value) for value in values)
        case Scalar(value=value):
            return value
    raise TypeError(node)


@dataclass(slots=True)
class Reading:
    """What reading a file gave: the documents up to the first error of syntax, and every diagnostic."""

    documents: list[Node] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)


def read(source: Source, *, older: bool = False) -> Reading:
    """Every document in the source; with `older` its plain values are those of YAML 1.1."""
    composer = _Composer(source, older=older)
    try:
        composer.compose()
    except _StopReading as stop:
        composer.reading.diagnostics.append(stop.diagnostic)
    return composer.reading


class _StopReading(Exception):  # noqa: N818 a signal between two functions of this file
    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic.summary)
        self.diagnostic = diagnostic


class _Composer:
    """Turns the parser's events into nodes, within bounds. PyYAML's own composer has none."""

    def __init__(self, source: Source, *, older: bool) -> None:
        self.source, self.older = source, older
        self.reading = Reading()
        # Pure Python even where libyaml is there: its messages are the same on every machine.
        self.parser = yaml.SafeLoader(source.text)
        self.anchors: dict[str, tuple[Node, int, int]] = {}

    def compose(self) -> None:
        while not isinstance(event := self.next(), yaml.StreamEndEvent):
            if isinstance(event, yaml.DocumentStartEvent):
                self.anchors = {}
                self.reading.documents.append(self.node(self.next(), 1)[0])

    def next(self) -> Any:
        try:
            return self.parser.get_event()  # type: ignore[no-untyped-call]
        except yaml.MarkedYAMLError as error:
            raise _StopReading(syntax_error(self.source, error)) from None
        except (ValueError, OverflowError):
            # An escape such as "\UFFFFFFFF" names no character, which PyYAML does not expect.
            place = self.parser.get_mark().index
            raise _StopReading(
                Diagnostic(Code.INVALID_YAML, "invalid YAML", self.source.span(place, place + 1), "no such character")
            ) from None

    def node(self, event: Any, depth: int) -> tuple[Node, int, int]:
        """A node, the number of values in it, and how deep it is, both with aliases written out."""
        start, end = event.start_mark.index, event.end_mark.index
        if isinstance(event, yaml.AliasEvent):
            made = self.alias(str(event.anchor), start, end)
        else:
            if event.tag is not None:
                self.refuse_tag(event, start)
            if isinstance(event, yaml.ScalarEvent):
                made = self.scalar(event, start, end), 1, 1
            elif depth > DEEPEST:
                raise self.too_deep(start)
            elif isinstance(event, yaml.SequenceStartEvent):
                made = self.sequence(start, depth)
            else:
                made = self.mapping(start, depth)
            if event.anchor is not None:
                self.anchors[event.anchor] = made
        _, size, height = made
        if size > MOST_VALUES:
            raise self.stop(
                Code.TOO_MANY_VALUES,
                "too many values",
                start,
                f"more than {MOST_VALUES} with its aliases written out",
            )
        if depth + height > DEEPEST + 2:
            raise self.too_deep(start)
        return made

    def alias(self, name: str, start: int, end: int) -> tuple[Node, int, int]:
        if name not in self.anchors:
            raise _StopReading(
                Diagnostic(
                    Code.UNSUPPORTED_ALIAS,
                    "alias of nothing",
                    self.source.span(start, end),
                    # A password may begin with a `*`, so the name is not repeated.
                    "no anchor of this name ends before this place",
                )
            )
        return self.anchors[name]

    def scalar(self, event: yaml.ScalarEvent, start: int, end: int) -> Scalar:
        plain = event.style is None and event.tag is None
        value, problem = read_scalar(event.value, plain=plain, older=self.older)
        if problem:
            code, summary, label, help_line = problem
            span = self.source.span(start, end)
            # Where the line does not show a value, for it may be a secret, nor do the words about it.
            if plain and event.value not in span.text:
                label, help_line = "put it in quotes", None
            self.reading.diagnostics.append(Diagnostic(code, summary, span, label, help=help_line))
        return Scalar(start, end, value, event.value, doubtful=problem is not None)

    def sequence(self, start: int, depth: int) -> tuple[Node, int, int]:
        items: list[Node] = []
        size = height = 0
        while not isinstance(event := self.next(), yaml.SequenceEndEvent):
            item, item_size, item_height = self.node(event, depth + 1)
            items.append(item)
            size, height = size + item_size, max(height, item_height)
        return Sequence(start, self.end_of(event, start, items), tuple(items)), size + 1, height + 1

    def mapping(self, start: int, depth: int) -> tuple[Node, int, int]:
        items: dict[str, Node] = {}
        keys: dict[str, Scalar] = {}
        size = height = 0
        while not isinstance(event := self.next(), yaml.MappingEndEvent):
            key = self.key(event, depth)
            value, value_size, value_height = self.node(self.next(), depth + 1)
            size, height = size + value_size, max(height, value_height)
            if key is None:
                continue
            if key.text in items:
                self.refuse_duplicate(key, keys[key.text])
            else:
                items[key.text], keys[key.text] = value, key
        return (
            Mapping(start, self.end_of(event, start, list(items.values())), items, keys),
            size + 1,
            height + 1,
        )

    def key(self, event: Any, depth: int) -> Scalar | None:
        start, end = event.start_mark.index, event.end_mark.index
        if isinstance(event, yaml.ScalarEvent):
            if event.tag is not None:
                self.refuse_tag(event, start)
            if event.value == "<<" and event.style is None:
                help_line = "write the fields out; an alias can stand for a value, not for a part of a mapping"
                self.report(Code.BAD_KEY, "merge key", start, end, "merge keys are not read", help_line)
                return None
            return Scalar(start, end, event.value, event.value)
        node = self.node(event, depth + 1)[0]
        if isinstance(node, Scalar):
            return Scalar(start, end, node.text, node.text)
        self.report(Code.BAD_KEY, "invalid key", start, min(end, start + 1), "a key is a word, not a list or mapping")
        return None

    def end_of(self, event: Any, start: int, items: list[Node]) -> int:
        # A block ends where the next thing begins, lines away; its last item says where it stops to the eye.
        end: int = event.end_mark.index
        if end > event.start_mark.index:
            return end
        return max([start, *(item.end for item in items if item.end <= end)])

    def refuse_duplicate(self, key: Scalar, first: Scalar) -> None:
        line, column = self.source.position(first.start)
        self.reading.diagnostics.append(
            Diagnostic(
                Code.DUPLICATE_KEY,
                "duplicate key",
                self.source.span(key.start, key.end),
                f"`{key.text}` stands at {line}:{column} already",
                help="keep one of them",
            )
        )

    def refuse_tag(self, event: Any, start: int) -> None:
        end = min(event.end_mark.index, start + 1 + len(event.tag))
        help_line = "remove it; text that looks like something else goes in quotes"
        self.report(Code.UNSUPPORTED_TAG, "YAML tag", start, end, "tags are not read", help_line)

    def report(self, code: Code, summary: str, start: int, end: int, label: str, help_line: str | None = None) -> None:
        self.reading.diagnostics.append(Diagnostic(code, summary, self.source.span(start, end), label, help=help_line))

    def too_deep(self, start: int) -> _StopReading:
        return self.stop(Code.TOO_DEEP, "nested too deep", start, f"a spec has at most {DEEPEST} levels")

    def stop(self, code: Code, summary: str, start: int, label: str) -> _StopReading:
        return _StopReading(Diagnostic(code, summary, self.source.span(start, start + 1), label))
