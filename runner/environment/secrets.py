"""What lets one in at the addresses of a file: it must be in no image, and in nothing that is printed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote, unquote

from gpuinfra.parse.redaction import CHANNEL_TOKEN, LOGIN, without_logins

_SIGNATURE = re.compile(r"[?&]sig=(?P<value>[^&#\s\"']+)", re.IGNORECASE)
# The variables that pip expands in requirement lines.
VARIABLE = re.compile(r"\$\{(?P<name>[A-Z0-9_]+)\}")
# Shorter values occur in ordinary words, so they cannot be masked.
SHORTEST = 6


def expand(line: str, secrets: Mapping[str, str]) -> str:
    """Return a line with these variables replaced by their values."""
    return VARIABLE.sub(lambda found: secrets.get(found["name"], found[0]), line)


def secrets_in(text: str) -> set[str]:
    """Passwords, tokens and signatures in the addresses of a text, as they are written and as they are meant."""
    found = {each["value"] for each in _SIGNATURE.finditer(text)}
    found |= {each["token"] for each in CHANNEL_TOKEN.finditer(text) if "://" in text}
    for login in LOGIN.finditer(text):
        found.add(login["password"] or login["token"])
    return found | {unquote(each) for each in found}


def spellings(secret: str) -> set[str]:
    """Return a secret as tools may print it: as it is, and encoded or decoded as part of an address."""
    return {secret, quote(secret, safe=""), unquote(secret)}


def telling(secrets: Iterable[str]) -> tuple[str, ...]:
    """Those that are long enough to be looked for, the longest first: one may be part of another."""
    return tuple(sorted({each for each in secrets if len(each) >= SHORTEST}, key=lambda each: (-len(each), each)))


def without(secrets: tuple[str, ...], line: str) -> str:
    """A line as it may be printed."""
    for secret in secrets:
        line = line.replace(secret, "***")
    return without_logins(line)
