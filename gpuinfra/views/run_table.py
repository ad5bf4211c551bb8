"""Several runs at the same time: a live table on a terminal, else lines with the machine's name; and their results."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from gpuinfra.models.receipt import OffProof
from gpuinfra.models.run import STDERR, STDOUT, RunState
from gpuinfra.views import diagnostics as diagnostics_view
from gpuinfra.views import json_output
from gpuinfra.views import receipt as receipt_view
from gpuinfra.views.frontend import TerminalFrontend
from gpuinfra.views.line_states import LineStates, final_state
from gpuinfra.views.runs import STYLES, as_json, taken
from gpuinfra.views.terminal import (
    UNKNOWN,
    Cell,
    cost,
    duration,
    harmless,
    messages,
    table,
    width_of,
)

if TYPE_CHECKING:
    from rich.text import Text

    from gpuinfra.models.consent import Event
    from gpuinfra.models.run import Frame, LiveStatus
    from gpuinfra.models.run_result import MachineResult
    from gpuinfra.views.progress import ProgressView

HEADER = ("MACHINE", "PHASE", "RUN", "TIME", "COST", "LAST LINE")
# Cost, run, time: left out first if the table does not fit. The last line gets the rest of the width.
LEAST = (4, 2, 3)
MIN_LAST_LINE = 12
# Of a job's last line, so much is kept.
MAX_TAIL = 4096
_ESCAPE = re.compile(r"\x1b(?:\[[0-9;:<=>?]*[ -/]*[@-~]|.)")


class Row(NamedTuple):
    """A machine in the live table."""

    machine: str
    phase: str
    run: str
    seconds: float
    cost_usd: float | None
    last_line: str


def live_table(rows: Sequence[Row], width: int) -> Text:
    """Return the table, not wider than this: the last lines are shortened first, then columns are left out."""
    from rich.text import Text

    cells: list[Sequence[Cell]] = [HEADER[:-1]]
    cells += [
        (each.machine, each.phase, each.run or UNKNOWN, duration(int(each.seconds)), cost(each.cost_usd))
        for each in rows
    ]
    lines = list(table(cells, right=(3, 4), least=LEAST, width=width).split("\n", allow_blank=True))
    begin = max(line.cell_len for line in lines) + 2
    lasts = [HEADER[-1], *(each.last_line for each in rows)]
    if width - begin >= MIN_LAST_LINE and any(lasts[1:]):
        for line, last in zip(lines, lasts, strict=True):
            line.append(" " * (begin - line.cell_len)).append(harmless(last), "" if line is lines[0] else "dim")
    for line in lines:
        line.truncate(width, overflow="ellipsis")
        line.rstrip()
    return Text("\n", no_wrap=True).join(lines)


class RunsView(TerminalFrontend):
    """Shows several runs on standard error: one live table if the terminal shows both streams, else plain lines."""

    def __init__(self, *, json: bool = False, verbose: bool = False) -> None:
        super().__init__(json=json, verbose=verbose)
        self.has_table = self._is_live and sys.stdout.isatty()
        self._json = json
        self._machines: dict[str, MachineView] = {}

    def of_machine(self, name: str) -> MachineView:
        """Return the frontend of the run on one machine."""
        return self._machines.setdefault(name, MachineView(self, name, self._clock))

    def finish(self, result: MachineResult) -> None:
        """Show that the run on one machine has ended."""
        self.of_machine(result.machine).finish(result)

    def sink_of(self, machine: MachineView) -> TableSink | PrefixedSink:
        """Return the receiver for the output of a machine's job."""
        if self.has_table:
            return TableSink(machine)
        return PrefixedSink(machine.name, self, sys.stderr if self._json else sys.stdout)

    def _render(self) -> Text:
        from rich.text import Text

        shown = super()._render()
        begun = [each for each in self._machines.values() if each.has_begun]
        if not (self.has_table and begun):
            return shown
        if len(begun) > self._console.height - 3:
            begun.sort(key=lambda each: each.is_over)  # those that are at work come first
        rows = live_table([each.row() for each in begun], self._console.width - 1)
        return Text("\n", no_wrap=True).join([shown, rows]) if shown.plain else rows


@dataclass(eq=False)
class MachineView:
    """The frontend of the run on one machine. What it says gets the machine's name."""

    view: RunsView
    name: str
    clock: Callable[[], float] = time.monotonic
    has_begun: bool = field(default=False, init=False)
    is_over: bool = field(default=False, init=False)
    tail: bytes = field(default=b"", init=False)
    """The end of what its job has printed."""

    def __post_init__(self) -> None:
        self._phase, self._since = "", self.clock()
        self._read: Callable[[], LiveStatus | None] | None = None
        self._status: LiveStatus | None = None
        self._seconds: float | None = None

    def row(self) -> Row:
        """Return its row now. The time is that of the phase, or of the job."""
        status = self._read() if self._read else None
        self._status = status or self._status
        phase, seconds = self._phase, self.clock() - self._since
        if status:
            phase = f"{RunState.RUNNING.value}{' (simulated)' if status.simulated else ''}"
            seconds = status.seconds
        elif self._seconds is not None:
            seconds = self._seconds
        run, usd = (self._status.run, self._status.cost_usd) if self._status else ("", None)
        return Row(self.name, phase, run, seconds, usd, last_line(self.tail))

    def finish(self, result: MachineResult) -> None:
        """Show the result instead of a phase."""
        words = ", ".join(filter(None, (result_words(result)[0], machine_words(result)[0])))
        self.is_over, self._read, self._phase = True, None, words
        self._seconds = (taken(result.run) if result.run else None) or 0.0
        if not self.view.has_table:
            self.note(words)

    def _enter(self, phase: str) -> None:
        self.has_begun = True
        if phase != self._phase:
            self._phase, self._since = phase, self.clock()

    def _named(self, text: str) -> str:
        return f"[{self.name}] {text}"

    @property
    def can_ask(self) -> bool:
        return self.view.can_ask

    @property
    def terminal(self) -> dict[str, str]:
        return {}  # its output does not appear on the terminal as it is

    def begin(self, step: str, doing: str) -> None:
        self._enter(f"{step.removesuffix(self.name).strip()}: {doing}")
        if not self.view.has_table:
            self.view.begin(self._named(step), doing)

    def amount(self, step: str, done: int, total: int | None) -> None:
        if not self.view.has_table:
            self.view.amount(self._named(step), done, total)

    def end(self, step: str, outcome: str) -> None:
        if not self.view.has_table:
            self.view.end(self._named(step), outcome)

    def fail(self, step: str, reason: str) -> None:
        if self.view.has_table:
            self.note(f"{step}: failed: {reason}")
        else:
            self.view.fail(self._named(step), reason)

    def wait(self, reason: str, seconds: float) -> None:
        self.view.wait(self._named(reason), seconds)

    def note(self, text: str) -> None:
        self.view.note(self._named(text))

    def show(self, event: Event) -> None:
        from dataclasses import replace

        from gpuinfra.models.consent import PlanReady

        self.view.show(replace(event, is_one_of_many=True) if isinstance(event, PlanReady) else event)

    def confirm(self, question: Any) -> bool:
        return self.view.confirm(question)

    def ask_choice(self, question: str, default: str, is_over: Callable[[], bool]) -> str | None:
        return self.view.ask_choice(question, default, is_over)

    def ask_password(self, prompt: str) -> str:
        return self.view.ask_password(prompt)

    @property
    def shows_status(self) -> bool:
        return self.view.has_table

    def set_status(self, read: Callable[[], LiveStatus | None] | None) -> None:
        self._read = read

    def open_output(self) -> TableSink | PrefixedSink:
        return self.view.sink_of(self)


class TableSink:
    """Keeps the end of a job's output for the table. The run's log has all of it."""

    def __init__(self, machine: MachineView) -> None:
        self._machine = machine

    def __call__(self, frame: Frame) -> None:
        self._machine.tail = (self._machine.tail + frame.data)[-MAX_TAIL:]

    def finish(self) -> None:
        pass


def last_line(tail: bytes) -> str:
    """Return the last line that is not empty, in its final state and without colours."""
    line = next((each for each in reversed(tail.split(b"\n")) if each.strip()), b"")
    return _ESCAPE.sub("", final_state(line).decode("utf-8", "replace")).strip()


class PrefixedSink:
    """Writes a job's output in complete lines, each with the name of its machine."""

    def __init__(self, name: str, progress: ProgressView, out: Any) -> None:
        self._prefix, self._progress = f"[{name}] ".encode(), progress
        self._places: dict[int, BinaryIO] = {STDOUT: out.buffer, STDERR: sys.stderr.buffer}
        self._states = {stream: LineStates() for stream in self._places}
        self._rest = dict.fromkeys(self._places, b"")

    def __call__(self, frame: Frame) -> None:
        self._write(frame.stream, self._states[frame.stream].add(frame.data))

    def finish(self) -> None:
        """Write what is left of unfinished lines."""
        for stream, states in self._states.items():
            rest = self._rest[stream] + states.flush()
            self._rest[stream] = b""
            if rest:
                self._write(stream, rest if rest.endswith(b"\n") else rest + b"\n")

    def _write(self, stream: int, data: bytes) -> None:
        lines, end, self._rest[stream] = (self._rest[stream] + data).rpartition(b"\n")
        if end:
            place = self._places[stream]
            text = b"".join(self._prefix + line + b"\n" for line in lines.split(b"\n"))
            self._progress.output(place, text, on_screen=place.isatty())


MAX_REASON = 24
RESULT_HEADER = ("MACHINE", "RESULT", "EXIT", "RUN", "TIME", "COST", "NOW")
# Cost, time, run: left out first if the table does not fit.
RESULT_LEAST = (5, 4, 3)


def result_words(result: MachineResult) -> tuple[str, str]:
    """Return how a run ended, with a style."""
    run = result.run
    if run is None:
        return ("interrupted", "dim") if result.interrupted else ("no job", "bold red")
    # A longer one is in the problems.
    is_shown = run.reason != run.state.value and 0 < len(run.reason) <= MAX_REASON
    reason = f": {run.reason}" if is_shown else ""
    return f"{run.state.value}{reason}{' (simulated)' if run.simulated else ''}", STYLES[run.state]


def machine_words(result: MachineResult) -> tuple[str, str]:
    """Return what is known of the machine now, with a style."""
    receipt = result.receipt
    if receipt is None:
        return ("maybe on", "bold red") if result.is_left else ("", "")
    if receipt.stay:
        style = "yellow" if receipt.stay.is_ended else "bold red"
        return f"on until {receipt.stay.until.astimezone(UTC):%m-%d %H:%M}Z", style
    if not receipt.is_proof:
        return "not verified", "bold red"
    return ("gone" if receipt.verified is OffProof.ABSENT else "off"), "green"


def result_table(results: Sequence[MachineResult], width: int | None) -> Text:
    """Return one line for each run."""
    rows: list[Sequence[Cell]] = [RESULT_HEADER]
    for each in results:
        run, words, now = each.run, result_words(each), machine_words(each)
        seconds = taken(run) if run else None
        rows.append(
            (
                each.machine,
                words,
                UNKNOWN if run and not run.state.is_over else str(each.exit_code),
                run.id if run else UNKNOWN,
                UNKNOWN if seconds is None else duration(seconds, exact=True),
                cost(run.cost_usd if run else None),
                now if now[0] else "see above",
            )
        )
    return table(rows, right=(2, 4, 5), least=RESULT_LEAST, width=width)


def show_results(results: Sequence[MachineResult], *, json: bool) -> None:
    """Print a table of the runs, their receipts and their problems. Only `--json` uses standard output."""
    if json:
        json_output.show({"results": [_as_json(each) for each in results]})
        return
    console = messages()
    width = width_of(console)
    console.print()
    for receipt in [each.receipt for each in results if each.receipt]:
        console.print(receipt_view.render(receipt, width))
        console.print()
    diagnostics = [diagnostic for each in results for diagnostic in each.diagnostics]
    diagnostics_view.show(diagnostics)
    if diagnostics:
        console.print()
    console.print(result_table(results, width))


def _as_json(result: MachineResult) -> dict[str, Any]:
    return {
        "machine": result.machine,
        "file": result.file,
        "exitCode": int(result.exit_code),
        "run": as_json(result.run, result.folder) if result.run else None,
        "receipt": result.receipt.as_json() if result.receipt else None,
        **diagnostics_view.as_payload(result.diagnostics),
    }
