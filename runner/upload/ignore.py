"""What uploads leave out: what ignore files name, files with credentials, and copies of outputs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

GIT = ".gitignore"
NAMES = (".gpuinfraignore", ".amlignore", GIT)
"""The first one that is in the project's own folder counts, there and in all folders below."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# How the library marks, in its expressions, the slash behind the thing that a line names.
FOLDER = "ps_d"
# How it writes `*`, `**` between folders, and "in any folder".
STAR, BETWEEN, ANYWHERE = "[^/]*", "(?:/.+)?", "^(?:.+/)?"
_STARS = re.compile(r"(?:\[\^/\]\*)+")
_ELEMENT = r"(?!\[\^/\]\*)(?:\\.|\[\^?\]?[^\]]*\]|[^\\\[/()*])"
_BEFORE_STAR = re.compile(rf"\[\^/\]\*((?:{_ELEMENT})+)(?=\[\^/\]\*)", re.DOTALL)
_ESCAPE_OR_CLASS = re.compile(r"\\.|(\[(?!\^/\])\^?\]?[^\]]*\])", re.DOTALL)


class Rule(NamedTuple):
    """One line of an ignore file."""

    leaves_out: bool
    expression: re.Pattern[str]
    marks_folder: bool
    is_by_name: bool = False
    """Whether its last part is a plain name, without wildcards."""

    def names(self, path: str, is_folder: bool) -> bool:
        """Whether the line is about this very path, and not only about a folder that it is in."""
        found = self.expression.search(path)
        if found and not (self.marks_folder and found.group(FOLDER)):
            return True
        return is_folder and self.marks_folder and self._names_folder(f"{path}/")

    def _names_folder(self, path: str) -> bool:
        last = len(path) - 1
        # An expression that is bound to no beginning finds the first slash; then the last is looked at by itself.
        return any(
            found is not None and found.start(FOLDER) == last
            for found in (self.expression.search(path), self.expression.search(path, last))
        )


class Ignore:
    """The ignore files from the project's folder down to one folder in it."""

    def __init__(self, folder: str = "", rules: tuple[Rule, ...] = (), above: Ignore | None = None) -> None:
        self._start = len(_letters(folder)) + 1 if folder else 0
        self._rules, self._above = rules, above
        self._is_empty: bool = not rules and (above is None or above._is_empty)

    def below(self, folder: str, content: bytes) -> Ignore:
        """With the ignore file of a folder further down, whose word goes first."""
        return Ignore(folder, tuple(_rules(content)), self)

    def leaves_out(self, path: str, is_folder: bool) -> bool:
        """Whether this path, which is in a folder that was not left out itself, is left out."""
        if self._is_empty:
            return False
        level: Ignore | None = self
        path = _letters(path)
        while level:
            relative = path[level._start :]
            for rule in level._rules:
                if rule.names(relative, is_folder):
                    return rule.leaves_out
            level = level._above
        return False

    def includes_by_name(self, path: str, is_folder: bool) -> bool:
        """Whether a line such as `!.env` names this path, and no later line leaves it out again."""
        level: Ignore | None = self
        path = _letters(path)
        while level:
            relative = path[level._start :]
            for rule in level._rules:
                if (rule.leaves_out or rule.is_by_name) and rule.names(relative, is_folder):
                    return not rule.leaves_out
            level = level._above
        return False


def _letters(path: str) -> str:
    """A letter a byte: that is what `?` stands for to git."""
    return path if path.isascii() else path.encode("utf-8", "surrogateescape").decode("latin-1")


def _rules(content: bytes) -> Iterator[Rule]:
    """The last line first: it is the last that fits that counts."""
    # It takes a while, and many projects have no such file.
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    lines = content.removeprefix(BYTE_ORDER_MARK).split(b"\n")
    for line in reversed(lines):
        text = line.removesuffix(b"\r").decode("latin-1")
        if text.endswith("/**/"):
            text += "*/"  # means the same to git: every folder below; the library takes it for the folder itself
        try:
            pattern = GitIgnoreSpecPattern(text)
        except ValueError:
            continue  # git ignores invalid patterns as well
        if pattern.include is not None and pattern.regex is not None:
            last = text.rstrip("/ ").rpartition("/")[2]
            is_by_name = re.search(r"[*?\[]", last) is None
            expression = re.compile(without_backtracking(pattern.regex.pattern))
            yield Rule(pattern.include, expression, FOLDER in expression.groupindex, is_by_name)


def without_backtracking(expression: str) -> str:
    """Return an expression of the library that takes no more than linear time for each of its parts.

    What stands between two wildcards is searched once, at its first place: the wildcard behind it covers the rest.
    Otherwise a line such as `*a*a*a*a*b` of a foreign project takes longer than anyone waits.
    """
    text = _BEFORE_STAR.sub(r"(?>[^/]*?\1)", _STARS.sub(STAR, expression))
    # A class stands for one letter of a name, and never for a slash.
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
    # Private keys of OpenSSH. `id_map.json` is data, and `id_rsa.pub` is public.
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
    """Whether a file or folder of this name usually holds credentials."""
    return (_FOLDER if is_folder else _FILE).fullmatch(name) is not None


COPIES_FILE = "copied-outputs"


def copied_folders(state: Path | None) -> frozenset[str]:
    """Return the folders, by their paths in the project."""
    try:
        return frozenset(_text(state / COPIES_FILE).splitlines()) if state else frozenset()
    except OSError:
        return frozenset()


def leave_out_of_uploads(state: Path, project: Path, folder: Path) -> bool | None:
    """Have uploads leave out a folder that outputs are about to be copied to.

    Return None if it is not in the project, and False if it holds other files, which are part of the project.
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
