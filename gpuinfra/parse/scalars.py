"""Read scalar YAML values.

Values follow the core schema of YAML 1.2, as in editors. If YAML 1.1, which many tools still use, reads something else
(`no`, `22:30`, `010`), the value is ambiguous and gets a diagnostic.
"""

import datetime
import math
import re
import textwrap
from typing import Any

import yaml

from gpuinfra.diagnostics import Code

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
