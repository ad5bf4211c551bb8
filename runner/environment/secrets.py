"""What lets one in at the addresses of a file: it must be in no image, and in nothing that is printed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import unquote

from gpuinfra.load.masks import CHANNEL_TOKEN, LOGIN, SECRET_NAME, without_logins

_SIGNATURE = re.compile(r"[?&]sig=(?P<value>[^&#\s\"']+)", re.IGNORECASE)
# As pip writes them: it fills them in from the variables of the one who calls it.
_VARIABLE = re.compile(r"\$\{(?P<name>[A-Z0-9_]+)\}")
# Others may be versions or folders, which have to be seen.
_SECRET_NAME = re.compile(rf"{SECRET_NAME}|PASS|KEY|AUTH|PAT(?![A-Z])")
# What is shorter would be found in half of all words.
_SHORTEST = 6


def filled_in(line: str, variables: Mapping[str, str]) -> tuple[str, set[str]]:
    """A line with the variables that there are, and the values of those that are secret by their names.

    Others are left to the image.
    """
    values = {each["name"]: variables.get(each["name"]) for each in _VARIABLE.finditer(line)}
    known = {name: value for name, value in values.items() if value and "\n" not in value}
    secrets = {value for name, value in known.items() if _SECRET_NAME.search(name)}
    return _VARIABLE.sub(lambda found: known.get(found["name"], found[0]), line), secrets


def secrets_in(text: str) -> set[str]:
    """Passwords, tokens and signatures in the addresses of a text, as they are written and as they are meant."""
    found = {each["value"] for each in _SIGNATURE.finditer(text)}
    found |= {each["token"] for each in CHANNEL_TOKEN.finditer(text) if "://" in text}
    for login in LOGIN.finditer(text):
        found.add(login["password"] or login["token"])
    return found | {unquote(each) for each in found}


def telling(secrets: Iterable[str]) -> tuple[str, ...]:
    """Those that are long enough to be looked for, the longest first: one may be part of another."""
    return tuple(sorted({each for each in secrets if len(each) >= _SHORTEST}, key=lambda each: (-len(each), each)))


def without(secrets: tuple[str, ...], line: str) -> str:
    """A line as it may be printed."""
    for secret in secrets:
        line = line.replace(secret, "***")
    return without_logins(line)
