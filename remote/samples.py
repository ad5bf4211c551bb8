"""Sample the GPUs while a job runs: one long-lived `nvidia-smi` prints samples, which are written to a file."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Sequence
from typing import Any

from gpuinfra.remote import states
from gpuinfra.remote.run_folder import SAMPLES
from gpuinfra.remote.wire import Wire

# `nvidia-smi` prints this for a value that a GPU does not report.
_UNKNOWN = re.compile(rb"N/A|\[[^\]]*\]")
QUERY = ("--query-gpu=index,utilization.gpu,memory.used", "--format=csv,noheader,nounits")
PERIOD_SECONDS = 2
FIRST_PAUSE, MAX_PAUSE = 1.0, 60.0
# Give up after this many failures, for machines and images without `nvidia-smi`.
MAX_FAILURES = 8
MAX_LINE = 1000
# A GPU with a lower utilization is idle.
BUSY_PERCENT = 5
# Holds the last samples of sixteen GPUs.
LATEST_SIZE, LATEST_SECONDS = 1 << 11, 10.0
# Holds half an hour of samples of four GPUs; clients ask more often.
TAIL_SIZE = 1 << 16


class Sampler:
    """Samples GPUs. Call `serve` when its file is readable, and `start` when it is due."""

    def __init__(self, command: Sequence[str], file: str) -> None:
        self._command, self._file = list(command), file
        self._child: Any = None
        self.sessions: list[int] = []
        """The sessions of the last two programs that it started."""
        self._rest = b""
        self._has_samples, self._is_looping, self._failures = False, True, 0
        self.due: float | None = time.monotonic()
        """When to call `start`, or None while the program runs or after too many failures."""

    @property
    def fileno(self) -> int | None:
        """Return the file to wait for, or None while no program runs."""
        return self._child.stdout.fileno() if self._child else None

    def start(self) -> None:
        """Start `nvidia-smi`, in a loop if it supports that."""
        import subprocess  # slow to import, and few calls need it

        self.due, self._rest, self._has_samples = None, b"", False
        command = [*self._command, *QUERY, *(("-l", str(PERIOD_SECONDS)) if self._is_looping else ())]
        null = subprocess.DEVNULL
        try:
            self._child = subprocess.Popen(  # noqa: S603 no word of it is from others
                command, stdin=null, stdout=subprocess.PIPE, stderr=null, start_new_session=True
            )
            self.sessions = [*self.sessions[-1:], self._child.pid]
        except OSError:
            self._schedule_start()

    def serve(self) -> None:
        """Read the available output, and store its samples."""
        data = os.read(self._child.stdout.fileno(), 1 << 16)
        if not data:
            self.stop()
            self._schedule_start()
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        del lines[:-1000]
        self._rest = self._rest[-MAX_LINE:]
        found = [sample for sample in map(_parse_output, lines) if sample]
        if found:
            self._has_samples, self._failures = True, 0
            _append(self._file, found)

    def stop(self) -> None:
        """Stop the program. A second call does nothing."""
        if self._child:
            child, self._child = self._child, None
            child.kill()
            child.stdout.close()
            with contextlib.suppress(Exception):  # it may hang in the kernel
                child.wait(5)

    def _schedule_start(self) -> None:
        """Decide when and how to start the program again, after it has ended."""
        if self._has_samples:
            pause = FIRST_PAUSE if self._is_looping else PERIOD_SECONDS
        else:
            # This version may not support the loop option.
            self._is_looping = not self._is_looping
            self._failures += 1
            pause = min(FIRST_PAUSE * 2 ** (self._failures - 1), MAX_PAUSE) if self._failures > 1 else 0.0
        self.due = None if self._failures > MAX_FAILURES else time.monotonic() + pause


def _parse_output(line: bytes) -> bytes | None:
    """Return the stored form of a line like `0, 35, 1234`, or None if it has no utilization. Unknown memory is `-`."""
    try:
        index, used, memory = (part.strip() for part in line.split(b","))
        filled = b"-" if _UNKNOWN.fullmatch(memory) else b"%d" % int(memory)
        return b"%d %d %d %b\n" % (time.time(), int(index), int(used), filled)
    except ValueError:
        return None


def _parse_sample(line: bytes) -> tuple[int, int, int | None]:
    """Return the time, utilization and memory in a stored line. Raise ValueError if the line is incomplete."""
    moment, _index, used, filled = line.split()
    return int(moment), int(used), None if filled == b"-" else int(filled)


def _append(file: str, lines: list[bytes]) -> None:
    with contextlib.suppress(OSError):  # a full disk must not end the job
        number = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(number, b"".join(lines))
        finally:
            os.close(number)


def usage(wire: Wire, request: dict[str, Any]) -> None:
    """Send a summary of a run's samples."""
    wire.send_json(summary(states.path(request["run"], SAMPLES)))


def summary(file: str) -> dict[str, Any]:
    """Return a summary of a file of samples. Incomplete lines are ignored."""
    count = total = peak = 0
    first = last = memory = None
    with contextlib.suppress(FileNotFoundError), open(file, "rb") as lines:
        for line in lines:
            try:
                moment, used, filled = _parse_sample(line)
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


def latest(file: str) -> dict[str, Any] | None:
    """Return the last sample of all GPUs together: mean utilization, and memory in MiB. None if it is old."""
    used: dict[int, int] = {}
    filled: dict[int, int | None] = {}
    with contextlib.suppress(OSError), open(file, "rb") as lines:
        lines.seek(max(0, os.fstat(lines.fileno()).st_size - LATEST_SIZE))
        for line in lines.read().splitlines():
            with contextlib.suppress(ValueError):
                moment, utilization, memory = _parse_sample(line)
                if 0 <= utilization <= 100 and abs(time.time() - moment) <= LATEST_SECONDS:
                    index = int(line.split()[1])
                    used[index], filled[index] = utilization, memory
    if not used:
        return None
    known = [memory for memory in filled.values() if memory is not None]
    return {"utilization": sum(used.values()) / len(used), "memoryMib": sum(known) if known else None}


def busy_ago(file: str) -> float | None:
    """Return how many seconds ago a GPU was last seen busy, or None if the last samples show none."""
    with contextlib.suppress(OSError), open(file, "rb") as lines:
        start = max(0, os.fstat(lines.fileno()).st_size - TAIL_SIZE)
        lines.seek(start)
        # When the read starts in the middle of the file, the first line is incomplete.
        for line in reversed(lines.read().splitlines()[1 if start else 0 :]):
            try:
                moment, used, _ = _parse_sample(line)
            except ValueError:
                continue
            if BUSY_PERCENT <= used <= 100:
                return max(0.0, time.time() - moment)
    return None
