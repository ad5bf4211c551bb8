"""A job: what it prints while it runs, and what came of it."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from gpuinfra.models.run import RunState
from gpuinfra.views import diagnostics as diagnostics_view
from gpuinfra.views import document
from gpuinfra.views import receipt as receipt_view
from gpuinfra.views.cells import cost, length
from gpuinfra.views.runs import STYLES, append_facts, as_json, gpu_facts, outputs_words, taken
from gpuinfra.views.terminal import harmless, messages

if TYPE_CHECKING:
    from pathlib import Path

    from rich.text import Text

    from gpuinfra.diagnostics import Diagnostic
    from gpuinfra.models.receipt import Receipt
    from gpuinfra.models.run import Run
    from gpuinfra.views.progress import ProgressView

STDOUT, STDERR = 1, 2
BOTH = (STDOUT, STDERR)
HEADINGS = {
    RunState.RUNNING: "goes on",
    RunState.TIMED_OUT: "was ended: it took too long",
    RunState.CANCELLED: "was cancelled",
    RunState.EVICTED: "was evicted",
    RunState.LOST: "is lost",
}


class Frame(Protocol):
    """Some bytes that a job printed; `runner.jobs.port` has it."""

    @property
    def stream(self) -> int:
        """1 or 2."""

    @property
    def time(self) -> int:
        """In nanoseconds since 1970."""

    @property
    def data(self) -> bytes:
        """As they came."""


class TerminalSink:
    """Shows frames as they come: the job's standard output on ours, its errors on ours, byte for byte and at once.

    Bytes that drive the terminal pass as they are: it is the user's own job, and its progress bars are meant.
    """

    def __init__(
        self,
        *,
        json: bool = False,
        progress: ProgressView | None = None,
        timestamps: bool = False,
        only: Collection[int] = BOTH,
    ) -> None:
        """With `--json` standard output is for one object, and all that the job says goes to standard error."""
        self.progress = progress
        """Whose live lines give way; whoever follows may say so later."""
        self._timestamps, self._only = timestamps, only
        self._places: dict[int, BinaryIO] = {
            STDOUT: sys.stderr.buffer if json else sys.stdout.buffer,
            STDERR: sys.stderr.buffer,
        }
        self._on_screen = {stream: place.isatty() for stream, place in self._places.items()}
        self._midline = dict.fromkeys(BOTH, False)
        self._screen_midline = False

    def __call__(self, frame: Frame) -> None:
        """One more."""
        stream = frame.stream
        if stream not in self._only or not frame.data:
            return
        data = self._stamped(frame) if self._timestamps else frame.data
        self._midline[stream] = not frame.data.endswith(b"\n")
        place, on_screen = self._places[stream], self._on_screen[stream]
        if self.progress:
            self.progress.output(place, data, on_screen=on_screen)
        else:
            place.write(data)
            place.flush()
        if on_screen:
            self._screen_midline = self._midline[stream]

    def finish(self) -> None:
        """What we say next begins a line on the screen. What is no screen has the job's own bytes and no other."""
        if self.progress:
            self.progress.end_line()
        elif self._screen_midline:
            sys.stderr.write("\n")
        self._screen_midline = False

    def _stamped(self, frame: Frame) -> bytes:
        """The time before each line that begins in it."""
        seconds, rest = divmod(frame.time, 1_000_000_000)
        stamp = f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest // 1000:06}Z ".encode()
        first, *others = _lines(frame.data)
        return b"".join((b"" if self._midline[frame.stream] else stamp, first, *(stamp + line for line in others)))


def _lines(data: bytes) -> list[bytes]:
    """Only `\\n` ends a line: what follows a `\\r` is written over it."""
    parts = [part + b"\n" for part in data.split(b"\n")]
    parts[-1] = parts[-1][:-1]
    return [part for part in parts if part]


def show_result(
    run: Run, path: Path, receipt: Receipt | None = None, diagnostics: Sequence[Diagnostic] = (), *, json: bool
) -> None:
    """What came of a run, whose folder is `path`, and what is wrong with it. Standard output is the job's own, but for
    `--json`."""
    if json:
        problems = diagnostics_view.as_payload(diagnostics)
        document.show({"run": as_json(run, path), **_receipt_payload(receipt), **problems})
        return
    console = messages()
    console.print(render_result(run, path))
    if receipt:
        console.print(receipt_view.render(receipt))
    diagnostics_view.show(diagnostics)


def show_cancelled(run: Run, path: Path, *, was_over: bool, json: bool) -> None:
    """That it has ended; or that it had already, and how."""
    if was_over and not json:
        messages().print("it was over already:")
    show_result(run, path, json=json)


def show_hint(hint: str) -> None:
    """What to do next, if there is something."""
    if hint:
        messages().print(harmless(hint))


def _receipt_payload(receipt: Receipt | None) -> dict[str, Any]:
    return {"receipt": receipt.as_json()} if receipt else {}


def render_result(run: Run, path: Path) -> Text:
    """A summary for people."""
    from rich.text import Text

    text = Text.assemble((f"{harmless(run.id)} {_heading(run)}", f"bold {STYLES[run.state]}"))
    text.append(" (simulated)" if run.simulated else "")
    return append_facts(text, _facts(run, path))


def _heading(run: Run) -> str:
    words = HEADINGS.get(run.state, run.state.value)
    if run.state is RunState.FAILED and run.exit_code is not None:
        words = f"failed with exit code {run.exit_code}"
    if run.state is RunState.RUNNING and run.reason:
        words = "went on when it was last heard of"
    # What the heading says already is not said again.
    reason = harmless(run.reason).removeprefix(run.state.value).removeprefix(": ")
    return f"{words}: {reason}" if reason else words


def _facts(run: Run, path: Path) -> Iterator[tuple[str, str]]:
    seconds = taken(run)
    if seconds is not None:
        yield "time", length(seconds, exact=True)
    yield from gpu_facts(run)
    if run.started or run.outputs.files:
        yield "outputs", outputs_words(run.outputs, path)
    if run.cost_usd is not None:
        yield "cost", f"{cost(run.cost_usd)}{' (simulated)' if run.simulated else ''}"
    if not run.state.is_over:
        yield "follow", f"gpuinfra logs {run.id} -f"
    elif run.started and not run.outputs.complete:
        yield "fetch", f"gpuinfra outputs {run.id}"
    yield from (("warning", warning) for warning in run.warnings)
