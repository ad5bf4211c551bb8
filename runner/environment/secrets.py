"""Secrets in the addresses of a conda file. They must be in no image and in no output."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote, unquote

from gpuinfra.parse.source import CHANNEL_TOKEN, LOGIN, without_logins

_SIGNATURE = re.compile(r"[?&]sig=(?P<value>[^&#\s\"']+)", re.IGNORECASE)
# The variables that pip expands in requirement lines.
VARIABLE = re.compile(r"\$\{(?P<name>[A-Z0-9_]+)\}")
# Shorter values occur in ordinary words, so they cannot be redacted.
MIN_SIZE = 6


def expand(line: str, secrets: Mapping[str, str]) -> str:
    """Return a line with these variables replaced by their values."""
    return VARIABLE.sub(lambda found: secrets.get(found["name"], found[0]), line)


def secrets_in(text: str) -> set[str]:
    """Return the passwords, tokens and signatures in the addresses of a text, as written and URL-decoded."""
    found = {each["value"] for each in _SIGNATURE.finditer(text)}
    found |= {each["token"] for each in CHANNEL_TOKEN.finditer(text) if "://" in text}
    for login in LOGIN.finditer(text):
        found.add(login["password"] or login["token"])
    return found | {unquote(each) for each in found}


def spellings(secret: str) -> set[str]:
    """Return the forms in which tools may print a secret: as it is, URL-encoded and URL-decoded."""
    return {secret, quote(secret, safe=""), unquote(secret)}


def redactable(secrets: Iterable[str]) -> tuple[str, ...]:
    """Return the secrets that are long enough to redact, the longest first, because one may contain another."""
    return tuple(sorted({each for each in secrets if len(each) >= MIN_SIZE}, key=lambda each: (-len(each), each)))


def redact(secrets: tuple[str, ...], line: str) -> str:
    """Return a line without these secrets, and without passwords in addresses."""
    for secret in secrets:
        line = line.replace(secret, "***")
    return without_logins(line)
