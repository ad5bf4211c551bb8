"""Parse YAML into a tree of values with locations, read scalars, and explain the parser's errors."""

from __future__ import annotations

import datetime
import math
import re
import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from gpuinfra.diagnostics import Code, Diagnostic

if TYPE_CHECKING:
    from gpuinfra.parse.source import Source

Value = str | int | float | bool | None
Complaint = tuple[Code, str, str, str | None]
"""Code, summary, label and help of a diagnostic without a location."""
# Longer text is never ambiguous in practice, and PyYAML is slow with it.
MAX_LENGTH = 64
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys(("null", "Null", "NULL", "~", ""), None),
}
_WHOLE = re.compile(r"[-+]?[0-9]+")
_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_DECIMAL = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")


def read_scalar(text: str, *, plain: bool, older: bool = False) -> tuple[Value, Complaint | None]:
    """Return the value of a scalar and its problem, if any. Quoted scalars are text.

    With `older`, values follow YAML 1.1 and are never ambiguous, as for files of programs that use it.
    """
    if any("\ud800" <= character <= "\udfff" for character in text):
        return "", (Code.BAD_CHARACTER, "character not allowed", "an escape for a surrogate", None)
    if plain and older:
        return _read_older(text), None
    return _read_plain(text) if plain else (text, None)


def _read_older(text: str) -> Value:
    value = _as_yaml_1_1(text) if len(text) <= MAX_LENGTH else text
    # Other types, such as dates, stay text.
    return value if value is None or isinstance(value, bool | int | float | str) else text


def _read_plain(text: str) -> tuple[Value, Complaint | None]:
    if _NOT_FINITE.fullmatch(text):
        return 0, (Code.BAD_NUMBER, "not a number", "expected a finite number", None)
    try:
        value = _core(text)
    except (ValueError, OverflowError):
        return 0, (Code.BAD_NUMBER, "not a number", "too many digits", None)
    if len(text) > MAX_LENGTH:
        return value, None
    old = _as_yaml_1_1(text)
    if type(old) is type(value) and old == value:
        return value, None
    return value, _ambiguity(text, value, old)


def _core(text: str) -> Value:
    if text in _WORDS:
        return _WORDS[text]
    if _WHOLE.fullmatch(text):
        return int(text)
    if _BASED.fullmatch(text):
        return int(text, 0)
    if _DECIMAL.fullmatch(text):
        return _number(float(text))
    return text


def _number(number: float) -> int | float:
    if not math.isfinite(number):
        raise OverflowError
    # JSON Schema treats 150 and 150.0 as equal.
    return int(number) if number.is_integer() else number


def _as_yaml_1_1(text: str) -> Any:
    tag = yaml.SafeLoader("").resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    if tag == "tag:yaml.org,2002:str":
        return text
    try:
        value = yaml.constructor.SafeConstructor().construct_object(yaml.ScalarNode(tag, text))
        return _number(value) if isinstance(value, float) else value
    except (ValueError, OverflowError, yaml.YAMLError):
        return NotImplemented  # equal to nothing


def _ambiguity(text: str, value: Value, old: Any) -> Complaint:
    label = f"YAML 1.1 reads {_phrase(old)}, YAML 1.2 {_phrase(value)}"
    ways = [f"`{_literal(reading)}`" for reading in (old, value) if isinstance(reading, bool | int | float)]
    ways.append(f'`"{textwrap.shorten(text, 40)}"` for the text')
    return Code.AMBIGUOUS_VALUE, "ambiguous value", label, f"write {', or '.join(dict.fromkeys(ways))}"


def _phrase(value: object) -> str:
    match value:
        case bool():
            return f"`{_literal(value)}`"
        case int() | float():
            return f"the number {_literal(value)}"
        case str():
            return "text"
        case datetime.date():
            return "a date"
    return "something else"


def _literal(value: bool | float) -> str:
    text = str(value).lower()
    return text if len(text) <= 20 else f"{text[:20]}…"


# More than any spec needs, and small enough to bound time and memory.
MAX_DEPTH = 32
MAX_VALUES = 10_000


@dataclass(frozen=True, slots=True)
class Node:
    """A value with its location. Offsets count characters; `end` is exclusive."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Scalar(Node):
    """A single value. A `doubtful` one already has its diagnostic."""

    value: Value
    text: str
    doubtful: bool = False


@dataclass(frozen=True, slots=True)
class Sequence(Node):
    """A list."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Mapping(Node):
    """Keys and values. Keys are always text: `on` is not a boolean."""

    items: dict[str, Node]
    keys: dict[str, Scalar]


def data(node: Node) -> Any:
    """Return the Python value of a node, with tuples for lists."""
    match node:
        case Mapping(items=entries):
            return {key: data(value) for key, value in entries.items()}
        case Sequence(items=values):
            return tuple(data(value) for value in values)
        case Scalar(value=value):
            return value
    raise TypeError(node)


def node_at(node: Node | None, *path: str) -> Node | None:
    """Return the node at a path of keys, or None."""
    for key in path:
        node = node.items.get(key) if isinstance(node, Mapping) else None
    return node


@dataclass(slots=True)
class Parsed:
    """The documents up to the first syntax error, and all diagnostics."""

    documents: list[Node] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)


def read(source: Source, *, older: bool = False) -> Parsed:
    """Parse all documents. With `older`, plain values follow YAML 1.1."""
    composer = _Composer(source, older=older)
    try:
        composer.compose()
    except _ParseError as stop:
        composer.reading.diagnostics.append(stop.diagnostic)
    return composer.reading


class _ParseError(Exception):
    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic.summary)
        self.diagnostic = diagnostic


class _Composer:
    """Turns the parser's events into nodes, with limits that PyYAML's own composer lacks."""

    def __init__(self, source: Source, *, older: bool) -> None:
        self.source, self.older = source, older
        self.reading = Parsed()
        # Pure Python, not libyaml: its messages are the same on every machine.
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
            raise _ParseError(syntax_error(self.source, error)) from None
        except (ValueError, OverflowError):
            # PyYAML does not handle escapes of invalid characters, such as "\UFFFFFFFF".
            place = self.parser.get_mark().index
            raise _ParseError(
                Diagnostic(Code.INVALID_YAML, "invalid YAML", self.source.span(place, place + 1), "invalid character")
            ) from None

    def node(self, event: Any, depth: int) -> tuple[Node, int, int]:
        """Return a node, its number of values and its depth, with aliases expanded."""
        start, end = event.start_mark.index, event.end_mark.index
        if isinstance(event, yaml.AliasEvent):
            made = self.alias(str(event.anchor), start, end)
        else:
            if event.tag is not None:
                self.refuse_tag(event, start)
            if isinstance(event, yaml.ScalarEvent):
                made = self.scalar(event, start, end), 1, 1
            elif depth > MAX_DEPTH:
                raise self.too_deep(start)
            elif isinstance(event, yaml.SequenceStartEvent):
                made = self.sequence(start, depth)
            else:
                made = self.mapping(start, depth)
            if event.anchor is not None:
                self.anchors[event.anchor] = made
        _, size, height = made
        if size > MAX_VALUES:
            raise self.stop(
                Code.TOO_MANY_VALUES,
                "too many values",
                start,
                f"more than {MAX_VALUES} with expanded aliases",
            )
        if depth + height > MAX_DEPTH + 2:
            raise self.too_deep(start)
        return made

    def alias(self, name: str, start: int, end: int) -> tuple[Node, int, int]:
        if name not in self.anchors:
            raise _ParseError(
                Diagnostic(
                    Code.UNSUPPORTED_ALIAS,
                    "unknown alias",
                    self.source.span(start, end),
                    # Not its name: it may be a password that starts with `*`.
                    "no complete anchor of this name before this line",
                )
            )
        return self.anchors[name]

    def scalar(self, event: yaml.ScalarEvent, start: int, end: int) -> Scalar:
        plain = event.style is None and event.tag is None
        value, problem = read_scalar(event.value, plain=plain, older=self.older)
        if problem:
            code, summary, label, help_line = problem
            span = self.source.span(start, end)
            # If the line hides the value as a possible secret, the label must not show it either.
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
                help_line = "write out the fields; an alias can replace a value, not part of a mapping"
                self.report(Code.BAD_KEY, "merge key", start, end, "merge keys are not supported", help_line)
                return None
            return Scalar(start, end, event.value, event.value)
        node = self.node(event, depth + 1)[0]
        if isinstance(node, Scalar):
            return Scalar(start, end, node.text, node.text)
        self.report(
            Code.BAD_KEY, "invalid key", start, min(end, start + 1), "expected text as key, found a list or mapping"
        )
        return None

    def end_of(self, event: Any, start: int, items: list[Node]) -> int:
        # YAML ends a block where the next token starts; use the end of its last item instead.
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
                f"`{key.text}` is already at {line}:{column}",
                help="keep one of them",
            )
        )

    def refuse_tag(self, event: Any, start: int) -> None:
        end = min(event.end_mark.index, start + 1 + len(event.tag))
        help_line = "remove it; quote text that looks like another type"
        self.report(Code.UNSUPPORTED_TAG, "YAML tag", start, end, "tags are not supported", help_line)

    def report(self, code: Code, summary: str, start: int, end: int, label: str, help_line: str | None = None) -> None:
        self.reading.diagnostics.append(Diagnostic(code, summary, self.source.span(start, end), label, help=help_line))

    def too_deep(self, start: int) -> _ParseError:
        return self.stop(Code.TOO_DEEP, "nested too deep", start, f"at most {MAX_DEPTH} levels are allowed")

    def stop(self, code: Code, summary: str, start: int, label: str) -> _ParseError:
        return _ParseError(Diagnostic(code, summary, self.source.span(start, start + 1), label))


# The parser's message, what it means, and the fix.
_PROBLEMS: tuple[tuple[str, str, str | None], ...] = (
    (
        "mapping values are not allowed",
        "a key is not allowed here",
        "check the indentation; quote text that contains `: `",
    ),
    ("could not find expected ':'", "this key has no `:`", "write `key: value`"),
    ("found unexpected end of stream", "this quote is never closed", "close it on the same line"),
    ("found unexpected document separator", "this quote is never closed", "close it on the same line"),
    ("expected ',' or ']'", "this `[` is never closed", "close it with `]`"),
    ("expected ',' or '}'", "this `{` is never closed", "close it with `}`"),
    ("expected <block end>", "wrong indentation", "align it with the other entries"),
    ("expected the node content", "a value is missing before this", None),
    ("expected the document start", "the document has already ended", "start another one with `---`"),
    ("sequence entries are not allowed", "a list cannot start here", "start it on a new line"),
    ("found unknown escape character", "unknown escape sequence", r"write `\\` for a backslash, or use single quotes"),
    ("expected escape sequence", "incomplete escape sequence", None),
    ("cannot start any token", "a value cannot start with this character", "put the text in quotes"),
    ("found undefined tag handle", "tags are not supported", "put the text in quotes"),
    ("found incompatible YAML document", "unsupported YAML version", "remove the `%YAML` line"),
)
# Errors whose cause is where the parser started, not where it stopped.
_CAUSED_EARLIER = ("is never closed", "this key has no `:`")
_CONFLICT = re.compile(r"^(?:<{7}|={7}|>{7})(?= |\r?$)", re.MULTILINE)


def syntax_error(source: Source, error: yaml.MarkedYAMLError) -> Diagnostic:
    """Return a diagnostic for the parser's error."""
    mark = error.problem_mark or error.context_mark
    place = mark.index if mark else 0
    if source.text[place : place + 1] == "\t":
        return Diagnostic(
            Code.TAB,
            "tab in YAML",
            source.span(place, place + 1),
            "expected a space, found a tab",
            help="indent with spaces",
        )
    if conflict := _CONFLICT.search(source.text):
        return Diagnostic(
            Code.INVALID_YAML,
            "invalid YAML",
            source.span(*conflict.span()),
            "unresolved git conflict",
            help="keep one side, and remove the three marker lines",
        )
    problem = error.problem or ""
    label, help_line = next(
        ((label, fix) for words, label, fix in _PROBLEMS if words in problem),
        (re.sub(r"\s+", " ", problem), None),
    )
    if _lacks_comma(source.text[place:], problem):
        label, help_line = "a `,` is missing before this", "separate the entries with commas"
    elif label.endswith(_CAUSED_EARLIER) and error.context_mark:
        place = error.context_mark.index
    elif place >= (end := len(source.text.rstrip())):
        place, label, help_line = max(0, end - 1), "unexpected end of the file", None
    return Diagnostic(Code.INVALID_YAML, "invalid YAML", source.span(place, place + 1), label or None, help=help_line)


def _lacks_comma(rest: str, problem: str) -> bool:
    """Return whether the bracket is closed later, so that only a comma is missing."""
    found = re.match(r"expected ',' or '([\]}])', but got '(<scalar>|:)'", problem)
    return found is not None and found[1] in rest
