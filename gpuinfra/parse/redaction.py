"""What may be a secret in a text, by the look of it: diagnostics end up in the logs of a CI."""

from __future__ import annotations

import re
from collections.abc import Iterator

# Keys of these names do not belong in a spec, which is just when a diagnostic shows their line.
SECRET_NAME = r"(?i:(?:password|passwd|passphrase|secret|token|credential)s?)"  # noqa: S105 a pattern, not a secret
# Files of others have more of them, misspelt ones too. A key that is public, or a key of nothing, is no secret.
_MISSPELT = r"pas{1,3}w[or]{0,3}[dt]|pas{1,3}[or]{1,3}d|ps{1,2}wo?r?d"
_PASSWORD = rf"{_MISSPELT}|pwd|pass|passphrase|secret|token|credential"
_KEY = r"(?<=[a-z0-9_.-])(?<!public)(?<!public[_.-])(?<!host)(?<!host[_.-])key|(?<![a-z])sas"
_NUMBER = r"s?(?:[_-]?[0-9]{1,3})?"
# In what Spark is to have, the account's name follows.
_ACCOUNT = r"(?:\.[a-z0-9-]{1,63}\.(?:blob|dfs)\.core\.[a-z.]{1,30})?"
_NAME = rf"(?:(?:{_PASSWORD}){_NUMBER}|(?:{_KEY}){_NUMBER}(?![\"']?\s*[:=]\s*[\"']?(?:~/|ssh-|ecdsa-))){_ACCOUNT}[\"']?"
_FLAG = rf"(?<![\w-])--?[\w-]{{0,40}}{_NAME}"
# As a key or a variable, `password: …` and `password=…`, as an argument, `--password …`, and with the colon forgotten.
_SECRET = re.compile(
    rf"((?:{_NAME}\s*[:=]|{_FLAG}[\s,]|^\s*[\"']?[\w.-]{{0,40}}{_NAME}\s(?!\s*[:=]))[\s,]*)\S.*", re.IGNORECASE
)
# Its value stands on the lines below.
_SECRET_BELOW = re.compile(
    rf"(?:{_NAME}\s*:\s*(?:[|>&!]\S*(?:\s+|$))*(?:#.*)?|{_FLAG}\s*,?\s*|^\s*\?\s+[\w.-]{{0,40}}{_NAME}\s*)$",
    re.IGNORECASE,
)
_INDENT = re.compile(r"\s*(?:[-?]\s+)*")
_OTHER_KEY = re.compile(r"[\"']?[\w.-]+[\"']?\s*:(?:\s|$)")
# The signature of a shared access link of Azure Storage is all that it takes to use it.
_SIGNATURE = re.compile(r"([?&]sig=|\bsig=(?=\S{20}))[^&#\s\"']+", re.IGNORECASE)
PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z ]*PRIVATE KEY(?: BLOCK)?-----|\Z)", re.DOTALL
)
# Before the `@` of an address: `user:password`, which is no port, or a token that is both.
LOGIN = re.compile(
    r"(?<=://)(?:[^\s/:@]*:(?![0-9]{1,5}(?:/|$))(?P<password>(?:[^\s@:]|:(?!//))+)|(?P<token>[^\s/:@]+))@(?:[^\s/@]*@)*"
)
# A channel of conda's for those who have a token.
CHANNEL_TOKEN = re.compile(r"(?<=/t/)(?P<token>[^\s/\"']{8,})")


def masked(line: str) -> str:
    """A line without the secrets that are plain to see in it."""
    return _SECRET.sub(r"\1***", without_logins(line))


def without_logins(text: str) -> str:
    """A text, of ours perhaps, without what lets one in at the addresses in it."""
    text = _SIGNATURE.sub(r"\1***", text)
    text = LOGIN.sub(lambda found: found[0] if found["token"] == "git" else "***@", text)  # noqa: S105 a user's name
    return CHANNEL_TOKEN.sub("***", text) if "://" in text else text


def lines_of_secrets(lines: list[str]) -> Iterator[int]:
    """The lines, counted from 0, that belong to the value of a secret further up.

    The file may be no YAML at all, so only the eye's rules hold: what is further in belongs to the key above.
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
        is_below = _SECRET_BELOW.search(line) is not None
        if is_below or _SECRET.search(line):
            indent, is_first = own, is_below


def _indent(line: str) -> int:
    found = _INDENT.match(line)
    return found.end() if found else 0
