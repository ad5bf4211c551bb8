"""The contract: a job that was promised a GPU finds one, or it does not begin, and somebody is told which link broke.

From the host's driver over the engine and NVIDIA's runtime to the image, each link is judged by what was said there.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from gpuinfra.models.gpu import GpuFacts
from gpuinfra.models.run import GpuUsage
from gpuinfra.runner.gpu.links import HOST, IMAGE, REFUSALS, UNREGISTERED, Link
from gpuinfra.runner.gpu.nvidia_smi import NoGpuError
from gpuinfra.runner.gpu.probe import NOT_FOUND, probe_host
from gpuinfra.runner.jobs.order import Gpus
from gpuinfra.runner.jobs.port import JobError
from gpuinfra.runner.machine import checkup
from gpuinfra.runner.machine.connection import Completed, ConnectError, Shell

CODE = "no-gpu"
SUMMARY = "the job would have no GPU"
ASK_SECONDS = 60.0
LONGEST_SAID = 300
# Shorter jobs may end before anybody has looked.
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
        done = shell.run(["sh", "-c", checkup.script(docker=True, gpu=True)], timeout=ASK_SECONDS)
        checks = {each.name: each.passed for each in checkup.judge(checkup.read(done.stdout), docker=True, gpu=True)}
        return checks["nvidia-runtime"] if checks["docker"] else None
    return None


def judge(evidence: Evidence) -> JobError:
    """The first link that is broken, and how to mend it."""
    if isinstance(evidence.host, GpuFacts) and (missing := shortage(evidence.host, evidence.wanted, evidence.where)):
        return missing
    for links, said in _places(evidence):
        link = next((link for link in links if link.is_seen_in(said)), None)
        if link:
            return _error(evidence, link.note, link.help, said)
    return _unknown(evidence)


def _places(evidence: Evidence) -> list[tuple[tuple[Link, ...], str]]:
    """Where to look, in order: what proves that the driver works comes before what the host says of itself."""
    proof = tuple(link for link in REFUSALS if link.proves_driver)
    host = _said(evidence.host) if isinstance(evidence.host, Completed) else ""
    # An engine that passes on no GPU starts the container all the same where it does not know of GPUs at all.
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
    """What to say to whoever asks for more GPUs than there are, or for others."""
    there = len(facts.models)
    strange = [each for each in wanted.ids if not _is_there(facts, each)]
    if (wanted.count or 0) <= there and not strange:
        return None
    asked = f"GPU {', '.join(strange)}" if strange else f"{wanted.count} GPUs"
    numbers = f"numbered 0 to {there - 1}" if there > 1 else "numbered 0"
    note = f"the job asks for {asked}, and {where} has {there}, {numbers}: {facts.summary}"
    return JobError(SUMMARY, note, f"ask for what there is: `--gpus {there}`", CODE)


def hides_all(value: str, facts: GpuFacts) -> bool:
    """Whether CUDA_VISIBLE_DEVICES shows a program no GPU: CUDA stops reading the list at the first unknown entry."""
    first = value.split(",", maxsplit=1)[0].strip()
    known = first.isdecimal() or first.startswith(("GPU-", "MIG-"))
    return not known or not _is_there(facts, first)


def hidden(variable: str, place: str) -> JobError:
    """The error for a variable that hides every GPU from a job that asks for one; `place` says where it is set."""
    note = f"`{variable}` hides every GPU from the job; it is set {place}"
    return JobError(SUMMARY, note, "remove the variable there; `--gpus` says which GPUs the job gets", CODE)


def _error(evidence: Evidence, note: str, help: str, said: str) -> JobError:  # noqa: A002 the diagnostic's own word
    note, help = (text.replace("IMAGE", evidence.image).replace("WHERE", evidence.where) for text in (note, help))  # noqa: A001
    return JobError(SUMMARY, f"{note}; it said: {_brief(said)}" if said != UNREGISTERED.signs[0] else note, help, CODE)


def _unknown(evidence: Evidence) -> JobError:
    said = evidence.refusal or _said(evidence.probe)
    if not said and isinstance(evidence.host, Completed):
        said = _said(evidence.host)
    help = f"look for yourself on {evidence.where}: `nvidia-smi`, then `docker run --rm --gpus all IMAGE nvidia-smi`"  # noqa: A001
    works = " although the machine's own does" if isinstance(evidence.host, GpuFacts) else ""
    told = f"it said: {_brief(said)}" if said else "nobody said why"
    return JobError(SUMMARY, f"`nvidia-smi` does not work{works}; {told}", help.replace("IMAGE", evidence.image), CODE)


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
