"""What uploads leave out: ignore files, files with credentials, and outputs copied into the project."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

GIT = ".gitignore"
NAMES = (".gpuinfraignore", ".amlignore", GIT)
"""The first of these that is in the project's top folder is used, there and in all folders below."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# The group in the library's expressions that matches the slash after a folder.
FOLDER = "ps_d"
# The library's expressions for `*`, for `**` between folders, and for "in any folder".
STAR, BETWEEN, ANYWHERE = "[^/]*", "(?:/.+)?", "^(?:.+/)?"
_STARS = re.compile(r"(?:\[\^/\]\*)+")
_ELEMENT = r"(?!\[\^/\]\*)(?:\\.|\[\^?\]?[^\]]*\]|[^\\\[/()*])"
_BEFORE_STAR = re.compile(rf"\[\^/\]\*((?:{_ELEMENT})+)(?=\[\^/\]\*)", re.DOTALL)
_ESCAPE_OR_CLASS = re.compile(r"\\.|(\[(?!\^/\])\^?\]?[^\]]*\])", re.DOTALL)


class Ignored(NamedTuple):
    """A file or folder that an ignore file leaves out."""

    path: str
    is_folder: bool
    line: str
    """The line that does so, such as `.gitignore:4`."""

    @property
    def shown(self) -> str:
        """The path for people; that of a folder ends with a slash."""
        return f"{self.path}/" if self.is_folder else self.path


class Rule(NamedTuple):
    """One line of an ignore file."""

    leaves_out: bool
    expression: re.Pattern[str]
    marks_folder: bool
    is_by_name: bool = False
    """Whether the last part of the pattern is a name without wildcards."""
    line: int = 0

    def names(self, path: str, is_folder: bool) -> bool:
        """Return whether the line matches this path itself, and not only a folder above it."""
        found = self.expression.search(path)
        if found and not (self.marks_folder and found.group(FOLDER)):
            return True
        return is_folder and self.marks_folder and self._names_folder(f"{path}/")

    def _names_folder(self, path: str) -> bool:
        last = len(path) - 1
        # An unanchored expression finds the first slash, so try the last one as well.
        return any(
            found is not None and found.start(FOLDER) == last
            for found in (self.expression.search(path), self.expression.search(path, last))
        )


class Ignore:
    """The ignore files from the project's top folder down to one folder in it."""

    def __init__(
        self, folder: str = "", rules: tuple[Rule, ...] = (), above: Ignore | None = None, name: str = GIT
    ) -> None:
        self._file = f"{folder}/{name}" if folder else name
        self._start = len(_as_bytes(folder)) + 1 if folder else 0
        self._rules, self._above = rules, above
        self._is_empty: bool = not rules and (above is None or above._is_empty)

    def below(self, folder: str, content: bytes, name: str = GIT) -> Ignore:
        """Return these rules with the ignore file of a folder further down, which takes precedence."""
        return Ignore(folder, tuple(_rules(content)), self, name)

    def leaves_out(self, path: str, is_folder: bool) -> bool:
        """Return whether this path is left out. Its folder must not be left out."""
        return self.line_for(path, is_folder) is not None

    def line_for(self, path: str, is_folder: bool) -> str | None:
        """Return the line that leaves this path out, as `.gitignore:4`, or None. Its folder must not be left out."""
        if self._is_empty:
            return None
        level: Ignore | None = self
        path = _as_bytes(path)
        while level:
            relative = path[level._start :]
            for rule in level._rules:
                if rule.names(relative, is_folder):
                    return f"{level._file}:{rule.line}" if rule.leaves_out else None
            level = level._above
        return None

    def includes_by_name(self, path: str, is_folder: bool) -> bool:
        """Return whether a line such as `!.env` includes this path, and no later line leaves it out again."""
        level: Ignore | None = self
        path = _as_bytes(path)
        while level:
            relative = path[level._start :]
            for rule in level._rules:
                if (rule.leaves_out or rule.is_by_name) and rule.names(relative, is_folder):
                    return not rule.leaves_out
            level = level._above
        return False


def _as_bytes(path: str) -> str:
    """Return a path with one character per byte, because git's `?` matches one byte."""
    return path if path.isascii() else path.encode("utf-8", "surrogateescape").decode("latin-1")


def _rules(content: bytes) -> Iterator[Rule]:
    """Yield the rules of an ignore file, the last one first, because the last match decides."""
    # Slow to import, and many projects have no ignore file.
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    lines = content.removeprefix(BYTE_ORDER_MARK).split(b"\n")
    for number, line in reversed(list(enumerate(lines, 1))):
        text = line.removesuffix(b"\r").decode("latin-1")
        if text.endswith("/**/"):
            text += "*/"  # the same for git, but the library would match the folder itself
        try:
            pattern = GitIgnoreSpecPattern(text)
        except ValueError:
            continue  # git ignores invalid patterns too
        if pattern.include is not None and pattern.regex is not None:
            last = text.rstrip("/ ").rpartition("/")[2]
            is_by_name = re.search(r"[*?\[]", last) is None
            expression = re.compile(without_backtracking(pattern.regex.pattern))
            yield Rule(pattern.include, expression, FOLDER in expression.groupindex, is_by_name, number)


def without_backtracking(expression: str) -> str:
    """Return an equivalent expression of the library in which each part takes linear time.

    Text between two wildcards is matched only at its first occurrence: the wildcard after it covers the rest. Otherwise
    a pattern such as `*a*a*a*a*b` takes exponential time.
    """
    text = _BEFORE_STAR.sub(r"(?>[^/]*?\1)", _STARS.sub(STAR, expression))
    # A character class never matches a slash.
    text = _ESCAPE_OR_CLASS.sub(lambda found: f"(?!/){found[1]}" if found[1] else found[0], text)
    first, *others = text.split(BETWEEN)
    if not others:
        return text
    if first.startswith(ANYWHERE):
        first = f"^(?>(?:.+?/)??{first.removeprefix(ANYWHERE)}(?=/))"
    return "".join([first, *(f"(?>(?:/.+?)??{each}(?=/))" for each in others[:-1]), BETWEEN, others[-1]])


FILES = (
    r"\.env.*",
    r".*\.env",
    r".*\.(?:key|pem|pfx|p12|ppk|jks|keystore|kdbx|publishsettings)",
    # OpenSSH's private keys. `id_map.json` is data, and `id_rsa.pub` is public.
    r"id_[^.]*",
    r"id_(?:rsa|dsa|ecdsa|ecdsa_sk|ed25519|ed25519_sk)\.(?!pub$).*",
    r"[._]netrc",
    r"\.(?:pgpass|my\.cnf|npmrc|pypirc|git-credentials|htpasswd|boto|s3cfg|vault-token|databrickscfg|dockercfg)",
    r"credentials",
    r"(?:credentials|token|application_default_credentials|client_secret.*|service[-_]account.*|kaggle)\.json",
    r"secrets\.(?:ya?ml|json|toml|env)",
    r"terraform\.tfstate.*",
    r"(?:azureprofile|accesstokens|msal_token_cache.*|service_principal_entries)\.(?:json|bin)",
    r"kubeconfig",
)
FOLDERS = (r"\.(?:azure|aws|ssh|gnupg|kube|docker|gcloud)",)
_FILE, _FOLDER = (re.compile("|".join(names), re.IGNORECASE) for names in (FILES, FOLDERS))


def may_hold_credentials(name: str, is_folder: bool) -> bool:
    """Return whether a file or folder with this name usually holds credentials."""
    return (_FOLDER if is_folder else _FILE).fullmatch(name) is not None


COPIES_FILE = "copied-outputs"


def copied_folders(state: Path | None) -> frozenset[str]:
    """Return the folders with copies of outputs, as paths in the project."""
    try:
        return frozenset(_text(state / COPIES_FILE).splitlines()) if state else frozenset()
    except OSError:
        return frozenset()


def leave_out_of_uploads(state: Path, project: Path, folder: Path) -> bool | None:
    """Let uploads leave out a folder to which outputs will be copied.

    Return None if it is not in the project, and False if it contains other files, which belong to the project.
    """
    inside = Path(os.path.realpath(folder))
    root = Path(os.path.realpath(project))
    if not inside.is_relative_to(root):
        return None
    path = inside.relative_to(root).as_posix()
    known = copied_folders(state)
    if path in known:
        return True
    if (inside.is_dir() and any(inside.iterdir())) or "\n" in path:
        return False
    (state / COPIES_FILE).write_text(
        "".join(f"{each}\n" for each in sorted({*known, path})), "utf-8", "surrogateescape"
    )
    return True


def _text(file: Path) -> str:
    return file.read_text("utf-8", "surrogateescape")
