"""Template expressions such as `[concat(parameters('name'), 'Subnet')]`: parsed and evaluated."""

import base64
import hashlib
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from gpuinfra.sandbox.kernel.errors import not_modelled
from gpuinfra.sandbox.kernel.routes import parse_id

DEFAULT_FORMAT = "yyyyMMddTHHmmssZ"
_STANDARD = {"s": "yyyy-MM-ddTHH:mm:ss", "u": "yyyy-MM-dd HH:mm:ssZ"}
_CUSTOM = {"yyyy": "%Y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S"}
# What .NET interprets: date letters, quotes and escapes. All other characters are literal.
_MEANT = re.compile(r"""([dfFghHKmMstyz])\1*|["'\\%]""")
_DURATION = re.compile(r"(-?)P(?=[0-9T])(?:([0-9]+)D)?(?:T(?=[0-9])(?:([0-9]+)H)?(?:([0-9]+)M)?(?:([0-9]+)S)?)?")
_CALENDAR = re.compile(r"-?P(?:[0-9]+[YM])+(?:[0-9]+D)?(?:T.*)?")


def format_moment(moment: datetime, pattern: str = DEFAULT_FORMAT) -> str:
    """Format a time as .NET does: the standard formats `u` and `s`, and custom ones from years to seconds."""
    pattern = _STANDARD.get(pattern, pattern)

    def replace(found: re.Match[str]) -> str:
        if found[0] not in _CUSTOM:
            raise not_modelled(f"the date format '{pattern}'")
        return f"{moment:{_CUSTOM[found[0]]}}"

    if len(pattern) < 2:
        raise not_modelled(f"the date format '{pattern}'")
    return _MEANT.sub(replace, pattern)


def read_moment(text: str) -> datetime:
    """Parse an ISO 8601 time; without a zone it is UTC. Raises ValueError for anything else."""
    found = datetime.fromisoformat(text)
    return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)


def read_duration(text: str) -> timedelta:
    """Parse `PT4H`, `-P9D` or `P1DT2H3M4S`. Raises ValueError for anything else."""
    if _CALENDAR.fullmatch(text):
        raise not_modelled(f"years and months of a duration, as in '{text}'")
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(text)
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups()[1:])
    length = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    return -length if found[1] else length


_TOKEN = re.compile(
    r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<number>-?[0-9]{1,18})|(?P<name>[A-Za-z_]\w*)|(?P<mark>[()\[\],.]))"
)
_DEPTH = 50


class TemplateError(Exception):
    """A template that cannot be evaluated; the text is part of ARM's InvalidTemplate error."""


@dataclass(frozen=True)
class Scope:
    """What an expression can refer to.

    `reference` is set only when resources exist, for outputs. `now` is set only for parameter defaults.
    """

    subscription: str
    tenant: str
    group: Mapping[str, Any]
    deployment: str
    parameters: Mapping[str, Any]
    variables: Mapping[str, Any] = field(default_factory=dict)
    reference: Callable[[str, bool], Any] | None = None
    now: datetime | None = None


def evaluate(value: Any, scope: Scope) -> Any:
    """Return a JSON value with every expression in it evaluated, also in member names."""
    if isinstance(value, str):
        return _evaluate_text(value, scope)
    if isinstance(value, list):
        return [evaluate(item, scope) for item in value]
    if isinstance(value, dict):
        return {str(_evaluate_text(name, scope)): evaluate(item, scope) for name, item in value.items()}
    return value


def _evaluate_text(text: str, scope: Scope) -> Any:
    # Without a closing bracket at the end it is not an expression, so nothing needs escaping.
    if not (text.startswith("[") and text.endswith("]")):
        return text
    if text.startswith("[["):
        return text[1:]
    reader = _Reader(text, scope)
    value = reader.expression()
    reader.end()
    return value


class _Reader:
    """Parses an expression from left to right and evaluates it on the way."""

    def __init__(self, text: str, scope: Scope) -> None:
        self.text, self.scope = text, scope
        self.tokens = _tokens(text)
        self.position = 0
        self.depth = 0

    def expression(self) -> Any:
        self.depth += 1
        if self.depth > _DEPTH:
            raise TemplateError(f"The template language expression '{_short(self.text)}' is nested too deeply.")
        value = self._access(self._operand())
        self.depth -= 1
        return value

    def end(self) -> None:
        if self.position < len(self.tokens):
            raise self._unexpected()

    def _operand(self) -> Any:
        kind, token = self._take()
        if kind == "text":
            return token[1:-1].replace("''", "'")
        if kind == "number":
            return int(token)
        if kind == "name":
            return self._function(token)
        raise self._unexpected()

    def _function(self, name: str) -> Any:
        if name.lower() in {"true", "false", "null"} and self._peek() != "(":
            raise self._unexpected()
        self._expect("(")
        arguments: list[Any] = []
        while self._peek() != ")":
            if arguments:
                self._expect(",")
            arguments.append(self.expression())
        self._expect(")")
        return call_function(name, arguments, self.scope)

    def _access(self, value: Any) -> Any:
        while self._peek() in {".", "["}:
            _, mark = self._take()
            if mark == ".":
                kind, member = self._take()
                if kind != "name":
                    raise self._unexpected()
                value = _member(value, member, self.text)
            else:
                value = _member(value, self.expression(), self.text)
                self._expect("]")
        return value

    def _peek(self) -> str:
        return self.tokens[self.position][1] if self.position < len(self.tokens) else ""

    def _take(self) -> tuple[str, str]:
        if self.position >= len(self.tokens):
            raise self._unexpected()
        self.position += 1
        return self.tokens[self.position - 1]

    def _expect(self, mark: str) -> None:
        if self._peek() != mark:
            raise self._unexpected()
        self.position += 1

    def _unexpected(self) -> TemplateError:
        return TemplateError(
            f"The template language expression '{_short(self.text)}' is not valid near '{self._peek() or 'its end'}'. "
            "Please see https://aka.ms/arm-functions for usage details."
        )


def _tokens(text: str) -> list[tuple[str, str]]:
    inner, position, tokens = text[1:-1], 0, []
    while inner[position:].strip():
        found = _TOKEN.match(inner, position)
        if found is None:
            raise TemplateError(
                f"The template language expression '{_short(text)}' is not valid: unexpected character near "
                f"'{_short(inner[position:].strip())}'. Please see https://aka.ms/arm-functions for usage details."
            )
        kind = str(found.lastgroup)
        tokens.append((kind, found[kind]))
        position = found.end()
    return tokens


def _short(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:97]}..."


def _member(value: Any, name: Any, text: str) -> Any:
    if isinstance(value, list) and isinstance(name, int) and 0 <= name < len(value):
        return value[name]
    if isinstance(value, dict) and isinstance(name, str):
        for member, found in value.items():
            if member.lower() == name.lower():
                return found
    known = ", ".join(value) if isinstance(value, dict) else ""
    raise TemplateError(
        f"The language expression property '{name}' doesn't exist, available properties are '{known}' in "
        f"'{_short(text)}'. Please see https://aka.ms/arm-functions for usage details."
    )


# Functions
def call_function(name: str, arguments: list[Any], scope: Scope) -> Any:
    """Evaluate one function of the template language."""
    function = _FUNCTIONS.get(name.lower())
    if function is None:
        raise TemplateError(
            f"The template function '{name}' is not valid. Please see https://aka.ms/arm-functions for usage details."
        )
    try:
        return function(scope, *arguments)
    except (TypeError, ValueError, OverflowError, IndexError, AttributeError, StopIteration):
        raise TemplateError(
            f"Unable to evaluate template language function '{name}': its arguments are not valid. Please see "
            "https://aka.ms/arm-functions for usage details."
        ) from None


def _named(values: Mapping[str, Any], name: str, what: str) -> Any:
    for key, value in values.items():
        if key.lower() == name.lower():
            return value
    raise TemplateError(
        f"The template {what} '{name}' is not found. Please see https://aka.ms/arm-syntax-{what}s for usage details."
    )


def _concat(_: Scope, *parts: Any) -> Any:
    if parts and all(isinstance(part, list) for part in parts):
        return [item for part in parts for item in part]
    return "".join(_plain(part) for part in parts)


def _plain(value: Any) -> str:
    if isinstance(value, str | int):
        return str(value)
    raise TypeError(value)


def _format(_: Scope, pattern: str, *values: Any) -> str:
    def replace(found: re.Match[str]) -> str:
        if found[0] in {"{{", "}}"}:
            return found[0][0]
        return _plain(values[int(found[1])])

    return re.sub(r"\{\{|\}\}|\{(\d+)\}", replace, pattern)


def _resource_id(scope: Scope, *parts: str) -> str:
    """resourceId([subscription], [group], type, name, ...)."""
    index = next(index for index, part in enumerate(parts) if "/" in part)
    ahead = list(parts[:index])
    group = ahead.pop() if ahead else scope.group["name"]
    subscription = ahead.pop() if ahead else scope.subscription
    return f"/subscriptions/{subscription}/resourceGroups/{group}{_provider_path(parts[index:])}"


def _subscription_resource_id(scope: Scope, *parts: str) -> str:
    index = next(index for index, part in enumerate(parts) if "/" in part)
    subscription = parts[0] if index else scope.subscription
    return f"/subscriptions/{subscription}{_provider_path(parts[index:])}"


def _provider_path(parts: tuple[str, ...]) -> str:
    namespace, *kinds = parts[0].split("/")
    names = [name for part in parts[1:] for name in part.split("/")]
    if len(kinds) != len(names):
        raise TemplateError(
            f"Unable to evaluate template language function 'resourceId': the type '{parts[0]}' requires "
            f"'{len(kinds)}' resource name argument(s). Please see https://aka.ms/arm-resource-functions/#resourceid "
            "for usage details."
        )
    pairs = "".join(f"/{kind}/{name}" for kind, name in zip(kinds, names, strict=True))
    return f"/providers/{namespace}{pairs}"


def _unique_string(_: Scope, *parts: str) -> str:
    """Return 13 characters that are the same for the same texts. Azure's own hash is not published."""
    digest = hashlib.sha256("\0".join(_text(part) for part in parts).encode()).digest()
    return base64.b32encode(digest).decode().lower()[:13]


def _guid(_: Scope, *parts: str) -> str:
    if not parts:
        raise TypeError
    return str(uuid.uuid5(uuid.NAMESPACE_OID, "-".join(_text(part) for part in parts)))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _reference(scope: Scope, what: str, api_version: str = "", full: str = "") -> Any:
    if scope.reference is None:
        raise TemplateError(
            "The template function 'reference' is not expected at this location. The embedded Azure takes it in "
            "outputs only. Please see https://aka.ms/arm-functions for usage details."
        )
    _text(what), _text(api_version)
    if what.startswith("/"):
        parse_id(what)
    return scope.reference(what, full.lower() == "full")


def _utc_now(scope: Scope, pattern: str = DEFAULT_FORMAT) -> str:
    if scope.now is None:
        raise TemplateError(
            "The template function 'utcNow' is not expected at this location. Please see "
            "https://aka.ms/arm-functions for usage details."
        )
    return format_moment(scope.now, _text(pattern))


def _date_time_add(_: Scope, base: str, duration: str, pattern: str = "") -> str:
    return format_moment(read_moment(_text(base)) + read_duration(_text(duration)), _text(pattern))


def _if(_: Scope, condition: bool, when: Any, otherwise: Any) -> Any:
    if not isinstance(condition, bool):
        raise TypeError(condition)
    return when if condition else otherwise


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "base64": lambda _, text: base64.b64encode(_text(text).encode()).decode(),
    "concat": _concat,
    "datetimeadd": _date_time_add,
    "deployment": lambda scope: {"name": scope.deployment},
    "equals": lambda _, one, other: one == other,
    "false": lambda _: False,
    "format": _format,
    "guid": _guid,
    "if": _if,
    "parameters": lambda scope, name: _named(scope.parameters, name, "parameter"),
    "reference": _reference,
    "resourcegroup": lambda scope: dict(scope.group),
    "resourceid": _resource_id,
    "string": lambda _, value: _plain(value),
    "subscription": lambda scope: {
        "id": f"/subscriptions/{scope.subscription}",
        "subscriptionId": scope.subscription,
        "tenantId": scope.tenant,
    },
    "subscriptionresourceid": _subscription_resource_id,
    "tolower": lambda _, text: _text(text).lower(),
    "toupper": lambda _, text: _text(text).upper(),
    "true": lambda _: True,
    "uniquestring": _unique_string,
    "utcnow": _utc_now,
    "variables": lambda scope, name: _named(scope.variables, name, "variable"),
}
