"""Files that may be specs: found without loading them, their text, and that text without secrets."""

import codecs
import os
import re
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gpuinfra.diagnostics import Code, Diagnostic, Problem, Span

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


# Enough for a hundred long specs. The YAML parser needs seconds for more.
MAX_BYTES = 256 * 1024
# All characters that YAML does not allow.
_NOT_ALLOWED = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Source:
    """Named text. Offsets count characters from 0."""

    name: str
    text: str
    shows_lines: bool = True
    """Whether diagnostics may show its lines."""

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(found.end() for found in re.finditer(r"\r\n|\n|\r", self.text))]

    def position(self, offset: int) -> tuple[int, int]:
        """Return line and column, from 1."""
        line = bisect_right(self._line_starts, offset)
        return line, offset - self._line_starts[line - 1] + 1

    def span(self, start: int, end: int) -> Span:
        """Return the span from `start` to before `end`, with its first line."""
        start = min(start, len(self.text))
        line, column = self.position(start)
        end_line, end_column = self.position(min(max(end, start), len(self.text)))
        return Span(self.name, line, column, end_line, end_column, self._showable(line))

    def _showable(self, number: int) -> str:
        """Return a line without secrets, safe for CI logs."""
        return self._showable_lines[number - 1] if self.shows_lines else ""

    @cached_property
    def _showable_lines(self) -> list[str]:
        """The lines without secrets. Whether a line is hidden depends on the lines above."""
        ends = [*self._line_starts[1:], len(self.text)]
        lines = [self.text[start:end].rstrip("\r\n") for start, end in zip(self._line_starts, ends, strict=True)]
        hidden = {*lines_of_secrets(lines)}
        for secret in PRIVATE_KEY.finditer(self.text):
            hidden |= {*range(self.position(secret.start())[0] - 1, self.position(secret.end() - 1)[0])}
        return ["" if number in hidden else masked(line) for number, line in enumerate(lines)]


def decode(name: str, data: bytes, *, shows_lines: bool = True) -> Source:
    """Decode a file, without its byte order mark. Raises a Problem if it cannot be YAML text."""
    start = Span(name, 1, 1, 1, 1, "")
    if len(data) > MAX_BYTES:
        note, help_line = (
            f"the limit is {MAX_BYTES // 1024} KiB",
            "split it into several files; commands accept a folder",
        )
        raise Problem(Diagnostic(Code.FILE_TOO_LARGE, "file too large", start, note=note, help=help_line))
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        note, help_line = "the file is UTF-16", "save it as UTF-8"
        raise Problem(Diagnostic(Code.NOT_UTF8, "not UTF-8 text", start, note=note, help=help_line))
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        source = Source(name, data.decode("utf-8"), shows_lines)
    except UnicodeDecodeError as error:
        before = Source(name, data[: error.start].decode("utf-8"), shows_lines)
        span = before.span(len(before.text), len(before.text))
        label = f"byte 0x{data[error.start]:02X} is not UTF-8"
        raise Problem(Diagnostic(Code.NOT_UTF8, "not UTF-8 text", span, label, help="save it as UTF-8")) from None
    if found := _NOT_ALLOWED.search(source.text):
        label = f"U+{ord(found.group()):04X} is not allowed in YAML"
        help_line = "remove it, or write it as an escape in double quotes"
        span = source.span(found.start(), found.end())
        raise Problem(Diagnostic(Code.BAD_CHARACTER, "character not allowed", span, label, help=help_line))
    return source


_SUFFIXES = {".yaml", ".yml"}
_SKIPPED = {"node_modules", "__pycache__"}
# Also match misspelt versions: an error is better than an ignored spec.
_SPEC_MENTION = re.compile(rb"""apiVersion["']?\s*:\s*["']?\s*(?:gpu|(?i:gpu-?infra))""")


def yaml_files(directory: Path) -> Iterator[Path]:
    """Return every YAML file below, without hidden folders and those of other tools."""
    for folder, subfolders, names in os.walk(directory):
        subfolders[:] = [name for name in subfolders if not name.startswith(".") and name not in _SKIPPED]
        for name in names:
            if os.path.splitext(name)[1] in _SUFFIXES and (file := Path(folder, name)).is_file():  # noqa: PTH122 quicker
                yield file


def mentions_spec(content: bytes) -> bool:
    """Return whether the content may be a spec."""
    return _SPEC_MENTION.search(content) is not None


def has_spec(directory: Path) -> bool:
    """Return whether any file below may be a spec."""
    return any(_file_mentions_spec(file) for file in yaml_files(directory))


def holds_spec(directory: Path) -> bool:
    """Return whether a file in the folder itself may be a spec."""
    try:
        files = [file for file in directory.iterdir() if file.suffix in _SUFFIXES and file.is_file()]
    except OSError:
        return False
    return any(map(_file_mentions_spec, files))


_NAME_LINE = re.compile(rb"""^name\s*:\s*["']?([A-Za-z0-9][A-Za-z0-9-]*)""", re.MULTILINE)


def likely_names(directory: Path) -> Iterator[str]:
    """Return the names in the specs of a folder and its subfolders, for completion.

    It must be quick, so specs are not parsed, and deeper folders are not searched: this may be the home folder.
    """
    for pattern in ("*", "[!.]*/*"):
        for file in directory.glob(pattern):
            if file.suffix not in _SUFFIXES or not file.is_file():
                continue
            with suppress(OSError, ValueError), file.open("rb") as stream:
                content = stream.read(MAX_BYTES)
                if mentions_spec(content):
                    yield from (found.decode() for found in _NAME_LINE.findall(content))


def _file_mentions_spec(file: Path) -> bool:
    try:
        with file.open("rb") as stream:
            return mentions_spec(stream.read(MAX_BYTES + 1))
    except (OSError, ValueError):
        return False
