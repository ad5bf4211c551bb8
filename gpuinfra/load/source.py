"""A file's text, and places in it."""

from __future__ import annotations

import codecs
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from gpuinfra.diagnostics import Code, Diagnostic, Problem, Span

# A hundred long specs fit. The YAML parser takes seconds for more, and no spec is more.
LARGEST = 256 * 1024

# What YAML allows to stand in a file.
_NOT_ALLOWED = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

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


@dataclass(frozen=True)
class Source:
    """Text with a name. Offsets count characters from 0."""

    name: str
    text: str

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(found.end() for found in re.finditer(r"\r\n|\n|\r", self.text))]

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column, both from 1."""
        line = bisect_right(self._line_starts, offset)
        return line, offset - self._line_starts[line - 1] + 1

    def span(self, start: int, end: int) -> Span:
        """The stretch from `start` to before `end`, with its first line to show."""
        start = min(start, len(self.text))
        line, column = self.position(start)
        end_line, end_column = self.position(min(max(end, start), len(self.text)))
        return Span(self.name, line, column, end_line, end_column, self._showable(line))

    def _showable(self, number: int) -> str:
        """A line as it may be printed: a diagnostic ends up in the logs of a CI, so no secret goes along."""
        return self._showable_lines[number - 1]

    @cached_property
    def _showable_lines(self) -> list[str]:
        """All at once: what a line may show depends on those above, and many diagnostics may share one line."""
        ends = [*self._line_starts[1:], len(self.text)]
        lines = [self.text[start:end].rstrip("\r\n") for start, end in zip(self._line_starts, ends, strict=True)]
        hidden = {*_lines_of_secrets(lines)}
        for secret in PRIVATE_KEY.finditer(self.text):
            hidden |= {*range(self.position(secret.start())[0] - 1, self.position(secret.end() - 1)[0])}
        return ["" if number in hidden else masked(line) for number, line in enumerate(lines)]


def _lines_of_secrets(lines: list[str]) -> Iterator[int]:
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


def decode(name: str, data: bytes) -> Source:
    """The text of a file. A byte order mark is dropped; what cannot be YAML text raises a Problem."""
    if len(data) > LARGEST:
        raise _unreadable(
            Diagnostic(
                Code.FILE_TOO_LARGE,
                "file too large",
                Span(name, 1, 1, 1, 1, ""),
                note=f"a spec file has at most {LARGEST // 1024} KiB",
                help="split it into several files; `gpuinfra validate` takes a directory",
            )
        )
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise _unreadable(
            Diagnostic(
                Code.NOT_UTF8,
                "not UTF-8 text",
                Span(name, 1, 1, 1, 1, ""),
                note="the file starts with the mark of UTF-16",
                help="save it as UTF-8",
            )
        )
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        source = Source(name, data.decode("utf-8"))
    except UnicodeDecodeError as error:
        before = Source(name, data[: error.start].decode("utf-8"))
        raise _unreadable(
            Diagnostic(
                Code.NOT_UTF8,
                "not UTF-8 text",
                before.span(len(before.text), len(before.text)),
                label=f"byte 0x{data[error.start]:02X} is not UTF-8",
                help="save it as UTF-8",
            )
        ) from None
    if found := _NOT_ALLOWED.search(source.text):
        raise _unreadable(
            Diagnostic(
                Code.BAD_CHARACTER,
                "character not allowed",
                source.span(found.start(), found.end()),
                label=f"U+{ord(found.group()):04X} cannot stand in a YAML file",
                help="remove it; in a double-quoted text it can be written as an escape",
            )
        )
    return source


def _unreadable(diagnostic: Diagnostic) -> Problem:
    return Problem(diagnostic)
