"""Measure the start time of the program."""

import subprocess
import sys
import time
from collections.abc import Sequence

from bench.ratio import Ratio

ROUNDS = 15


def measure() -> Ratio:
    """Compare `gpuinfra --version` with the minimum of a Typer program: the best of alternating rounds."""
    ours = [sys.executable, "-m", "gpuinfra", "--version"]
    least = [sys.executable, "-c", "import typer"]
    pairs = [(_seconds(ours), _seconds(least)) for _ in range(ROUNDS)]
    value = min(pair[0] for pair in pairs) / min(pair[1] for pair in pairs)
    return Ratio("gpuinfra --version", 'python -c "import typer"', value, 1.5)


def _seconds(command: Sequence[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start
