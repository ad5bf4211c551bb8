"""What `doctor` found: a line a check, and below it what to do where something is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuinfra.models.checks import Check, Examination, Verdict
from gpuinfra.views import document
from gpuinfra.views.terminal import harmless, messages, results

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.text import Text

STYLES = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.PROBLEM: "bold red"}
VERDICT_WIDTH = max(len(verdict) for verdict in Verdict)
NAME_WIDTH = 11
INDENT = " " * (2 + VERDICT_WIDTH + 2 + NAME_WIDTH + 1)


def show(examination: Examination, *, json: bool) -> None:
    """All of it, and how many are wrong."""
    if json:
        document.show(examination.as_json())
        return
    console = results()
    # A command that is to be copied must not be broken by the width of a terminal.
    console.print(render(examination), soft_wrap=True)
    messages().print(summary(examination))


def render(examination: Examination) -> Text:
    """The account first, then each machine."""
    from rich.text import Text

    mark = " (simulated)" if examination.simulated else ""
    texts = [Text(f"account{mark}", "bold"), *_lines(examination.checks)]
    for machine in examination.machines:
        texts += [Text(""), Text(f"machine {harmless(machine.name)}, group {harmless(machine.group)}{mark}", "bold")]
        texts += _lines(machine.checks)
    return Text("\n").join(texts)


def summary(examination: Examination) -> str:
    """`2 problems, 1 warning`."""
    counted = [(examination.count(Verdict.PROBLEM), "problem"), (examination.count(Verdict.WARNING), "warning")]
    words = [f"{number or 'no'} {word}{'' if number == 1 else 's'}" for number, word in counted]
    return ", ".join(words)


def _lines(checks: Sequence[Check]) -> list[Text]:
    from rich.text import Text

    lines = []
    for check in checks:
        line = Text("  ").append(f"{check.verdict.value:{VERDICT_WIDTH}}", STYLES[check.verdict])
        line.append(f"  {check.name:{NAME_WIDTH}} {harmless(check.seen)}")
        lines.append(line)
        if check.fix:
            lines.append(Text(f"{INDENT}{harmless(check.fix)}", "dim" if check.verdict is Verdict.OK else ""))
        lines += [Text(f"{INDENT}  {harmless(command)}") for command in check.commands]
    return lines
