"""Query GPUs with `nvidia-smi`, and explain its errors."""

from __future__ import annotations

import re

from gpuinfra.models.gpu import GpuFacts
from gpuinfra.runner.connection.port import Completed, Shell

FIELDS = ("name", "driver_version", "memory.total", "compute_cap")
# Unknown to drivers before 510.
NEWEST_FIELD = "compute_cap"
# In the name of every simulated GPU.
SIMULATED = "simulated"

# Follows the text that the start-up files of a user's shell print, on either stream.
MARK = "@@gpuinfra nvidia-smi"
SCRIPT = f'exec 2>&1; echo "{MARK}"; exec "$@"'
# `[N/A]` or similar means that the driver does not know the value. No GPU has an amount with more digits.
UNKNOWN = re.compile(r"N/A|\[[^\]]*\]")
MEMORY = re.compile(rf"([0-9]{{1,9}}) MiB|{UNKNOWN.pattern}")

NO_DEVICES = "No devices were found"
FINDS_NONE = "the NVIDIA driver finds no GPU"
# Known errors in its output, with their causes.
DIAGNOSES = (
    ("couldn't communicate with the NVIDIA driver", "the NVIDIA driver is not loaded"),
    ("Driver/library version mismatch", "the NVIDIA driver was updated while it was loaded; restart the machine"),
    (NO_DEVICES, FINDS_NONE),
    ("Unable to determine the device handle", "the GPU has fallen off the bus; restart the machine"),
    ("not found", "nvidia-smi is not installed: the image has no NVIDIA driver"),
)


class NoGpuError(Exception):
    """There is no working GPU; the message has the output of `nvidia-smi`."""

    def __init__(self, done: Completed) -> None:
        super().__init__(diagnosis(done))
        self.done = done

    @property
    def is_absent(self) -> bool:
        """Return whether the driver works and finds no GPU."""
        return str(self).startswith(FINDS_NONE)


def ask(connection: Shell, timeout: float) -> GpuFacts:
    """Return the machine's GPUs. Raise NoGpuError if there are none."""
    done = _run(connection, FIELDS, timeout)
    if done.exit_code and f'"{NEWEST_FIELD}" is not a valid field' in done.stdout:
        done = _run(connection, FIELDS[:-1], timeout)
    facts = parse(done.stdout) if done.exit_code == 0 else None
    if facts is None:
        raise NoGpuError(done)
    return facts


def _run(connection: Shell, fields: tuple[str, ...], timeout: float) -> Completed:
    """Run the query with `sh`, and remove what the user's shell printed before it."""
    done = connection.run(["sh", "-c", SCRIPT, "sh", *query(fields)], timeout=timeout)
    _, mark, output = done.stdout.rpartition(f"{MARK}\n")
    return Completed(done.exit_code, output, "") if mark else done


def query(fields: tuple[str, ...]) -> list[str]:
    """Return the command that queries these fields."""
    return ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]


def parse(output: str) -> GpuFacts | None:
    """Parse lines like `Tesla T4, 535.161.08, 15360 MiB, 7.5`, one per GPU. Return None if there is no such line."""
    lines = ([cell.strip() for cell in line.split(",")] for line in output.splitlines())
    rows = [cells for cells in lines if len(cells) in {3, 4} and MEMORY.fullmatch(cells[2])]
    if not rows:
        return None
    return GpuFacts(
        models=tuple(row[0] for row in rows),
        driver=rows[0][1],
        memory_mib=tuple(_mebibytes(row[2]) for row in rows),
        compute_capabilities=tuple(row[3] if len(row) > 3 and not UNKNOWN.fullmatch(row[3]) else None for row in rows),
        simulated=any(SIMULATED in row[0] for row in rows),
    )


def _mebibytes(cell: str) -> int | None:
    found = MEMORY.fullmatch(cell)
    return int(found[1]) if found and found[1] else None


def diagnosis(done: Completed) -> str:
    """Return the cause if it is known, and the output."""
    lines = [line.strip() for line in f"{done.stdout}\n{done.stderr}".splitlines()]
    output = " ".join(line for line in lines if line)[:300]
    if not output and done.exit_code == 0:
        return f"{FINDS_NONE}; nvidia-smi lists none"
    output = output or "nothing"
    cause = next((cause for words, cause in DIAGNOSES if words in output), None)
    result = f"nvidia-smi exited with code {done.exit_code} and printed: {output}"
    return f"{cause}; {result}" if cause else result
