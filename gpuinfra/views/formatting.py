"""Format columns, money, times, durations and sizes for all views."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from gpuinfra.views.terminal import harmless

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

UNKNOWN = "-"


Cell = str | tuple[str, str]
"""A text, or a text with its style."""


def table(rows: Iterable[Sequence[Cell]], right: Collection[int] = ()) -> Text:
    """Return aligned lines, the first one in bold. The columns in `right` are right-aligned."""
    from rich.text import Text

    cells = [[(cell, "") if isinstance(cell, str) else cell for cell in row] for row in rows]
    lines = []
    for number, padded in enumerate(_padded([[text for text, _ in row] for row in cells], right)):
        line = Text(style="" if number else "bold")
        for column, (text, (_, style)) in enumerate(zip(padded, cells[number], strict=True)):
            line.append("  " if column else "").append(text, style or None)
        line.rstrip()
        lines.append(line)
    return Text("\n").join(lines)


def columns(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Return aligned lines. The columns in `right` are right-aligned."""
    return ["  ".join(row).rstrip() for row in _padded(rows, right)]


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
