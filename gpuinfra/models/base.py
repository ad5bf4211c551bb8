"""What all models share: frozen, strict, no unknown keys, camelCase on paper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from gpuinfra.diagnostics import Code
from gpuinfra.suggest import did_you_mean, listed


class Model(BaseModel):
    """A frozen value. Strict: a number is never taken for text, nor text for a truth value."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        alias_generator=to_camel,
        hide_input_in_errors=True,  # a pasted private key must not travel in an exception
    )


def rejection(code: Code, summary: str, label: str = "", help: str | None = None) -> PydanticCustomError:  # noqa: A002 the diagnostic's own word
    """The error a field's check raises. `load.fields` turns it into a located diagnostic."""
    # The summary goes into the context as well: pydantic would format it as a template.
    return PydanticCustomError(code.value, "{summary}", {"summary": summary, "label": label, "help": help})


def require_text(value: object) -> str:
    """`value` if it is text. The error type is pydantic's own, so that all wrong types read alike."""
    if not isinstance(value, str):
        raise PydanticCustomError("string_type", "text expected")
    return value


def parsed(parse: Callable[[str], Any]) -> BeforeValidator:
    """A validator that makes a value out of text."""

    def validate(value: object) -> Any:
        return parse(require_text(value))

    return BeforeValidator(validate)


def one_of(*choices: str) -> BeforeValidator:
    """A validator for a word out of a few; a misspelt one gets the nearest named."""

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
    """A validator that raises a `rejection` for text before any other validator sees it."""

    def validate(value: object) -> object:
        if isinstance(value, str):
            check(value)
        return value

    return BeforeValidator(validate)


def checked(check: Callable[[str], None]) -> AfterValidator:
    """A validator that keeps text as it is and raises a `rejection` where it breaks a rule."""

    def validate(value: str) -> str:
        check(value)
        return value

    return AfterValidator(validate)


def whole(pattern: str) -> str:
    """`pattern` for the entire text, in the dialect that Python and JSON Schema (ECMA-262) share.

    Python's `$` also matches before a final newline; the look-ahead takes that away.
    """
    return f"^(?:{pattern})(?!\\n)$"
