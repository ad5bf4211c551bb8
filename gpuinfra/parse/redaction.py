"""Redact possible secrets in text: diagnostics may end up in CI logs."""

import re
from collections.abc import Iterator

# Longer lines are hidden: people do not read them, and to search them takes a time that grows with the square.
MAX_LINE = 1000
# Keys with these names do not belong in a spec; a diagnostic shows their line.
SECRET_NAME = r"(?i:(?:password|passwd|passphrase|secret|token|credential)s?)"  # noqa: S105 a pattern, not a secret
# More names, also misspelt. Public keys and host keys are not secrets.
_MISSPELT = r"pas{1,3}w[or]{0,3}[dt]|pas{1,3}[or]{1,3}d|ps{1,2}wo?r?d"
_PASSWORD = rf"{_MISSPELT}|pwd|pass|passphrase|secret|token|credential"
_KEY = r"(?<=[a-z0-9_.-])(?<!public)(?<!public[_.-])(?<!host)(?<!host[_.-])key|(?<![a-z])sas"
_NUMBER = r"s?(?:[_-]?[0-9]{1,3})?"
# In Spark settings, the account's name follows.
_ACCOUNT = r"(?:\.[a-z0-9-]{1,63}\.(?:blob|dfs)\.core\.[a-z.]{1,30})?"
_NAME = rf"(?:(?:{_PASSWORD}){_NUMBER}|(?:{_KEY}){_NUMBER}(?![\"']?\s*[:=]\s*[\"']?(?:~/|ssh-|ecdsa-))){_ACCOUNT}[\"']?"
_FLAG = rf"(?<![\w-])--?[\w-]{{0,40}}{_NAME}"
# `password: …`, `password=…`, `--password …`, and with a forgotten colon.
_SECRET = re.compile(
    rf"((?:{_NAME}\s*[:=]|{_FLAG}[\s,]|^\s*[\"']?[\w.-]{{0,40}}{_NAME}\s(?!\s*[:=]))[\s,]*)\S.*", re.IGNORECASE
)
# The value is on the following lines.
_SECRET_BELOW = re.compile(
    rf"(?:{_NAME}\s*:\s*(?:[|>&!]\S*(?:\s+|$))*(?:#.*)?|{_FLAG}\s*,?\s*|^\s*\?\s+[\w.-]{{0,40}}{_NAME}\s*)$",
    re.IGNORECASE,
)
_INDENT = re.compile(r"\s*(?:[-?]\s+)*")
_OTHER_KEY = re.compile(r"[\"']?[\w.-]+[\"']?\s*:(?:\s|$)")
# The signature of an Azure Storage SAS link grants access.
_SIGNATURE = re.compile(r"([?&]sig=|\bsig=(?=\S{20}))[^&#\s\"']+", re.IGNORECASE)
PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z ]*PRIVATE KEY(?: BLOCK)?-----|\Z)", re.DOTALL
)
# Before the `@` of a URL: `user:password` (not a port), or a token.
LOGIN = re.compile(
    r"(?<=://)(?:[^\s/:@]*:(?![0-9]{1,5}(?:/|$))(?P<password>(?:[^\s@:]|:(?!//))+)|(?P<token>[^\s/:@]+))@(?:[^\s/@]*@)*"
)
# A private conda channel with a token.
CHANNEL_TOKEN = re.compile(r"(?<=/t/)(?P<token>[^\s/\"']{8,})")


def masked(line: str) -> str:
    """Return a line with its visible secrets replaced; nothing of a very long line."""
    if len(line) > MAX_LINE:
        return ""
    return _SECRET.sub(r"\1***", without_logins(line))


def without_logins(text: str) -> str:
    """Return text with the credentials of its URLs replaced."""
    text = _SIGNATURE.sub(r"\1***", text)
    text = LOGIN.sub(lambda found: found[0] if found["token"] == "git" else "***@", text)  # noqa: S105 a user's name
    return CHANNEL_TOKEN.sub("***", text) if "://" in text else text


def lines_of_secrets(lines: list[str]) -> Iterator[int]:
    """Return the lines, counted from 0, that belong to the value of a secret above.

    The file may be invalid YAML, so indentation decides: deeper lines belong to the key above.
    """
    indent: int | None = None
    is_first = False
    for number, line in enumerate(lines):
        own = _indent(line)
        if indent is not None and line.strip():
            if own > indent or (is_first and not _OTHER_KEY.match(line.strip())):
                yield number
                is_first = False
                continue
            indent = None
        if line.lstrip().startswith("#"):
            continue
        is_below = len(line) > MAX_LINE or _SECRET_BELOW.search(line) is not None
        if is_below or _SECRET.search(line):
            indent, is_first = own, is_below


def _indent(line: str) -> int:
    found = _INDENT.match(line)
    return found.end() if found else 0
