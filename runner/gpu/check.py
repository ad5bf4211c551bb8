"""The GPU check: a job that asks for a GPU sees one, or it does not start, and the message says what is missing.

From the machine's driver to Docker, NVIDIA's runtime and the image, each part is judged by what it printed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from gpuinfra.models.gpu import GpuFacts
from gpuinfra.models.run import GpuUsage
from gpuinfra.runner.connection.port import Completed, Shell
from gpuinfra.runner.docker import check
from gpuinfra.runner.errors import ConnectError, JobError
from gpuinfra.runner.gpu.faults import HOST, IMAGE, REFUSALS, UNREGISTERED, Link
from gpuinfra.runner.gpu.nvidia_smi import PROBE, PROBE_MARK, NoGpuError, ask_one_by_one, read_probe
from gpuinfra.runner.job_spec import Gpus

NO_GPU = "no-gpu"
SUMMARY = "the job would have no GPU"
ASK_SECONDS = 60.0
LONGEST_SAID = 300
# Shorter jobs may end before the first sample.
SHORT_SECONDS = 5.0
ALL = Gpus()


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known about a GPU that is not there. All of it may be missing."""

    probe: Completed | None = None
    """What `nvidia-smi` said in the job's own container."""
    refusal: str = ""
    """With what the engine refused to start that container."""
    host: GpuFacts | Completed | None = None
    """The machine's own GPUs, or how its own `nvidia-smi` failed; None where it was not to be asked."""
    gives_gpus: bool | None = None
    """Whether the engine has a runtime, a hook or devices for GPUs; None where that is not known."""
    wanted: Gpus = ALL
    image: str = "the image"
    where: str = "the machine"


def diagnose(
    error: NoGpuError | JobError,
    *,
    shell: Shell,
    in_container: bool,
    wanted: Gpus | None = None,
    image: str = "the image",
    where: str = "the machine",
) -> JobError:
    """Why a probe failed, or with what the engine refused it; the machine is asked for what else there is to know."""
    wanted = wanted or ALL
    done = error.done if isinstance(error, NoGpuError) else None
    refusal = "" if isinstance(error, NoGpuError) else str(error)
    if not in_container:
        return judge(Evidence(refusal=refusal, host=done, wanted=wanted, where=where))
    host = _host(shell)
    # An engine that has said no need not be asked whether it can.
    gives_gpus = None if refusal else _gives_gpus(shell)
    return judge(Evidence(done, refusal, host, gives_gpus, wanted, image, where))


def _host(shell: Shell) -> GpuFacts | Completed | None:
    """A machine that hangs, or has gone, has said nothing."""
    try:
        return probe_host(shell, ASK_SECONDS)
    except NoGpuError as error:
        return error.done
    except ConnectError:
        return None


def _gives_gpus(shell: Shell) -> bool | None:
    with contextlib.suppress(ConnectError):
        done = shell.run(["sh", "-c", check.script(docker=True, gpu=True)], timeout=ASK_SECONDS)
        checks = {each.name: each.passed for each in check.judge(check.read(done.stdout), docker=True, gpu=True)}
        return checks["nvidia-runtime"] if checks["docker"] else None
    return None


def judge(evidence: Evidence) -> JobError:
    """Return the error for the first fault that is found, and how to fix it."""
    if isinstance(evidence.host, GpuFacts) and (missing := shortage(evidence.host, evidence.wanted, evidence.where)):
        return missing
    for links, said in _places(evidence):
        link = next((link for link in links if link.is_seen_in(said)), None)
        if link:
            return _error(evidence, link.note, link.help, said)
    return _unknown(evidence)


def _places(evidence: Evidence) -> list[tuple[tuple[Link, ...], str]]:
    """Where to look, in order: what proves that the driver works comes before what the host prints."""
    proof = tuple(link for link in REFUSALS if link.proves_driver)
    host = _said(evidence.host) if isinstance(evidence.host, Completed) else ""
    # An engine that passes on no GPU still starts the container if it does not know GPUs at all.
    engine = (UNREGISTERED,) if evidence.gives_gpus is False else ()
    return [
        (proof, evidence.refusal),
        (HOST, host),
        (REFUSALS, evidence.refusal),
        (engine, UNREGISTERED.signs[0]),
        (IMAGE, _said(evidence.probe)),
    ]


def _is_there(facts: GpuFacts, wanted: str) -> bool:
    if wanted.isdigit():
        return int(wanted) < len(facts.models)
    names = [each for each in facts.uuids if each]
    # One may be named by the beginning of its name, and the parts of one that is cut up have names that are not told.
    return not names or wanted.startswith("MIG-") or any(each.startswith(wanted) for each in names)


def shortage(facts: GpuFacts, wanted: Gpus, where: str = "the machine") -> JobError | None:
    """Return the error for a job that asks for more GPUs than the machine has, or for others."""
    there = len(facts.models)
    strange = [each for each in wanted.ids if not _is_there(facts, each)]
    if (wanted.count or 0) <= there and not strange:
        return None
    asked = f"GPU {', '.join(strange)}" if strange else f"{wanted.count} GPUs"
    numbers = f"numbered 0 to {there - 1}" if there > 1 else "numbered 0"
    note = f"the job asks for {asked}, and {where} has {there}, {numbers}: {facts.summary}"
    return JobError(SUMMARY, note, f"ask for fewer: `--gpus {there}`", NO_GPU)


def hides_all(value: str, facts: GpuFacts) -> bool:
    """Whether CUDA_VISIBLE_DEVICES shows a program no GPU: CUDA stops reading the list at the first unknown entry."""
    first = value.split(",", maxsplit=1)[0].strip()
    known = first.isdecimal() or first.startswith(("GPU-", "MIG-"))
    return not known or not _is_there(facts, first)


def hidden(variable: str, place: str) -> JobError:
    """The error for a variable that hides every GPU from a job that asks for one; `place` says where it is set."""
    note = f"`{variable}` hides every GPU from the job; it is set {place}"
    return JobError(SUMMARY, note, "remove the variable there; `--gpus` says which GPUs the job gets", NO_GPU)


def _error(evidence: Evidence, note: str, help: str, said: str) -> JobError:  # noqa: A002 the diagnostic's own word
    note, help = (text.replace("IMAGE", evidence.image).replace("WHERE", evidence.where) for text in (note, help))  # noqa: A001
    return JobError(
        SUMMARY, f"{note}; it said: {_brief(said)}" if said != UNREGISTERED.signs[0] else note, help, NO_GPU
    )


def _unknown(evidence: Evidence) -> JobError:
    said = evidence.refusal or _said(evidence.probe)
    if not said and isinstance(evidence.host, Completed):
        said = _said(evidence.host)
    help = f"look for yourself on {evidence.where}: `nvidia-smi`, then `docker run --rm --gpus all IMAGE nvidia-smi`"  # noqa: A001
    works = " although the machine's own does" if isinstance(evidence.host, GpuFacts) else ""
    told = f"it said: {_brief(said)}" if said else "it printed nothing"
    return JobError(
        SUMMARY, f"`nvidia-smi` does not work{works}; {told}", help.replace("IMAGE", evidence.image), NO_GPU
    )


def _said(done: Completed | None) -> str:
    if done is None:
        return ""
    said = " ".join(f"{done.stdout}\n{done.stderr}".split())
    # No shell says it in the same words, and an engine says it in none.
    return f"{said} (nvidia-smi: not found)" if done.exit_code in NOT_FOUND else said


def _brief(said: str) -> str:
    """On one line, and the end of a long one: engines put the cause last."""
    line = " ".join(said.split())
    return line if len(line) <= LONGEST_SAID else f"…{line[-LONGEST_SAID:]}"


def usage_warning(usage: GpuUsage | None, seconds: float) -> str | None:
    """What to tell of a job that had a GPU and, as far as is known, did not use it."""
    if usage is None or not usage.samples:
        if seconds < SHORT_SECONDS:
            return None
        return f"whether the GPU was used is not known: there is no sample of the {seconds:.0f} s that the job ran"
    if usage.was_used:
        return None
    count = "1 sample" if usage.samples == 1 else f"{usage.samples} samples"
    idle = f"the GPU was never used: {count} over {seconds:.0f} s saw it idle"
    if usage.peak_memory_mib is None:
        return idle
    memory = f"at most {usage.peak_memory_mib} MiB of its memory" if usage.peak_memory_mib else "none of its memory"
    return f"{idle}, with {memory} in use"


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
    done = _run(run, list(PROBE))
    if done.exit_code in NOT_FOUND and PROBE_MARK not in done.stdout:
        return ask_one_by_one(lambda command: _run(run, command))
    return read_probe(done)


def probe_host(shell: Shell, timeout: float) -> GpuFacts:
    """The machine's own GPUs. NoGpuError where there are none; ConnectError where it stops answering."""
    return read_probe(shell.run(list(PROBE), timeout=timeout))


def _run(run: Run, command: list[str]) -> Completed:
    try:
        return run(command)
    except JobError as error:
        # The hook of NVIDIA's runtime is a program as well, and its absence another matter.
        if any(sign in str(error) for sign in NO_PROGRAM) and f'exec: "{command[0]}"' in str(error):
            return Completed(NOT_FOUND[1], "", str(error))
        raise
