"""The addresses that may reach a machine's SSH port: `network.allowSshFrom`."""

import re
from typing import Annotated

from pydantic import BeforeValidator, Field, WithJsonSchema

from gpuinfra.diagnostics import Code
from gpuinfra.models.base import checked, rejection, whole

AUTO = "auto"

_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_ADDRESS = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
SOURCE = rf"{AUTO}|{_ADDRESS}(?:/(?:3[0-2]|[12]?[0-9]))?"
# A prefix this short covers much of the internet, so it needs `allowInternet: true`.
WIDE = rf"{_ADDRESS}/[0-7]"


def check_source(text: str) -> None:
    """Reject anything but `auto` and an IPv4 address or range. The machine's public address is IPv4."""
    if re.fullmatch(SOURCE, text):
        return
    if ":" in text:
        label, help_line = "the machine's public address is IPv4, so IPv6 cannot reach it", None
    elif text.casefold() in {"*", "any", "internet"}:
        label = "expected a numeric address range"
        help_line = "for the whole internet, write `0.0.0.0/0` and `allowInternet: true`"
    else:
        label = "expected an IPv4 address or range"
        help_line = "for example `203.0.113.7/32`, or `auto` for your own address"
    raise rejection(Code.BAD_ADDRESS, "invalid address range", label, help_line)


def is_wide(text: object) -> bool:
    """Return whether this range covers more than 16 million addresses."""
    return isinstance(text, str) and re.fullmatch(WIDE, text) is not None


def _auto_alone(value: object) -> object:
    return (AUTO,) if value == AUTO else value


_SOURCE_SCHEMA = {"type": "string", "pattern": whole(SOURCE)}

SshSources = Annotated[
    tuple[Annotated[str, checked(check_source)], ...],
    Field(min_length=1),
    BeforeValidator(_auto_alone),
    WithJsonSchema(
        {
            "anyOf": [
                {"const": AUTO},
                {"type": "array", "minItems": 1, "uniqueItems": True, "items": _SOURCE_SCHEMA},
            ]
        }
    ),
]
