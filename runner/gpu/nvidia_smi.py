"""What `nvidia-smi` answers, and what it means when it does not."""

from __future__ import annotations

import re

from gpuinfra.models.gpu import GpuFacts
from gpuinfra.runner.machine.connection import Completed, Shell

FIELDS = ("name", "driver_version", "memory.total", "compute_cap")
# Drivers before 510 do not know it.
NEWEST_FIELD = "compute_cap"
# The word by which what is not real says so.
SIMULATED = "simulated"

# What the start-up files of a user's shell print stands before the mark, on either stream.
MARK = "@@gpuinfra nvidia-smi"
SCRIPT = f'exec 2>&1; echo "{MARK}"; exec "$@"'
# `[N/A]` and its like where the driver cannot tell. No GPU has as much memory as more digits would say.
UNKNOWN = re.compile(r"N/A|\[[^\]]*\]")
MEMORY = re.compile(rf"([0-9]{{1,9}}) MiB|{UNKNOWN.pattern}")

NO_DEVICES = "No devices were found"
FINDS_NONE = "the NVIDIA driver finds no GPU"
# What the tool prints when something is wrong, and what that comes from.
DIAGNOSES = (
    ("couldn't communicate with the NVIDIA driver", "the NVIDIA driver is not loaded"),
    ("Driver/library version mismatch", "the NVIDIA driver was updated while it was loaded; restart the machine"),
    (NO_DEVICES, FINDS_NONE),
    ("Unable to determine the device handle", "the GPU has fallen off the bus; restart the machine"),
    ("not found", "nvidia-smi is not installed: the image has no NVIDIA driver"),
)


class NoGpuError(Exception):
    """No GPU that works: why, in the tool's own words."""

    def __init__(self, done: Completed) -> None:
        super().__init__(diagnosis(done))
        self.done = done

    @property
    def is_absent(self) -> bool:
        """Whether the driver works and finds no GPU."""
        return str(self).startswith(FINDS_NONE)


def ask(connection: Shell, timeout: float) -> GpuFacts:
    """The machine's GPUs, one at least."""
    done = _run(connection, FIELDS, timeout)
    if done.exit_code and f'"{NEWEST_FIELD}" is not a valid field' in done.stdout:
        done = _run(connection, FIELDS[:-1], timeout)
    facts = parse(done.stdout) if done.exit_code == 0 else None
    if facts is None:
        raise NoGpuError(done)
    return facts


def _run(connection: Shell, fields: tuple[str, ...], timeout: float) -> Completed:
    """By `sh`, whatever shell the user has there; what that said of itself is left out."""
    done = connection.run(["sh", "-c", SCRIPT, "sh", *query(fields)], timeout=timeout)
    _, mark, said = done.stdout.rpartition(f"{MARK}\n")
    return Completed(done.exit_code, said, "") if mark else done


def query(fields: tuple[str, ...]) -> list[str]:
    """The command that asks for these fields."""
    return ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]


def parse(output: str) -> GpuFacts | None:
    """A line a GPU: `Tesla T4, 535.161.08, 15360 MiB, 7.5`. None where there is no such line; others do not count."""
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
    """The cause, where it is a known one, and what the tool said."""
    lines = [line.strip() for line in f"{done.stdout}\n{done.stderr}".splitlines()]
    said = " ".join(line for line in lines if line)[:300]
    if not said and done.exit_code == 0:
        return f"{FINDS_NONE}; nvidia-smi lists none"
    said = said or "nothing"
    cause = next((cause for words, cause in DIAGNOSES if words in said), None)
    told = f"nvidia-smi ended with {done.exit_code} and said: {said}"
    return f"{cause}; {told}" if cause else told
