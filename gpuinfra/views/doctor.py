"""The checks of `gpuinfra doctor`: one line each, followed by the fix."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuinfra.models.health import CheckStatus, HealthCheck, HealthReport
from gpuinfra.views import json_output
from gpuinfra.views.terminal import harmless, messages, results

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.text import Text

STYLES = {CheckStatus.OK: "green", CheckStatus.WARNING: "yellow", CheckStatus.PROBLEM: "bold red"}
VERDICT_WIDTH = max(len(verdict) for verdict in CheckStatus)
NAME_WIDTH = 11
INDENT = " " * (2 + VERDICT_WIDTH + 2 + NAME_WIDTH + 1)


def show(examination: HealthReport, *, json: bool) -> None:
    """Print all checks and a summary."""
    if json:
        json_output.show(examination.as_json())
        return
    console = results()
    # Do not wrap: users copy the commands.
    console.print(render(examination), soft_wrap=True)
    messages().print(summary(examination))


def render(examination: HealthReport) -> Text:
    """Return the account's checks, then each machine's."""
    from rich.text import Text

    mark = " (simulated)" if examination.simulated else ""
    texts = [Text(f"account{mark}", "bold"), *_lines(examination.checks)]
    for machine in examination.machines:
        texts += [Text(""), Text(f"machine {harmless(machine.name)}, group {harmless(machine.group)}{mark}", "bold")]
        texts += _lines(machine.checks)
    return Text("\n").join(texts)


def summary(examination: HealthReport) -> str:
    """Return `2 problems, 1 warning`."""
    counted = [(examination.count(CheckStatus.PROBLEM), "problem"), (examination.count(CheckStatus.WARNING), "warning")]
    words = [f"{number or 'no'} {word}{'' if number == 1 else 's'}" for number, word in counted]
    return ", ".join(words)


def _lines(checks: Sequence[HealthCheck]) -> list[Text]:
    from rich.text import Text

    lines = []
    for check in checks:
        line = Text("  ").append(f"{check.verdict.value:{VERDICT_WIDTH}}", STYLES[check.verdict])
        line.append(f"  {check.name:{NAME_WIDTH}} {harmless(check.seen)}")
        lines.append(line)
        if check.fix:
            lines.append(Text(f"{INDENT}{harmless(check.fix)}", "dim" if check.verdict is CheckStatus.OK else ""))
        lines += [Text(f"{INDENT}  {harmless(command)}") for command in check.commands]
    return lines
