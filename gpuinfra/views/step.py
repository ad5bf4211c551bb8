"""One step as a line: a mark, its name, how long it takes or how much of it is done, and what it does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuinfra.views.cells import length

if TYPE_CHECKING:
    from rich.text import Text

    from gpuinfra.views.amount import Amount

FRAMES_PER_SECOND = 10


@dataclass(frozen=True)
class Marks:
    """Characters that stand for states."""

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
    """What is known of it. Its words are harmless ones."""

    name: str
    doing: str
    started: float
    ended: float | None = None
    failed: bool = False
    amount: Amount | None = None
    amount_due: float = 0.0
    """When the amount may be told again, where it is told in lines."""
    said_whole: bool = False


def render(step: Step, marks: Marks, now: float, *, is_live: bool, width: int) -> Text:
    """Its line on a terminal."""
    from rich.text import Text

    taken = length(int(now - step.started))
    if step.ended is not None:
        mark = (marks.failed, "bold red") if step.failed else (marks.done, "green")
        taken = length(step.ended - step.started, exact=True)
    elif is_live:
        mark = (marks.spinner[int(now * FRAMES_PER_SECOND) % len(marks.spinner)], "cyan")
        if step.amount:
            step.amount.look(now)
            return _render_amount(step, step.amount, marks, mark, taken, width)
    else:
        mark = (marks.unfinished, "yellow")
    # The time stands before the words: those of a failure can be long.
    return Text.assemble(mark, f" {step.name:<28} ", (f"{taken:>12}", "dim"), f"  {step.doing}")


def _render_amount(step: Step, amount: Amount, marks: Marks, mark: tuple[str, str], taken: str, width: int) -> Text:
    """A bar stands where the time does, since there is a time left; columns give way where it is narrow."""
    from rich.text import Text

    bar = amount.bar(marks.full, marks.empty) if amount.has_total else taken
    words = f"  {'  '.join(amount.parts())}"
    text = Text.assemble(mark, f" {step.name:<28} ", (f"{bar:>12}", "cyan"), words)
    if text.cell_len >= width:
        text = Text.assemble(mark, f" {step.name}  ", (bar, "cyan"), words)
    return text.append(f"  {step.doing}")
