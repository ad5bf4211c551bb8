"""Neutralize CI commands in text from users and jobs before a CI system reads it.

Azure Pipelines and TeamCity look for `##vso[…]` and `##teamcity[…]` anywhere in a line, and GitHub for `##[…]`;
GitHub also takes a line that starts with `::`. https://learn.microsoft.com/azure/devops/pipelines/scripts/logging-commands,
https://docs.github.com/actions/reference/workflow-commands-for-github-actions
"""

from __future__ import annotations

import re
from typing import TextIO

_HASHES = r"#(?=#\w{0,40}\[)"
_COLOURS_AND_SPACE = r"(?:\s|\x1b\[[0-9;]*m)*"
_WHOLE = re.compile(
    rf"{_HASHES}|(?:^|(?<=[\r\n])){_COLOURS_AND_SPACE}:(?=:)|:(?=:[a-z][a-z-]*(?:\s[^\r\n]*)?::)", re.IGNORECASE
)
# A command that one write begins and the next one completes.
_BEGUN = re.compile(rf"(?:#|##\w{{0,40}}|(?:^|[\r\n]){_COLOURS_AND_SPACE}:)\Z")
_IN_JSON = re.compile(rf"{_HASHES}|:(?=:\w)")
_LONGEST_BEGINNING = 200


def neutralize(text: str, before: str = "") -> str:
    """Return `text` with a space in every command; `before` is what was printed of the same line."""
    start = len(before) if _BEGUN.search(before) else 0
    whole = f"{before}{text}"
    done, place = [], len(before)
    for found in _WHOLE.finditer(whole):
        # The first write is already out, so the space goes to the start of the second one.
        end = max(found.end(), start)
        if end >= len(before):
            done += [whole[place:end], " "]
            place = end
    return "".join([*done, whole[place:]])


def neutralize_json(text: str) -> str:
    """Return JSON with the same values and no command in it. Outside of its strings there are no such characters."""
    return _IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class CommandFilter:
    """A stream's `write` that neutralizes commands. Bytes for the stream's `buffer`, as jobs print them, pass by it."""

    def __init__(self, stream: TextIO) -> None:
        self._write = stream.write
        self._line = ""

    def __call__(self, text: str, /) -> int:
        """Write a text."""
        # Like every text stream, refuse bytes with a TypeError: click finds out so what a stream takes.
        safe = neutralize(self._line[:0] + text, self._line)
        self._line = re.split(r"[\r\n]", f"{self._line}{safe}")[-1][-_LONGEST_BEGINNING:]
        self._write(safe)
        return len(text)


def filter_commands(stream: TextIO) -> None:
    """Neutralize commands in all text that is written to a stream from now on."""
    if not isinstance(stream.write, CommandFilter):
        stream.write = CommandFilter(stream)  # type: ignore[method-assign]
