"""Recognize placeholders, redacted values and misspelt words."""

import re
from difflib import SequenceMatcher

# Variables of shells and pipelines, and tokens that a pipeline replaces. Lower-case names need several words: passwords
# can start with `$`, too.
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
    """Return whether the text is a placeholder or a redacted value."""
    stripped = text.strip()
    return any(pattern.fullmatch(stripped) for pattern in (_STANDS_FOR, _MASK, _YOURS))


def has_variable(text: str) -> bool:
    """Return whether the text contains a variable."""
    return "${" in text or _VARIABLE.search(text) is not None


def is_placeholder_address(text: str) -> bool:
    """Return whether the text is a placeholder for an address, such as `x.x.x.x` or `IP_ADDRESS`."""
    return _STANDS_FOR.fullmatch(text.strip()) is not None or _ADDRESS.search(text.strip()) is not None


def is_nearly(word: str, other: str) -> bool:
    """Return whether one word is probably a misspelling of the other."""
    return SequenceMatcher(None, plain(word), plain(other)).ratio() >= 0.85


def plain(word: str) -> str:
    """Return a word in lower case, without spaces, `-` and `_`."""
    return "".join(character for character in word.casefold() if character.isalnum())
