"""Texts that stand for something else: placeholders, masks, slips of the keyboard."""

from __future__ import annotations

import re
from difflib import SequenceMatcher

# Variables of shells and of pipelines, and tokens that a pipeline replaces: what is meant comes from elsewhere. A name
# in small letters has to be one of several words: passwords begin with `$`, too.
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
    """Whether somebody is to write something here, or has taken it out."""
    stripped = text.strip()
    return any(pattern.fullmatch(stripped) for pattern in (_STANDS_FOR, _MASK, _YOURS))


def has_variable(text: str) -> bool:
    """Whether a part of it comes from elsewhere, so that nobody can tell what it will be."""
    return "${" in text or _VARIABLE.search(text) is not None


def is_placeholder_address(text: str) -> bool:
    """The same for an address: `x.x.x.x`, `IP_ADDRESS`, `<YOUR DSVM IP>`."""
    return _STANDS_FOR.fullmatch(text.strip()) is not None or _ADDRESS.search(text.strip()) is not None


def is_nearly(word: str, other: str) -> bool:
    """Whether one is most likely the other, misspelt."""
    return SequenceMatcher(None, plain(word), plain(other)).ratio() >= 0.85


def plain(word: str) -> str:
    """A word without what people mix up: case, spaces, `-` and `_`."""
    return "".join(character for character in word.casefold() if character.isalnum())
