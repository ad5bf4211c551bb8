"""Files of variables, for `--env-file`: what Docker Compose, dotenv and shells read in the same way.

Where they or `docker run` differ, the value would depend on the program that reads it, so the line is an error. Values
are secret, so no message has one.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LINE = re.compile(r"(?P<export>export[ \t]+)?(?P<name>[^=\s]*)(?P<before>[ \t]*)(?P<mark>=?)(?P<value>.*)")
_QUOTE_IT = "write it in single quotes: `NAME='…'`"
# What a shell replaces, or ends the value at. A `~` counts only where a shell replaces it.
_SHELL_CHARACTERS = re.compile(r"[`;&|<>()\\]|^~|(?<=:)~")
_COMMENT = re.compile(r"[ \t]+#.*")


class EnvFileError(ValueError):
    """A line that is not a variable, or that programs read differently, with its number, the reason and a fix."""

    def __init__(self, line: int, reason: str, fix: str) -> None:
        super().__init__(f"line {line}: {reason}")
        self.fix = fix


class Variable(NamedTuple):
    """A variable of a file."""

    line: int
    name: str
    value: str | None
    """None for a name without a value: the variable of the shell."""


def parse(text: str) -> list[Variable]:
    """Return the variables of a file in order. Raise EnvFileError for a line that programs read differently."""
    found = []
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            found.append(_variable(number, line.strip()))
    return found


def _variable(number: int, line: str) -> Variable:
    match = _LINE.fullmatch(line)
    if match is None or not _NAME.fullmatch(match["name"]):
        raise EnvFileError(number, "expected NAME=VALUE", "the line is not shown")
    name, value = match["name"], match["value"]
    if not match["mark"]:
        if value:
            raise EnvFileError(number, "expected NAME=VALUE", "the line is not shown")
        return Variable(number, name, None)
    if match["before"] or value[:1] in {" ", "\t"}:
        reason = f"`{name}` has a space next to its `=`, which `docker run` keeps, dotenv drops and a shell refuses"
        raise EnvFileError(number, reason, "remove the space")
    return Variable(number, name, _value(number, name, value))


def _value(number: int, name: str, value: str) -> str:
    quote = value[:1]
    if quote not in {"'", '"'}:
        return _plain(number, name, value)
    end = value.find(quote, 1)
    if end < 0:
        fix = f"for a value of several lines, use `--secret {name}`"
        raise EnvFileError(number, f"the quote of `{name}` does not end on its line", fix)
    inner, rest = value[1:end], value[end + 1 :]
    if rest.strip() and not _COMMENT.fullmatch(rest):
        reason = f"the value of `{name}` has text after its quote, which only shells join"
        raise EnvFileError(number, reason, "put quotes around the whole value")
    special = "\\" if quote == "'" else "\\$`"
    if any(each in inner for each in special):
        reason = f"the value of `{name}` has one of `{special}` in quotes: dotenv and shells replace it differently"
        fix = f"use `--secret {name}`" if quote == "'" or "\\" in inner or "'" in inner else _QUOTE_IT
        raise EnvFileError(number, reason, fix)
    return inner


def _plain(number: int, name: str, value: str) -> str:
    """Return a value without quotes."""
    if _COMMENT.search(value):
        reason = f"`{name}` has a `#` after a space: `docker run` keeps it in the value, for others it is a comment"
        raise EnvFileError(number, reason, f"put the comment on its own line; if it is part of the value, {_QUOTE_IT}")
    if re.search(r"\s", value):
        reason = f"the value of `{name}` has a space, at which a shell ends it"
        raise EnvFileError(number, reason, _QUOTE_IT)
    if "$" in value:
        reason = f"the value of `{name}` has a `$`, which shells and dotenv replace, and `docker run` keeps"
        raise EnvFileError(number, reason, _QUOTE_IT)
    if _SHELL_CHARACTERS.search(value) or "'" in value or '"' in value:
        reason = f"the value of `{name}` has a character with a meaning for shells, which dotenv and `docker run` keep"
        fix = f"use `--secret {name}`" if "'" in value else _QUOTE_IT
        raise EnvFileError(number, reason, fix)
    return value
