"""Asking for a job's GPUs: in a container just as the job's, or on the machine itself."""

from __future__ import annotations

from collections.abc import Callable

from gpuinfra.models.gpu import GpuFacts
from gpuinfra.runner.gpu import facts
from gpuinfra.runner.gpu.nvidia_smi import NoGpuError
from gpuinfra.runner.jobs.port import JobError
from gpuinfra.runner.machine.connection import Completed, Shell

__all__ = ["NoGpuError", "probe_container", "probe_host"]

# Of a shell, and of the Docker program: there is no such command, or it cannot be run.
NOT_FOUND = (126, 127)
# How an engine says so.
NO_PROGRAM = ("executable file not found", "no such file or directory: unknown")

Run = Callable[[list[str]], Completed]
"""Runs a command in a container just as the job's. Where the image has no such program it gives 127, or raises what
the engine said."""


def probe_container(run: Run) -> GpuFacts:
    """The GPUs that a job in a container will see: one container, or two where the image has no shell. NoGpuError
    where there are none; what else `run` raises goes through."""
    done = _run(run, list(facts.PROBE))
    if done.exit_code in NOT_FOUND and facts.MARK not in done.stdout:
        return facts.ask_one_by_one(lambda command: _run(run, command))
    return facts.read(done)


def probe_host(shell: Shell, timeout: float) -> GpuFacts:
    """The machine's own GPUs. NoGpuError where there are none; ConnectError where it stops answering."""
    return facts.read(shell.run(list(facts.PROBE), timeout=timeout))


def _run(run: Run, command: list[str]) -> Completed:
    try:
        return run(command)
    except JobError as error:
        # The hook of NVIDIA's runtime is a program as well, and its absence another matter.
        if any(sign in str(error) for sign in NO_PROGRAM) and f'exec: "{command[0]}"' in str(error):
            return Completed(NOT_FOUND[1], "", str(error))
        raise
