"""The base of all spec models, and validators that raise located diagnostics."""

from collections.abc import Callable
from typing import Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from gpuinfra.diagnostics import Code
from gpuinfra.suggest import did_you_mean, listed


class Model(BaseModel):
    """A frozen, strict model with camelCase keys: numbers are not text, text is not a boolean, unknown keys fail."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        alias_generator=to_camel,
        hide_input_in_errors=True,  # a pasted private key must not travel in an exception
    )


def rejection(code: Code, summary: str, label: str = "", help: str | None = None) -> PydanticCustomError:  # noqa: A002 the diagnostic's own word
    """Return the error that a field's check raises. `parse.fields` turns it into a located diagnostic."""
    # The summary goes into the context as well: pydantic would format it as a template.
    return PydanticCustomError(code.value, "{summary}", {"summary": summary, "label": label, "help": help})


def require_text(value: object) -> str:
    """Return `value` if it is text, else raise pydantic's own error for a wrong type."""
    if not isinstance(value, str):
        raise PydanticCustomError("string_type", "text expected")
    return value


def parsed(parse: Callable[[str], Any]) -> BeforeValidator:
    """Return a validator that parses text into a value."""

    def validate(value: object) -> Any:
        return parse(require_text(value))

    return BeforeValidator(validate)


def one_of(*choices: str) -> BeforeValidator:
    """Return a validator for a fixed set of words. Its error suggests the nearest word."""

    def validate(value: object) -> str:
        if require_text(value) in choices:
            return str(value)
        raise rejection(
            Code.UNKNOWN_VALUE,
            "unknown value",
            f"expected {listed(choices)}",
            did_you_mean(str(value), choices),
        )

    return BeforeValidator(validate)


def check_first(check: Callable[[str], None]) -> BeforeValidator:
    """Return a validator that checks text before all other validators."""

    def validate(value: object) -> object:
        if isinstance(value, str):
            check(value)
        return value

    return BeforeValidator(validate)


def checked(check: Callable[[str], None]) -> AfterValidator:
    """Return a validator that keeps text unchanged, or raises what `check` raises."""

    def validate(value: str) -> str:
        check(value)
        return value

    return AfterValidator(validate)


def whole(pattern: str) -> str:
    """Return `pattern` anchored to the entire text, in the syntax that Python and JSON Schema (ECMA-262) share.

    Python's `$` also matches before a final newline; the look-ahead prevents that.
    """
    return f"^(?:{pattern})(?!\\n)$"
