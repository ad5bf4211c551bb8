"""Ignore files: which paths of a project uploads leave out."""

from __future__ import annotations

import re
from collections.abc import Iterator
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


class Rule(NamedTuple):
    """One line of an ignore file."""

    leaves_out: bool
    expression: re.Pattern[str]
    marks_folder: bool
    is_by_name: bool = False
    """Whether the last part of the pattern is a name without wildcards."""

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

    def __init__(self, folder: str = "", rules: tuple[Rule, ...] = (), above: Ignore | None = None) -> None:
        self._start = len(_as_bytes(folder)) + 1 if folder else 0
        self._rules, self._above = rules, above
        self._is_empty: bool = not rules and (above is None or above._is_empty)

    def below(self, folder: str, content: bytes) -> Ignore:
        """Return these rules with the ignore file of a folder further down, which takes precedence."""
        return Ignore(folder, tuple(_rules(content)), self)

    def leaves_out(self, path: str, is_folder: bool) -> bool:
        """Return whether this path is left out. Its folder must not be left out."""
        if self._is_empty:
            return False
        level: Ignore | None = self
        path = _as_bytes(path)
        while level:
            relative = path[level._start :]
            for rule in level._rules:
                if rule.names(relative, is_folder):
                    return rule.leaves_out
            level = level._above
        return False

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
    for line in reversed(lines):
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
            yield Rule(pattern.include, expression, FOLDER in expression.groupindex, is_by_name)


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
