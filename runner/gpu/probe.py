"""Ask the machine, or a container on it, for its GPUs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from gpuinfra.models.gpu import GpuFacts
from gpuinfra.runner.connection.port import Completed, Shell
from gpuinfra.runner.errors import JobError
from gpuinfra.runner.gpu.nvidia_smi import FIELDS, NO_DEVICES, NoGpuError, parse, query
from gpuinfra.runner.gpu.nvidia_smi_xml import NO_ATTACHED_GPUS, parse_xml

DESCRIBE = ("nvidia-smi", "-q", "-x")
# The XML does not contain the compute capability.
QUERY = tuple(query(FIELDS))

# Follows the text that the start-up files of a user's shell print, on either stream.
PROBE_MARK = "@@gpuinfra gpu"
# CUDA uses only the GPUs in this variable, but `nvidia-smi` shows all.
VISIBLE = "CUDA_VISIBLE_DEVICES"
VISIBLE_LINE = re.compile(rf"^@@gpuinfra {VISIBLE}=(.*)$", re.MULTILINE)
# On one line and without `!`, because csh, which may be the user's shell, accepts neither in quotes. A driver that is
# too old for the compute capability is not an error.
PROBE_SCRIPT = (
    f'exec 2>&1; test -z "${{{VISIBLE}+set}}" || echo "@@gpuinfra {VISIBLE}=${VISIBLE}"; echo "{PROBE_MARK}"; '
    f'{" ".join(DESCRIBE)}; code=$?; echo; echo "{PROBE_MARK} $code"; '
    f'test $code -eq 0 || exit $code; {" ".join(QUERY)}; code=$?; echo; echo "{PROBE_MARK} $code"'
)
PROBE: tuple[str, ...] = ("sh", "-c", PROBE_SCRIPT)
"""One command for all values, which `read_probe` parses. For images without `sh`, see `probe_container`."""
# Exit codes of a shell and of the Docker program for a missing or not executable command.
NOT_FOUND = (126, 127)
# Messages of engines for the same.
NO_PROGRAM = ("executable file not found", "no such file or directory: unknown")

Run = Callable[[list[str]], Completed]
"""Runs a command in a container like the job's. For a missing program, it returns exit code 127 or raises JobError."""


def probe_container(run: Run) -> GpuFacts:
    """Return the GPUs that a job in a container will see, or raise NoGpuError. Needs two containers without a shell."""
    done = _run(run, list(PROBE))
    if done.exit_code in NOT_FOUND and PROBE_MARK not in done.stdout:
        return ask_one_by_one(lambda command: _run(run, command))
    return read_probe(done)


def probe_host(shell: Shell, timeout: float) -> GpuFacts:
    """Return the machine's GPUs. Raises NoGpuError and ConnectError."""
    return read_probe(shell.run(list(PROBE), timeout=timeout))


def _run(run: Run, command: list[str]) -> Completed:
    try:
        return run(command)
    except JobError as error:
        # The message may also be about NVIDIA's runtime hook, which is another error.
        if any(sign in str(error) for sign in NO_PROGRAM) and f'exec: "{command[0]}"' in str(error):
            return Completed(NOT_FOUND[1], "", str(error))
        raise


def read_probe(done: Completed) -> GpuFacts:
    """Parse the output of `PROBE`. Raise NoGpuError if it has no GPU."""
    before, *parts = re.split(rf"^{PROBE_MARK}(?: ([0-9]{{1,3}}))?\n", done.stdout, flags=re.MULTILINE)
    # The first mark has no exit code; each other mark follows the output of its command.
    answers = [Completed(int(code), said, "") for said, code in zip(parts[1::2], parts[2::2], strict=False) if code]
    if not answers:
        raise NoGpuError(done)
    found = combine_answers(answers[0], answers[1] if len(answers) > 1 else None)
    visible = VISIBLE_LINE.search(before)
    return replace(found, cuda_visible_devices=visible[1].strip()) if visible else found


def combine_answers(described: Completed, table: Completed | None) -> GpuFacts:
    """Combine the description and the table, which has the compute capability if the driver knows it."""
    facts = parse_xml(described.stdout) if described.exit_code == 0 else None
    short = parse(table.stdout) if table and table.exit_code == 0 else None
    if facts and short and len(short.models) == len(facts.models):
        return replace(facts, compute_capabilities=short.compute_capabilities)
    # Another version of the driver may print a description that cannot be parsed, but its table is sufficient.
    found = facts or short
    if described.exit_code or not found:
        has_none = described.exit_code == 0 and NO_ATTACHED_GPUS.search(described.stdout)
        raise NoGpuError(Completed(0, NO_DEVICES, "") if has_none else described)
    return found


def ask_one_by_one(run: Callable[[list[str]], Completed]) -> GpuFacts:
    """Ask with two commands, for images without a shell."""
    described = run(list(DESCRIBE))
    return combine_answers(described, run(list(QUERY)) if described.exit_code == 0 else None)
