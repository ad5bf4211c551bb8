"""Samples of the GPUs while a job runs: one long-lived `nvidia-smi` says them, a line each goes to a file."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

from gpuinfra.remote import states
from gpuinfra.remote.run_folder import SAMPLES
from gpuinfra.remote.wire import Wire

# What `nvidia-smi` prints for a value that a GPU does not tell.
_UNKNOWN = re.compile(rb"N/A|\[[^\]]*\]")
QUERY = ("--query-gpu=index,utilization.gpu,memory.used", "--format=csv,noheader,nounits")
PERIOD_SECONDS = 2
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
# A machine, or an image, without `nvidia-smi` is not asked for ever.
MOST_FAILURES = 8
LONGEST_LINE = 1000
# A GPU that does less is idle.
BUSY_PERCENT = 5
# Half an hour of four GPUs; clients ask more often.
TAIL_SIZE = 1 << 16


class Sampler:
    """Samples for as long as it is served: whenever its file can be read, and whenever it is due."""

    def __init__(self, words: Sequence[str], file: str) -> None:
        self._words, self._file = list(words), file
        self._child: Any = None
        self.sessions: list[int] = []
        """The sessions of the last two programs that it has started."""
        self._rest = b""
        self._has_said, self._is_looping, self._failures = False, True, 0
        self.due: float | None = time.monotonic()
        """When it wants to be started; None while it runs, or when it has given up."""

    @property
    def fileno(self) -> int | None:
        """What to wait for; None while nothing runs."""
        return self._child.stdout.fileno() if self._child else None

    def start(self) -> None:
        """Ask for samples, again and again where `nvidia-smi` knows how to."""
        import subprocess  # it takes a while, and few calls need it

        self.due, self._rest, self._has_said = None, b"", False
        words = [*self._words, *QUERY, *(("-l", str(PERIOD_SECONDS)) if self._is_looping else ())]
        null = subprocess.DEVNULL
        try:
            self._child = subprocess.Popen(  # noqa: S603 no word of it is from others
                words, stdin=null, stdout=subprocess.PIPE, stderr=null, start_new_session=True
            )
            self.sessions = [*self.sessions[-1:], self._child.pid]
        except OSError:
            self._end()

    def serve(self) -> None:
        """Take what it says."""
        data = os.read(self._child.stdout.fileno(), 1 << 16)
        if not data:
            self.stop()
            self._end()
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        del lines[:-1000]
        self._rest = self._rest[-LONGEST_LINE:]
        found = [sample for sample in map(_sample, lines) if sample]
        if found:
            self._has_said, self._failures = True, 0
            _append(self._file, found)

    def stop(self) -> None:
        """Stop the program. A second call does nothing."""
        if self._child:
            child, self._child = self._child, None
            child.kill()
            child.stdout.close()
            with contextlib.suppress(Exception):  # one that hangs in the kernel is left there
                child.wait(5)

    def _end(self) -> None:
        """It has ended by itself: decide when to try again, and how."""
        if self._has_said:
            pause = FIRST_PAUSE if self._is_looping else PERIOD_SECONDS
        else:
            # It may be one that cannot loop.
            self._is_looping = not self._is_looping
            self._failures += 1
            pause = min(FIRST_PAUSE * 2 ** (self._failures - 1), LONGEST_PAUSE) if self._failures > 1 else 0.0
        self.due = None if self._failures > MOST_FAILURES else time.monotonic() + pause


def _sample(line: bytes) -> bytes | None:
    """Of `0, 35, 1234`, as it is kept; None where the GPU does not say how busy it is. Unknown memory is `-`."""
    try:
        index, used, memory = (part.strip() for part in line.split(b","))
        filled = b"-" if _UNKNOWN.fullmatch(memory) else b"%d" % int(memory)
        return b"%d %d %d %b\n" % (time.time(), int(index), int(used), filled)
    except ValueError:
        return None


def _read(line: bytes) -> tuple[int, int, int | None]:
    """When, how busy in percent, and how much memory; a line that is torn raises ValueError."""
    moment, _index, used, filled = line.split()
    return int(moment), int(used), None if filled == b"-" else int(filled)


def _append(file: str, lines: list[bytes]) -> None:
    with contextlib.suppress(OSError):  # a full disk: the job is more than its samples
        number = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(number, b"".join(lines))
        finally:
            os.close(number)


def usage(wire: Wire, request: dict[str, Any]) -> None:
    """What the samples of a run come to."""
    wire.send_json(summary(states.path(request["run"], SAMPLES)))


def summary(file: str) -> dict[str, Any]:
    """Of a file of samples. Lines that are torn count for nothing."""
    count = total = peak = 0
    first = last = memory = None
    with contextlib.suppress(FileNotFoundError), open(file, "rb") as lines:
        for line in lines:
            try:
                moment, used, filled = _read(line)
            except ValueError:
                continue
            if not line.endswith(b"\n") or not 0 <= used <= 100:
                continue
            count, total, peak = count + 1, total + used, max(peak, used)
            memory = memory if filled is None else max(memory or 0, filled)
            first, last = moment if first is None else min(first, moment), max(last or moment, moment)
    return {
        "samples": count,
        "seconds": float(last - first) if last is not None and first is not None else 0.0,
        "peakUtilization": peak,
        "meanUtilization": total / count if count else 0.0,
        "peakMemoryMib": memory,
    }


def busy_ago(file: str) -> float | None:
    """How many seconds ago a GPU was last seen at work; None where none was, lately."""
    with contextlib.suppress(OSError), open(file, "rb") as lines:
        start = max(0, os.fstat(lines.fileno()).st_size - TAIL_SIZE)
        lines.seek(start)
        # What begins in the middle of the file begins with a line that is torn.
        for line in reversed(lines.read().splitlines()[1 if start else 0 :]):
            try:
                moment, used, _ = _read(line)
            except ValueError:
                continue
            if BUSY_PERCENT <= used <= 100:
                return max(0.0, time.time() - moment)
    return None


VERBS: dict[str, Callable[..., None]] = {"usage": usage}
