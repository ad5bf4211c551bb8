"""Progress on standard error: a line per step, live on a terminal and plain elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Event, RLock, Thread
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, Self

from gpuinfra.views.terminal import byte_size, can_show, cost, duration, harmless, messages, size_unit

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from gpuinfra.models.run import LiveStatus

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


def render_status(status: LiveStatus, marks: Marks, now: float) -> Text:
    """Return the live line of a job that prints nothing: what matters most comes first."""
    from rich.text import Text

    words = [harmless(status.run), duration(int(status.seconds))]
    if status.gpu:
        words.append(f"GPU {status.gpu.utilization:.0f} %")
        if status.gpu.memory_mib is not None:
            words.append(byte_size(status.gpu.memory_mib << 20))
    if status.cost_usd is not None:
        words.append(f"{cost(status.cost_usd)}{' (simulated)' if status.simulated else ''}")
    mark = (marks.spinner[int(now * FRAMES_PER_SECOND) % len(marks.spinner)], "cyan")
    return Text.assemble(mark, " ", ("  ".join(words), "dim"))


# The shortest time between two plain lines about one transfer.
AMOUNT_SECONDS = 5.0
# After this long without output from the job, the live lines appear again.
SILENT_SECONDS = 1.0
# A step that takes longer is worth a line.
BRIEF_SECONDS = 5.0


class ProgressView:
    """Shows the progress of `provision` and of `runner` on standard error. Calls may come from any thread."""

    def __init__(
        self, *, plain: bool = False, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`plain` forces plain lines, for `--json` and `--verbose`."""
        self._console = console or messages()
        self._clock = clock
        self._is_live = not plain and _is_lively(self._console)
        self.is_brief = False
        """Whether short steps that succeed leave no line on a terminal."""
        self._marks = MARKS if can_show(self._console, "✓✗•…⠋━─") else PLAIN_MARKS
        self._lines: list[Step] = []
        # Running steps by name, for a fast lookup: transfers report often.
        self._running: dict[str, Step] = {}
        self._wait: tuple[str, float] | None = None
        self._live: Live | None = None
        # Since when a job's output has replaced the live lines, and whether its last line is unfinished.
        self._aside_since: float | None = None
        self._is_midline = False
        self._unflushed: BinaryIO | None = None
        self._read_status: Callable[[], LiveStatus | None] | None = None
        # Guards the state above and all output. Reentrant: a signal handler may run in the thread that holds it.
        self._lock = RLock()
        # Held while other code prints or asks: one question at a time. Threads that report steps do not wait for it.
        self._speech = RLock()
        # Lines that arrived during a pause; None without one.
        self._held: list[str] | None = None
        self._left = Event()
        self._ticker: Thread | None = None

    def __enter__(self) -> Self:
        if self._is_live:
            self._start_live()
            self._ticker = Thread(target=self._tick, name="progress", daemon=True)
            self._ticker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()
        with self._lock:
            self._held = None  # a question that Ctrl-C left unanswered
            rest, self._lines, self._wait = self._lines, [], None
            self._running.clear()
            self._stop_live()
            self._aside_since = None
            for line in rest:
                if line.ended is None:
                    line.doing = f"{line.doing}, not finished"
                if not self._is_passed_over(line):
                    self._print_line(line)
        if self._ticker:
            self._ticker.join()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hide the live lines while other code prints or asks. Steps continue, and appear afterwards."""
        with self._speech:
            is_outer = self._held is None
            with self._lock:
                if was_live := self._stop_live():
                    self._aside_since = self._clock()
                self.end_line()
                if is_outer:
                    self._held = []
            try:
                yield
            finally:
                with self._lock:
                    held, self._held = (self._held or [], None) if is_outer else ([], self._held)
                    for text in held:
                        self._print(text)
                    if was_live:
                        self._start_live()

    def output(self, stream: BinaryIO, data: bytes, *, on_screen: bool) -> None:
        """Write a job's output at once. The live lines disappear until the job is silent."""
        if not on_screen:
            stream.write(data)
            stream.flush()
            return
        with self._speech, self._lock:
            if self._stop_live() or self._aside_since is not None:
                self._aside_since = self._clock()
            self._unflushed = stream
            stream.write(data)
            self._is_midline = not data.endswith(b"\n") if data else self._is_midline
            self._flush_output()

    def end_line(self) -> None:
        """Start a new line if the job left one unfinished."""
        with self._lock:
            self._flush_output()
            if self._is_midline:
                self._is_midline = False
                self._console.file.write("\n")

    def _flush_output(self) -> None:
        """Flush a job's output. Ctrl-C may have interrupted between write and flush."""
        if self._unflushed:
            try:
                self._unflushed.flush()
            except OSError:  # the reader is gone; another flush would fail, too
                self._unflushed = None
                raise
            self._unflushed = None

    def begin(self, step: str, doing: str) -> None:
        """Start a step, or change the activity of a running one."""
        with self._lock:
            line = self._line(step)
            if line.doing != (words := harmless(doing)):
                line.doing, line.amount, line.said_whole = words, None, False
            if self._live:
                self._live.refresh()
            elif self._aside_since is None:
                self._print(f"{line.name}: {line.doing}")

    def amount(self, step: str, done: int, total: int | None) -> None:
        """Report the bytes done and in total of a running step. Frequent calls are cheap."""
        line = self._running.get(step)
        if line is None:
            return
        amount = line.amount
        if amount is None:
            with self._lock:
                line.amount = TransferProgress(self._clock(), done, total)
                line.amount_due = self._clock() + AMOUNT_SECONDS
        else:
            amount.counts = (done, total)
        # On a terminal, the next frame shows it.
        if not self._is_live and (self._clock() >= line.amount_due or (done == total and not line.said_whole)):
            self._print_amount(line)

    def end(self, step: str, outcome: str) -> None:
        self._finish(step, outcome, failed=False)

    def fail(self, step: str, reason: str) -> None:
        self._finish(step, f"failed: {reason}", failed=True)

    def wait(self, reason: str, seconds: float) -> None:
        """Show that all steps wait, at Azure's request."""
        with self._lock:
            now = self._clock()
            # Several threads may wait at once; show the longest wait.
            if self._wait and self._wait[1] > now and now + seconds <= self._wait[1] + 1:
                return
            self._wait = (harmless(reason), now + seconds)
            if self._live:
                self._live.refresh()
            else:
                self._print(f"waiting {duration(math.ceil(seconds))}: {reason}")

    def note(self, text: str) -> None:
        with self._lock:
            self._print(text)

    @property
    def shows_status(self) -> bool:
        """Whether there is a terminal for live lines."""
        return self._is_live

    def set_status(self, read: Callable[[], LiveStatus | None] | None) -> None:
        """Show a live line about the running job, while nothing else is printed. It never stays on the screen."""
        with self._lock:
            self._read_status = read
            if self._live:
                self._live.refresh()

    def _finish(self, step: str, outcome: str, *, failed: bool) -> None:
        with self._lock:
            line = self._line(step)
            del self._running[step]
            line.doing, line.ended, line.failed, line.amount = harmless(outcome), self._clock(), failed, None
            settled = self._settled()
            with suppress(OSError), self._console:  # in one go, so that no line is seen twice
                for each in settled:
                    if not self._is_passed_over(each):
                        self._print_line(each)
                if self._live:
                    self._live.refresh()

    def _is_passed_over(self, line: Step) -> bool:
        is_short = line.ended is not None and line.ended - line.started < BRIEF_SECONDS
        return self._is_live and self.is_brief and is_short and not line.failed

    def _line(self, step: str) -> Step:
        if step not in self._running:
            self._running[step] = Step(harmless(step), "", self._clock())
            self._lines.append(self._running[step])
        return self._running[step]

    def _settled(self) -> list[Step]:
        """Take out the lines that will not change and can be printed above the live ones: in order, if there is room
        for those that follow an unfinished one."""
        if self._is_live and self._held is not None:
            return []
        first = next((place for place, line in enumerate(self._lines) if line.ended is None), len(self._lines))
        if not self._live or len(self._lines) - first > self._console.height - 2:
            settled = [line for line in self._lines if line.ended is not None]
        else:
            settled = self._lines[:first]
        self._lines = [line for line in self._lines if line not in settled]
        return settled

    def _tick(self) -> None:
        while not self._left.wait(1 / FRAMES_PER_SECOND):
            with self._lock:
                if self._is_silent():
                    self._start_live()
                if self._live:
                    self._live.refresh()

    def _is_silent(self) -> bool:
        """Return whether the job has been silent long enough to show live lines again."""
        has_lines = bool(self._lines or self._read_status)
        if self._aside_since is None or self._is_midline or not has_lines or self._held is not None:
            return False
        return self._clock() - self._aside_since >= SILENT_SECONDS

    def _start_live(self) -> None:
        from rich.live import Live

        self._aside_since = None
        # Lines of a live region must not be wrapped by the terminal: rich has to know how many there are.
        self._console.soft_wrap = False
        # Always a new one: a stopped one would clear lines that now show something else.
        self._live = Live(
            console=self._console,
            get_renderable=self._render,
            auto_refresh=False,  # its thread takes other locks than we do
            redirect_stdout=False,
            redirect_stderr=False,
            transient=True,  # what should stay is printed above it
        )
        self._live.start()

    def _stop_live(self) -> bool:
        """Stop the live lines, and return whether there were any."""
        live, self._live = self._live, None
        if live:
            live.stop()
            self._console.soft_wrap = True
        return live is not None

    def _render(self) -> Text:
        from rich.text import Text

        now, width = self._clock(), self._console.width
        texts = [render(line, self._marks, now, is_live=True, width=width) for line in self._lines]
        if self._wait and self._wait[1] > now:
            seconds = math.ceil(self._wait[1] - now)
            texts.append(Text(f"  waiting {duration(seconds)}: {self._wait[0]}", "yellow"))
        if status := self._read_status() if self._read_status else None:
            texts.append(render_status(status, self._marks, now))
        for text in texts:
            text.truncate(width - 1, overflow="ellipsis" if self._marks.more else "crop")
        return Text("\n", no_wrap=True).join(texts)

    def _print_amount(self, line: Step) -> None:
        with self._lock:
            amount, now = line.amount, self._clock()
            if (
                amount is None
                or line.ended is not None
                or (now < line.amount_due and (line.said_whole or not amount.is_whole))
            ):
                return  # another thread was quicker
            amount.look(now)
            line.amount_due, line.said_whole = now + AMOUNT_SECONDS, line.said_whole or amount.is_whole
            self._print(f"{line.name}: {', '.join(amount.parts())}")

    def _print_line(self, line: Step) -> None:
        self.end_line()
        if self._is_live:
            text = render(line, self._marks, self._clock(), is_live=False, width=self._console.width)
            self._console.print(text, soft_wrap=True)
        else:
            taken = (self._clock() if line.ended is None else line.ended) - line.started
            self._print(f"{line.name}: {line.doing} ({duration(taken, exact=True)})")

    def _print(self, text: str) -> None:
        """Print a line, after a pause. A full disk or a closed terminal must not stop a teardown, so ignore both."""
        if self._held is not None:
            self._held.append(text)
            return
        with suppress(OSError):
            self.end_line()
            self._console.print(harmless(text), soft_wrap=True)


def _is_lively(console: Console) -> bool:
    # FORCE_COLOR makes rich treat a pipe as a terminal.
    return bool(console.file.isatty()) and console.is_interactive and not console.is_dumb_terminal
