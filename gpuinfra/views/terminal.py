"""Consoles that respect NO_COLOR and pipes, text that is safe for terminals and CI systems, and complete commands.

Azure Pipelines and TeamCity look for `##vso[…]` and `##teamcity[…]` anywhere in a line, and GitHub for `##[…]`;
GitHub also takes a line that starts with `::`. https://learn.microsoft.com/azure/devops/pipelines/scripts/logging-commands,
https://docs.github.com/actions/reference/workflow-commands-for-github-actions
"""

from __future__ import annotations

import errno
import io
import os
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console, ConsoleRenderable

TAB = "→   "


def results() -> Console:
    """Return the console for results: standard output."""
    return _console(stderr=False)


def messages() -> Console:
    """Return the console for messages: standard error."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=True)
    console.push_render_hook(CommandCompleter())  # type: ignore[arg-type]  # its base class would import rich
    if stderr:
        # rich would exit on a broken pipe; the program must continue, to deallocate the machine.
        console.on_broken_pipe = lambda: setattr(console, "quiet", True)  # type: ignore[method-assign]
    return console


class TerminalFile(io.FileIO):
    """A terminal that may close. Text for a closed terminal is dropped.

    The kernel refuses writes before it sends SIGHUP. An error in between would end a teardown half-way; SIGHUP
    interrupts the command, unless `nohup` lets the command continue.
    """

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)
            return len(data)


def survive_closed_terminal(stream: TextIO) -> TextIO:
    """Return a stream to the same place. If that is a terminal, it may close."""
    if not stream.isatty():
        return stream
    raw = TerminalFile(stream.fileno(), "wb", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding=stream.encoding, line_buffering=True)


def harmless(text: str) -> str:
    """Return `text` on one line, without control and bidirectional characters."""
    return "".join(TAB if character == "\t" else _harmless(character) for character in text)


def _harmless(character: str) -> str:
    # C: control, format (bidirectional marks among them), surrogates; Zl and Zp: line and paragraph separators.
    category = unicodedata.category(character)
    return "\N{REPLACEMENT CHARACTER}" if category[0] == "C" or category in {"Zl", "Zp"} else character


_HASHES = r"#(?=#\w{0,40}\[)"
_COLOURS_AND_SPACE = r"(?:\s|\x1b\[[0-9;]*m)*"
_WHOLE = re.compile(
    rf"{_HASHES}|(?:^|(?<=[\r\n])){_COLOURS_AND_SPACE}:(?=:)|:(?=:[a-z][a-z-]*(?:\s[^\r\n]*)?::)", re.IGNORECASE
)
# A command that one write begins and the next one completes.
_BEGUN = re.compile(rf"(?:#|##\w{{0,40}}|(?:^|[\r\n]){_COLOURS_AND_SPACE}:)\Z")
_IN_JSON = re.compile(rf"{_HASHES}|:(?=:\w)")
_MAX_BEGINNING = 200


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
        # Like every text stream, refuse bytes with a TypeError: click finds out so what a stream takes.
        safe = neutralize(self._line[:0] + text, self._line)
        self._line = re.split(r"[\r\n]", f"{self._line}{safe}")[-1][-_MAX_BEGINNING:]
        self._write(safe)
        return len(text)


def filter_commands(stream: TextIO) -> None:
    """Neutralize commands in all text that is written to a stream from now on."""
    if not isinstance(stream.write, CommandFilter):
        stream.write = CommandFilter(stream)  # type: ignore[method-assign]


# In backquotes, and with a command. `gpuinfra sandbox` and `--help` mean the same everywhere.
_COMMAND = re.compile(r"(?<=`gpuinfra)(?= (?!sandbox\b)[a-z][^`]*`)(?! [^`]*--help)")
_given: dict[str, str] = {}


def repeat_options(*, sandbox: bool, workspace: Path | str | None) -> None:
    """Repeat these options from now on. Settings from the environment still apply, so they need no repetition."""
    _given.clear()
    if sandbox:
        _given["--sandbox"] = " --sandbox"
    if workspace is not None:
        _given["--workspace"] = f" --workspace {quote(str(workspace))}"


def complete(text: str) -> str:
    """Return `text`, in which the commands in backquotes have the options that the user gave."""
    for place, options in reversed(list(_missing(text))):
        text = f"{text[:place]}{options}{text[place:]}"
    return text


def complete_command(command: str) -> str:
    """Return a command with the options that the user gave."""
    return complete(f"`{command}`")[1:-1]


def _missing(text: str) -> Iterator[tuple[int, str]]:
    """Yield where options are missing, and which: after `gpuinfra`, as the rest may belong to a script."""
    if not _given:
        return
    for found in _COMMAND.finditer(text):
        words = text[found.end() : text.index("`", found.end())].split()
        if options := "".join(option for name, option in _given.items() if name not in words):
            yield found.end(), options


class CommandCompleter:
    """Complete the commands in everything that a console prints."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [self._complete(each) for each in renderables] if _given else renderables

    def _complete(self, renderable: Any) -> Any:
        from rich.text import Text

        if not isinstance(renderable, Text):
            return renderable
        for place, options in reversed(list(_missing(renderable.plain))):
            before, after = renderable.divide([place])
            renderable = before.append(options).append_text(after)
        return renderable
