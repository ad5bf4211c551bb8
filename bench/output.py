"""Compare the time of a job that prints a million lines with OpenSSH and Docker by hand, and measure memory and delays.

gpuinfra sets PYTHONUNBUFFERED, so that lines appear when they are printed, which costs a Python job time. So one job
writes blocks by itself, and the other one gets the variable in both ways.
"""

import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.job import by_hand
from bench.ratio import Ratio
from tests.lab import LOCAL, PYTHON, REMOTE, REMOTEDOCKER, Lab, LabUser, running

ROUNDS = 3
LINES, FEW = 1_000_000, 1000
LIMIT = 1.2
MEMORY_LIMIT = 1.1
TICK_SECONDS = 0.3
PROGRAM = str(Path(sys.executable).with_name("gpuinfra"))
BLOCKS = """
import sys
out = open(1, "w", buffering=1 << 13, closefd=False)
for number in range(int(sys.argv[1])):
    out.write(f"epoch {number} loss 0.12345 accuracy 0.98765\\n")
out.flush()
"""
PRINTS = """
import sys
for number in range(int(sys.argv[1])):
    print("epoch", number, "loss 0.12345 accuracy 0.98765")
"""
TICKS = """
import sys, time
for _ in range(20):
    sys.stdout.write(f"\\r<{time.time()}>")
    sys.stdout.flush()
    time.sleep(0.25)
"""


class Measured(NamedTuple):
    seconds: float
    memory: int
    """The peak of the client's own memory, in KiB."""


def measure() -> Sequence[Ratio]:
    """Return ratios of median times in alternating rounds, of memory, and of the longest delay to its limit."""
    with running() as lab:
        user = lab.user()
        user.compute(nvidiaDocker=False)
        for name, text in {"blocks.py": BLOCKS, "prints.py": PRINTS, "ticks.py": TICKS}.items():
            user.script(text, name)
            (lab.home / name).write_text(text)
        return [
            *_lines(lab, user, "blocks.py", "ssh host docker run"),
            *_lines(lab, user, "prints.py", "ssh host docker run --env PYTHONUNBUFFERED=1"),
            *(_ticks(user, name) for name in (REMOTEDOCKER, REMOTE, LOCAL)),
        ]


def _lines(lab: Lab, user: LabUser, script: str, of: str) -> Sequence[Ratio]:
    ours = [PROGRAM, "submit", "-c", REMOTEDOCKER, script]
    mount = ("--volume", f"{lab.home}:/project", *(["--env", "PYTHONUNBUFFERED=1"] if "PYTHON" in of else []))
    manual = by_hand(lab, user, "docker", "run", "--rm", *mount, PYTHON, "python", f"/project/{script}", str(LINES))
    few = _run([*ours, str(FEW)], user)
    times: tuple[list[float], list[float]] = ([], [])
    memory = 0
    for number in range(ROUNDS):
        for which in (0, 1) if number % 2 else (1, 0):
            found = _run((manual if which else [*ours, str(LINES)]), user)
            times[which].append(found.seconds)
            memory = memory if which else max(memory, found.memory)
    shown = " · ".join(" ".join(f"{seconds:.2f}" for seconds in each) for each in times)
    print(f"{LINES:,} lines, {script}: ours · by hand {shown} s, {memory} KiB", file=sys.stderr, flush=True)
    return [
        Ratio(f"{LINES:,} lines, {script}", of, median(times[0]) / median(times[1]), LIMIT),
        Ratio(f"memory for {LINES:,} lines, {script}", f"{FEW:,} lines", memory / few.memory, MEMORY_LIMIT),
    ]


def _run(command: Sequence[str], user: LabUser) -> Measured:
    began = time.perf_counter()
    # Not DEVNULL: a pipe whose reader takes everything.
    process = subprocess.Popen(
        command,
        cwd=user.workspace,
        env={**os.environ, **user.variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    count = memory = 0
    while process.stdout and (data := os.read(process.stdout.fileno(), 1 << 20)):
        count += data.count(b"\n")
        if count in {LINES, FEW}:
            memory = _peak_memory(process.pid)
    process.wait()
    seconds = time.perf_counter() - began
    if process.returncode or count not in {LINES, FEW}:
        sys.exit(f"{' '.join(command)} ended with {process.returncode} after {count} lines")
    return Measured(seconds, memory)


def _peak_memory(process: int) -> int:
    """Return the peak of a running program, without that of the process that started it."""
    (line,) = (line for line in Path(f"/proc/{process}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1])


def _ticks(user: LabUser, name: str) -> Ratio:
    """Return the longest time between the moment when a job prints a part of a line and when a terminal gets it."""
    ours, theirs = pty.openpty()
    command = [PROGRAM, "submit", "--yes", "-c", name, "ticks.py"]
    environment = {**os.environ, **user.variables, "TERM": "xterm"}
    process = subprocess.Popen(
        command, cwd=user.workspace, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    delays: list[float] = []
    seen = b""
    while data := _read(ours):
        now, seen = time.time(), seen + data
        delays += [now - float(found[1]) for found in re.finditer(rb"<([0-9.]+)>", seen)]
        seen = seen[seen.rfind(b">") + 1 :]
    os.close(ours)
    if process.wait(60) or len(delays) != 20:
        sys.exit(f"{' '.join(command)} ended with {process.returncode} after {len(delays)} ticks")
    print(f"ticks, {name}: {' '.join(f'{each:.3f}' for each in delays)} s", file=sys.stderr, flush=True)
    return Ratio(f"longest delay of a tick, {name}", f"{TICK_SECONDS} s", max(delays) / TICK_SECONDS, 1.0)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # the program has closed its end
        return b""
