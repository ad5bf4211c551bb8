"""A job's output while it runs, its result, and its environment."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from threading import RLock, Timer
from typing import TYPE_CHECKING, Any, BinaryIO

from gpuinfra.models.run import STDERR, STDOUT, RunState
from gpuinfra.views import diagnostics as diagnostics_view
from gpuinfra.views import json_output
from gpuinfra.views import receipt as receipt_view
from gpuinfra.views.line_states import LineStates
from gpuinfra.views.runs import STYLES, append_facts, as_json, gpu_facts, outputs_words, taken
from gpuinfra.views.terminal import complete_command, cost, duration, harmless, messages, results, width_of, wrapped

if TYPE_CHECKING:
    from pathlib import Path

    from rich.text import Text

    from gpuinfra.diagnostics import Diagnostic
    from gpuinfra.models.receipt import Receipt
    from gpuinfra.models.run import Frame, Run
    from gpuinfra.models.target import GpuFacts
    from gpuinfra.views.progress import ProgressView

BOTH = (STDOUT, STDERR)
HEADINGS = {
    RunState.RUNNING: "is running",
    RunState.TIMED_OUT: "timed out",
    RunState.CANCELLED: "was cancelled",
    RunState.EVICTED: "was evicted",
    RunState.LOST: "is lost",
}


# In a pipe, an unfinished line appears after this long, such as a question.
HOLD_SECONDS = 0.15
RESET = b"\x1b[0m\x1b[?25h"
"""Colours off, cursor visible."""


class TerminalSink:
    """Writes a job's output to this program's own streams.

    A terminal gets every byte at once, with the control sequences of the job's own progress bars. Files and pipes get
    the final state of each line.
    """

    def __init__(
        self,
        *,
        json: bool = False,
        progress: ProgressView | None = None,
        timestamps: bool = False,
        only: Collection[int] = BOTH,
        raw: bool = False,
        final: bool = False,
    ) -> None:
        """With `json`, all output of the job goes to standard error.

        `raw` passes every byte, also to files and pipes. `final` shows the final states of lines also on a terminal.
        """
        self.progress = progress
        """The live lines to hide while the job writes. May be set later."""
        self._timestamps, self._only = timestamps, only
        self._places: dict[int, BinaryIO] = {
            STDOUT: sys.stderr.buffer if json else sys.stdout.buffer,
            STDERR: sys.stderr.buffer,
        }
        self._on_screen = {stream: place.isatty() for stream, place in self._places.items()}
        self._states = {stream: LineStates() for stream in BOTH if final or not (raw or self._on_screen[stream])}
        self._midline = dict.fromkeys(BOTH, False)
        self._screen_midline = self._has_escapes = False
        self._time = 0
        # Held while a frame is written, because a timer writes the beginnings of lines.
        self._lock = RLock()
        self._timer: Timer | None = None

    def __call__(self, frame: Frame) -> None:
        stream = frame.stream
        if stream not in self._only or not frame.data:
            return
        with self._lock:
            self._time = frame.time
            states = self._states.get(stream)
            self._write(stream, states.add(frame.data) if states else frame.data)
            if self._timer is None and states and states.is_waiting:
                self._timer = Timer(HOLD_SECONDS, self._write_beginnings)
                self._timer.daemon = True
                self._timer.start()

    def _write_beginnings(self) -> None:
        with self._lock, suppress(OSError):  # the next frame reports that the reader is gone
            self._timer = None
            for stream, states in self._states.items():
                if states.is_waiting:
                    self._write(stream, states.flush())

    def _write(self, stream: int, data: bytes) -> None:
        if not data:
            return
        shown = self._stamped(stream, data) if self._timestamps else data
        self._midline[stream] = not data.endswith(b"\n")
        place, on_screen = self._places[stream], self._on_screen[stream]
        if self.progress:
            self.progress.output(place, shown, on_screen=on_screen)
        else:
            place.write(shown)
            place.flush()
        if on_screen:
            self._screen_midline = self._midline[stream]
            self._has_escapes = self._has_escapes or b"\x1b" in data

    def finish(self) -> None:
        """Write what is left of unfinished lines, and end one on the terminal."""
        with self._lock:
            if self._timer:
                self._timer.cancel()
            with suppress(OSError):
                for stream, states in self._states.items():
                    self._write(stream, states.flush())
            if self._has_escapes:  # the job may have been stopped in the middle of a progress bar
                sys.stderr.buffer.write(RESET)
                sys.stderr.buffer.flush()
            if self.progress:
                self.progress.end_line()
            elif self._screen_midline:
                sys.stderr.write("\n")
            self._screen_midline = self._has_escapes = False

    def _stamped(self, stream: int, data: bytes) -> bytes:
        """Return the data with a time before each new line."""
        seconds, rest = divmod(self._time, 1_000_000_000)
        stamp = f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest // 1000:06}Z ".encode()
        first, *others = _lines(data)
        return b"".join((b"" if self._midline[stream] else stamp, first, *(stamp + line for line in others)))


def _lines(data: bytes) -> list[bytes]:
    """Split at `\\n` only: text after `\\r` overwrites the line."""
    parts = [part + b"\n" for part in data.split(b"\n")]
    parts[-1] = parts[-1][:-1]
    return [part for part in parts if part]


def show_result(
    run: Run, path: Path, receipt: Receipt | None = None, diagnostics: Sequence[Diagnostic] = (), *, json: bool
) -> None:
    """Print a run's result, receipt and problems. Only `--json` uses standard output, which belongs to the job."""
    if json:
        problems = diagnostics_view.as_payload(diagnostics)
        json_output.show({"run": as_json(run, path), **_receipt_payload(receipt), **problems})
        return
    console = messages()
    width = width_of(console)
    is_plain = run.state is RunState.COMPLETED and run.outputs.complete and not (run.warnings or receipt or diagnostics)
    # On a terminal, a job without anything unusual gets one line.
    console.print(render_brief(run, path, width) if width and is_plain else render_result(run, path, width))
    if receipt:
        console.print(receipt_view.render(receipt, width_of(console)))
    diagnostics_view.show(diagnostics)


def show_cancelled(run: Run, path: Path, *, was_over: bool, json: bool) -> None:
    """Print the result of a cancelled run, or that it had already ended."""
    if was_over and not json:
        messages().print("the job had already ended:")
    show_result(run, path, json=json)


def show_hint(hint: str) -> None:
    """Print the next step, if there is one."""
    if hint:
        messages().print(harmless(hint))


def _receipt_payload(receipt: Receipt | None) -> dict[str, Any]:
    return {"receipt": receipt.as_json()} if receipt else {}


def render_brief(run: Run, path: Path, width: int) -> Text:
    """Return the result of a job that was completed, as one sentence."""
    from rich.text import Text

    seconds = taken(run)
    parts = [_heading(run) if seconds is None else f"{_heading(run)} in {duration(seconds, exact=True)}"]
    if run.gpu and run.gpu.get("models"):
        models = [str(each).removesuffix(" (simulated)") for each in run.gpu["models"]]
        parts.append(f"on {', '.join(f'{models.count(each)} {each}' for each in dict.fromkeys(models))}")
    if run.usage:
        parts.append(f"GPU at most {run.usage.peak_utilization} %")
    if run.cost_usd is not None:
        parts.append(cost(run.cost_usd))
    if run.outputs.files:
        parts.append(outputs_words(run.outputs, path))
    is_simulated = run.simulated or (run.gpu or {}).get("simulated")
    words = f"{run.id} {', '.join(parts)}{' (simulated)' if is_simulated else ''}"
    return Text(wrapped(harmless(words), width, 2), f"bold {STYLES[run.state]}")


def render_result(run: Run, path: Path, width: int | None = None) -> Text:
    """Return the result as text."""
    from rich.text import Text

    text = Text.assemble((f"{harmless(run.id)} {_heading(run)}", f"bold {STYLES[run.state]}"))
    text.append(" (simulated)" if run.simulated else "")
    return append_facts(text, _facts(run, path), width)


def _heading(run: Run) -> str:
    words = HEADINGS.get(run.state, run.state.value)
    if run.state is RunState.FAILED and run.exit_code is not None:
        words = f"failed with exit code {run.exit_code}"
    if run.state is RunState.RUNNING and run.reason:
        words = "was running at last contact"
    # Do not repeat the heading.
    reason = harmless(run.reason).removeprefix(run.state.value).removeprefix(": ")
    return f"{words}: {reason}" if reason else words


def _facts(run: Run, path: Path) -> Iterator[tuple[str, str]]:
    seconds = taken(run)
    if seconds is not None:
        yield "time", duration(seconds, exact=True)
    yield from gpu_facts(run)
    if run.started or run.outputs.files:
        yield "outputs", outputs_words(run.outputs, path)
    if run.cost_usd is not None:
        yield "cost", f"{cost(run.cost_usd)}{' (simulated)' if run.simulated else ''}"
    if not run.state.is_over:
        yield "follow", complete_command(f"gpuinfra logs {run.id} -f")
    elif run.started and run.is_unfetched:
        yield "fetch", complete_command(f"gpuinfra outputs {run.id}")
    yield from (("warning", warning) for warning in run.warnings)


def show_environment(
    target: str,
    tag: str | None,
    image: str | None,
    gpu: GpuFacts | None,
    unused: str | None,
    *,
    built: bool,
    json: bool,
) -> None:
    """Print the image, whether it was built now, and the GPU that a job in it sees."""
    if json:
        environment = {"target": target, "image": tag, "imageId": image, "built": built}
        json_output.show({"environment": {**environment, "gpu": gpu.as_json() if gpu else None}})
        return
    console = results()
    if tag:
        console.print(f"{harmless(target)} has its environment: {harmless(tag)}{' (just built)' if built else ''}")
    else:
        console.print(f"{harmless(target)} needs no preparation: jobs run in the machine's own Python")
    if gpu:
        mark = " (simulated)" if gpu.simulated and "simulated" not in gpu.summary else ""
        console.print(f"  GPU         {harmless(gpu.summary)}{mark}")
    if unused:
        messages().print(f"note: {unused}")
