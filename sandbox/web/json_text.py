"""JSON as ARM reads it: with comments, and with names that have no quotes. `az` sends a template's file like that."""

from __future__ import annotations

import json
import re
from typing import Any

# Whatever begins is taken to its end, closed or not, so that no text is looked at twice.
_PARTS = re.compile(
    r"""(?P<text>"(?:[^"\\]|\\.)*+(?:"|\\?\Z))"""
    r"""|(?P<comment>//[^\n]*+|/\*.*?(?:\*/|\Z))"""
    r"""|(?P<name>[A-Za-z_$][\w$]*+)(?P<colon>\s*+:)?""",
    re.DOTALL,
)


def read_json(text: str) -> Any:
    """The value, or ValueError."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except ValueError:
        plain = _PARTS.sub(_plain, text)
        if plain == text:
            raise
        return json.loads(plain, parse_constant=_refuse_constant)


def _plain(found: re.Match[str]) -> str:
    if found["comment"]:
        return " "
    return f'"{found["name"]}"{found["colon"]}' if found["colon"] else found[0]


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")
