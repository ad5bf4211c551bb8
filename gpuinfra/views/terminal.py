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
import textwrap
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console, ConsoleRenderable
    from rich.text import Text

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


UNKNOWN = "-"
Cell = str | tuple[str, str]
"""A text, or a text with its style."""


def width_of(console: Console) -> int | None:
    """Return how wide lines can be; None in a pipe or a file, which get all columns."""
    return console.width if console.is_terminal else None


def wrapped(words: str, width: int | None, indent: int) -> str:
    """Return text with line breaks between its words, for a place that is indented. Commands stay on one line."""
    if width is None:
        return words
    text = _IN_BACKQUOTES.sub(lambda found: found[0].replace(" ", _KEPT_SPACE), words)
    lines = textwrap.wrap(text, max(1, width - indent), break_long_words=False, break_on_hyphens=False)
    return f"\n{' ' * indent}".join(lines).replace(_KEPT_SPACE, " ")


_IN_BACKQUOTES = re.compile("`[^`]*`")
_KEPT_SPACE = "\0"


def table(
    rows: Iterable[Sequence[Cell]], right: Collection[int] = (), *, least: Sequence[int] = (), width: int | None = None
) -> Text:
    """Return aligned lines, the first one in bold. The columns in `right` are right-aligned.

    If the lines are wider than `width`, the columns in `least` are left out, the first of them first.
    """
    from rich.text import Text

    cells = [[(cell, "") if isinstance(cell, str) else cell for cell in row] for row in rows]
    texts = [[text for text, _ in row] for row in cells]
    kept = _fitting(_padded(texts, right), least, width)
    lines = []
    for number, padded in enumerate(_padded(texts, right)):
        line = Text(style="" if number else "bold")
        for column in kept:
            line.append("" if column == kept[0] else "  ").append(padded[column], cells[number][column][1] or None)
        line.rstrip()
        lines.append(line)
    return Text("\n").join(lines)


def columns(
    rows: Sequence[Sequence[str]], right: Collection[int] = (), *, least: Sequence[int] = (), width: int | None = None
) -> list[str]:
    """Return aligned lines. The columns in `right` are right-aligned; for `least`, see `table`."""
    padded = _padded(rows, right)
    kept = _fitting(padded, least, width)
    return ["  ".join(row[column] for column in kept).rstrip() for row in padded]


def _fitting(padded: Sequence[Sequence[str]], least: Sequence[int], width: int | None) -> list[int]:
    """Return the columns that fit."""
    from rich.cells import cell_len

    kept = list(range(len(padded[0]))) if padded else []
    for column in least:
        if width is None or max(cell_len("  ".join(row[each] for each in kept).rstrip()) for row in padded) <= width:
            break
        kept.remove(column)
    return kept


def _padded(rows: Sequence[Sequence[str]], right: Collection[int]) -> list[list[str]]:
    from rich.cells import cell_len

    shown = [[harmless(cell) for cell in row] for row in rows]
    widths = [max(cell_len(cell) for cell in column) for column in zip(*shown, strict=True)]

    def padded(column: int, cell: str) -> str:
        space = " " * (widths[column] - cell_len(cell))
        return space + cell if column in right else cell + space

    return [[padded(column, cell) for column, cell in enumerate(row)] for row in shown]


def counted(count: int, noun: str) -> str:
    """Return `1 file` or `2 files`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def per_hour(dollars: float | None) -> str:
    """Return a price per hour, to a tenth of a cent."""
    return UNKNOWN if dollars is None else f"${dollars:.3f}"


def cost(dollars: float | None) -> str:
    """Return an amount; small ones have four decimals, so that they are not $0.00."""
    if dollars is None:
        return UNKNOWN
    return f"${dollars:.4f}" if 0 < dollars < 0.1 else f"${dollars:.2f}"


def timestamp(at: datetime | None) -> str:
    """Return a time in UTC."""
    return UNKNOWN if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"


def duration(seconds: float, *, exact: bool = False) -> str:
    """Return `12 s`, `3 min 12 s`, `1 h 30 min` or `2 d 4 h`: at most two units; `exact` adds tenths below a minute."""
    if exact and seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    units = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    first = next((place for place, (count, _) in enumerate(units) if count), len(units) - 1)
    return " ".join(f"{count} {unit}" for count, unit in units[first : first + 2] if count) or "0 s"


def can_show(console: Console, text: str) -> bool:
    """Return whether the stream's encoding has these characters."""
    try:
        text.encode(console.encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def sandbox_option(*, simulated: bool) -> str:
    """Return the option that a suggested command needs for the same cloud."""
    return " --sandbox" if simulated else ""


UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def byte_size(count: float) -> str:
    """Return `512 B`, `12.0 KiB` or `28.6 MiB`."""
    unit = size_unit(count)
    return f"{count / unit[1]:.1f} {unit[0]}" if unit else f"{round(count)} B"


def size_unit(count: float) -> tuple[str, int] | None:
    """Return the largest unit that fits, as name and bytes, or None for plain bytes."""
    # GiB only from 10 GiB on: with one decimal, smaller amounts change too slowly.
    return next(((name, each) for name, each in UNITS if count >= (each if name != "GiB" else 10 * each)), None)
