"""One step of progress as a line: mark, name, time or transfer progress, and activity."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuinfra.views.formatting import byte_size, duration, size_unit

if TYPE_CHECKING:
    from rich.text import Text

# The rate is smoothed over this time, so that it follows the network without flickering.
MEMORY_SECONDS = 3.0
MIN_SECONDS = 0.1
BAR_WIDTH = 12


class TransferProgress:
    """The bytes of one step. Any thread may assign `counts`; only the display calls the methods."""

    def __init__(self, now: float, done: int, total: int | None) -> None:
        self.counts = (done, total)
        # Bytes that were there at the start, as of a resumed upload, do not count as speed.
        self._seen, self._at = done, now
        self._rate: float | None = None

    @property
    def is_whole(self) -> bool:
        done, total = self.counts
        return total is not None and done >= total

    @property
    def has_total(self) -> bool:
        return self.counts[1] is not None

    def look(self, now: float) -> None:
        done, elapsed = self.counts[0], now - self._at
        if done < self._seen:  # it restarted
            self._seen, self._at, self._rate = done, now, None
        elif elapsed >= MIN_SECONDS:
            rate, weight = (done - self._seen) / elapsed, 1 - math.exp(-elapsed / MEMORY_SECONDS)
            self._rate = rate if self._rate is None else self._rate + weight * (rate - self._rate)
            self._seen, self._at = done, now

    def bar(self, full: str, empty: str) -> str:
        cells = math.floor(self._share * BAR_WIDTH)
        return full * cells + empty * (BAR_WIDTH - cells)

    def parts(self) -> list[str]:
        """Return `42 %`, `12.0/28.6 MiB`, `3.1 MiB/s`, `5 s left`, as far as known."""
        done, total = self.counts
        found = [f"{math.floor(self._share * 100)} %", _both(done, total)] if total is not None else [byte_size(done)]
        if self._rate is not None and not self.is_whole:
            found.append(f"{byte_size(self._rate)}/s")
            if total is not None and self._rate >= 1:
                found.append(f"{duration(math.ceil((total - done) / self._rate))} left")
        return found

    @property
    def _share(self) -> float:
        done, total = self.counts
        return min(1.0, max(0.0, done / total)) if total else 1.0


def _both(done: int, total: int) -> str:
    unit = size_unit(total)
    return f"{done / unit[1]:.1f}/{total / unit[1]:.1f} {unit[0]}" if unit else f"{done}/{total} B"


FRAMES_PER_SECOND = 10


@dataclass(frozen=True)
class Marks:
    """The characters for each state."""

    done: str
    failed: str
    unfinished: str
    more: str
    spinner: str
    full: str
    empty: str


MARKS = Marks("✓", "✗", "•", "…", "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "━", "─")
PLAIN_MARKS = Marks("+", "x", "-", "", "|/-\\", "#", "-")


@dataclass(eq=False)
class Step:
    """A step and its state. Its texts are safe to print."""

    name: str
    doing: str
    started: float
    ended: float | None = None
    failed: bool = False
    amount: TransferProgress | None = None
    amount_due: float = 0.0
    """When plain output may report the amount again."""
    said_whole: bool = False


def render(step: Step, marks: Marks, now: float, *, is_live: bool, width: int) -> Text:
    """Return the step's line for a terminal."""
    from rich.text import Text

    taken = duration(int(now - step.started))
    if step.ended is not None:
        mark = (marks.failed, "bold red") if step.failed else (marks.done, "green")
        taken = duration(step.ended - step.started, exact=True)
    elif is_live:
        mark = (marks.spinner[int(now * FRAMES_PER_SECOND) % len(marks.spinner)], "cyan")
        if step.amount:
            step.amount.look(now)
            return _render_amount(step, step.amount, marks, mark, taken, width)
    else:
        mark = (marks.unfinished, "yellow")
    # The time comes first: the text of a failure can be long.
    return Text.assemble(mark, f" {step.name:<28} ", (f"{taken:>12}", "dim"), f"  {step.doing}")


def _render_amount(
    step: Step, amount: TransferProgress, marks: Marks, mark: tuple[str, str], taken: str, width: int
) -> Text:
    """Return a line with a bar instead of the time, without padding if the terminal is narrow."""
    from rich.text import Text

    bar = amount.bar(marks.full, marks.empty) if amount.has_total else taken
    words = f"  {'  '.join(amount.parts())}"
    text = Text.assemble(mark, f" {step.name:<28} ", (f"{bar:>12}", "cyan"), words)
    if text.cell_len >= width:
        text = Text.assemble(mark, f" {step.name}  ", (bar, "cyan"), words)
    return text.append(f"  {step.doing}")
