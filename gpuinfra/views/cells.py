"""Small pieces that several views are made of: columns, money, moments, lengths of time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from gpuinfra.views.terminal import harmless

if TYPE_CHECKING:
    from rich.console import Console

UNKNOWN = "-"


def columns(rows: Sequence[Sequence[str]], right: Collection[int] = (), gap: int = 2) -> list[str]:
    """Lines whose cells stand under each other; `right` are the columns that end together."""
    from rich.cells import cell_len

    shown = [[harmless(cell) for cell in row] for row in rows]
    widths = [max(cell_len(cell) for cell in column) for column in zip(*shown, strict=True)]

    def padded(column: int, cell: str) -> str:
        space = " " * (widths[column] - cell_len(cell))
        return space + cell if column in right else cell + space

    return [(" " * gap).join(padded(column, cell) for column, cell in enumerate(row)).rstrip() for row in shown]


def per_hour(dollars: float | None) -> str:
    """A price as Azure lists it, to a tenth of a cent."""
    return UNKNOWN if dollars is None else f"${dollars:.3f}"


def cost(dollars: float | None) -> str:
    """A sum; a small one keeps enough digits to be told from nothing."""
    if dollars is None:
        return UNKNOWN
    return f"${dollars:.4f}" if 0 < dollars < 0.1 else f"${dollars:.2f}"


def moment(at: datetime | None) -> str:
    """In UTC, whoever asks and wherever."""
    return UNKNOWN if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"


def length(seconds: float, *, exact: bool = False) -> str:
    """`12 s`, `3 min 12 s`, `1 h 30 min`, `2 d 4 h`: two units at most; exact has tenths under a minute."""
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
    """Whether the stream's encoding has these characters."""
    try:
        text.encode(console.encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def place_option(*, simulated: bool) -> str:
    """What a command that is suggested needs so that it looks in the same place."""
    return " --sandbox" if simulated else ""
