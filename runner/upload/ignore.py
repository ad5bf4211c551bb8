"""What the user's ignore files leave out, as git reads them.

The library turns a line into a regular expression. How lines and files come together is done here, for folders that are
left out are not entered: no rule has to hold for what is below the thing that it names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

GIT = ".gitignore"
NAMES = (".gpuinfraignore", ".amlignore", GIT)
"""The first one that is in the project's own folder counts, there and in all folders below."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# How the library marks, in its expressions, the slash behind the thing that a line names.
FOLDER = "ps_d"


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
            continue  # git passes over what is no pattern as well
        if pattern.include is not None and pattern.regex is not None:
            last = text.rstrip("/ ").rpartition("/")[2]
            is_by_name = re.search(r"[*?\[]", last) is None
            yield Rule(pattern.include, pattern.regex, FOLDER in pattern.regex.groupindex, is_by_name)
