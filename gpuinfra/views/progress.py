"""What is going on: a live line for every step on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, RLock, Thread
from types import TracebackType
from typing import TYPE_CHECKING

from gpuinfra.views.cells import can_show, length
from gpuinfra.views.terminal import harmless, messages

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

FRAMES_PER_SECOND = 10


@dataclass(eq=False)
class _Line:
    step: str
    doing: str
    started: float
    ended: float | None = None
    failed: bool = False


@dataclass(frozen=True)
class _Marks:
    done: str
    failed: str
    unfinished: str
    more: str
    spinner: str


MARKS = _Marks("✓", "✗", "•", "…", "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")
PLAIN_MARKS = _Marks("+", "x", "-", "", "|/-\\")


class ProgressView:
    """Shows a `provision.waiting.progress.Progress` on standard error. Calls may come from any thread."""

    def __init__(
        self, *, plain: bool = False, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Plain lines even on a terminal are for `--json`, and for `--verbose`, whose log goes the same way."""
        self._console = console or messages()
        self._clock = clock
        self._is_live = not plain and _is_lively(self._console)
        self._marks = MARKS if can_show(self._console, "✓✗•…⠋") else PLAIN_MARKS
        self._lines: list[_Line] = []
        self._wait: tuple[str, float] | None = None
        self._live: Live | None = None
        # Guards all of the above and whatever is written. A signal handler may come in while its own thread has it.
        self._lock = RLock()
        self._left = Event()
        self._ticker: Thread | None = None

    def __enter__(self) -> ProgressView:
        if self._is_live:
            from rich.live import Live

            # Lines of a live region must not be wrapped by the terminal: rich has to know how many there are.
            self._console.soft_wrap = False
            self._live = Live(
                console=self._console,
                get_renderable=self._render,
                auto_refresh=False,  # its thread takes other locks than we do
                redirect_stdout=False,
                redirect_stderr=False,
                transient=True,  # what should stay is printed above it
            )
            self._live.start()
            self._ticker = Thread(target=self._tick, name="progress", daemon=True)
            self._ticker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()
        with self._lock:
            rest, self._lines, self._wait = self._lines, [], None
            if self._live:
                live, self._live = self._live, None
                live.stop()
                self._console.soft_wrap = True
            for line in rest:
                if line.ended is None:
                    line.doing = f"{line.doing}, not finished"
                self._print_line(line)
        if self._ticker:
            self._ticker.join()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing moves on the screen meanwhile: somebody else writes, or asks."""
        with self._lock:
            live = self._live
            if live:
                live.stop()
                self._console.soft_wrap = True
            try:
                yield
            finally:
                if live:
                    self._console.soft_wrap = False
                    live.start()

    def begin(self, step: str, doing: str) -> None:
        """A step begins, or a step that goes on does something else now."""
        with self._lock:
            line = self._running(step)
            if line is None:
                line = _Line(harmless(step), "", self._clock())
                self._lines.append(line)
            line.doing = harmless(doing)
            if self._live:
                self._live.refresh()
            else:
                self._print(f"{line.step}: {line.doing}")

    def end(self, step: str, outcome: str) -> None:
        """It is done."""
        self._finish(step, outcome, failed=False)

    def fail(self, step: str, reason: str) -> None:
        """It failed."""
        self._finish(step, f"failed: {reason}", failed=True)

    def wait(self, reason: str, seconds: float) -> None:
        """Everything waits, because Azure asked for it."""
        with self._lock:
            now = self._clock()
            # Several threads are asked at once; the longest wait is the one that counts.
            if self._wait and self._wait[1] > now and now + seconds <= self._wait[1] + 1:
                return
            self._wait = (harmless(reason), now + seconds)
            if self._live:
                self._live.refresh()
            else:
                self._print(f"waiting {length(math.ceil(seconds))}: {reason}")

    def note(self, text: str) -> None:
        """Something worth a line that stays."""
        with self._lock:
            self._print(text)

    def _finish(self, step: str, outcome: str, *, failed: bool) -> None:
        with self._lock:
            line = self._running(step)
            if line is None:
                line = _Line(harmless(step), "", self._clock())
                self._lines.append(line)
            line.doing, line.ended, line.failed = harmless(outcome), self._clock(), failed
            settled = self._settled()
            with self._console:  # in one go, so that no line is seen twice
                for each in settled:
                    self._print_line(each)
                if self._live:
                    self._live.refresh()

    def _running(self, step: str) -> _Line | None:
        plain = harmless(step)
        return next((line for line in self._lines if line.step == plain and line.ended is None), None)

    def _settled(self) -> list[_Line]:
        """Takes out lines that will not change and can stand above the live ones for good: in order, if there is room
        for those that follow one that is not finished."""
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
                if self._live:
                    self._live.refresh()

    def _render(self) -> Text:
        from rich.text import Text

        now, width = self._clock(), self._console.width
        texts = [self._text(line, now) for line in self._lines]
        if self._wait and self._wait[1] > now:
            seconds = math.ceil(self._wait[1] - now)
            texts.append(Text(f"  waiting {length(seconds)}: {self._wait[0]}", "yellow"))
        for text in texts:
            text.truncate(width - 1, overflow="ellipsis" if self._marks.more else "crop")
        return Text("\n", no_wrap=True).join(texts)

    def _text(self, line: _Line, now: float) -> Text:
        from rich.text import Text

        taken = length(int(now - line.started))
        if line.ended is not None:
            mark, style = (self._marks.failed, "bold red") if line.failed else (self._marks.done, "green")
            taken = length(line.ended - line.started, exact=True)
        elif self._live:
            frames = self._marks.spinner
            mark, style = frames[int(now * FRAMES_PER_SECOND) % len(frames)], "cyan"
        else:
            mark, style = self._marks.unfinished, "yellow"
        # The time stands before the words: those of a failure can be long.
        return Text.assemble((mark, style), f" {line.step:<28} ", (f"{taken:>12}", "dim"), f"  {line.doing}")

    def _print_line(self, line: _Line) -> None:
        if self._is_live:
            self._console.print(self._text(line, self._clock()), soft_wrap=True)
        else:
            taken = (self._clock() if line.ended is None else line.ended) - line.started
            self._print(f"{line.step}: {line.doing} ({length(taken, exact=True)})")

    def _print(self, text: str) -> None:
        self._console.print(harmless(text), soft_wrap=True)


def _is_lively(console: Console) -> bool:
    # FORCE_COLOR makes rich believe in a terminal where there is a pipe.
    return bool(console.file.isatty()) and console.is_interactive and not console.is_dumb_terminal
