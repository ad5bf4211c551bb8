"""The GPU check: a job that requests a GPU gets one, or it does not start and the message says what is missing.

The machine's driver, Docker, NVIDIA's runtime and the image are each checked by their output.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from gpuinfra.models.run import GpuUsage
from gpuinfra.models.target import GpuFacts
from gpuinfra.runner.connection.port import Completed, Shell
from gpuinfra.runner.docker import check
from gpuinfra.runner.docker.check import TOOLKIT
from gpuinfra.runner.errors import ConnectError, JobError
from gpuinfra.runner.job_spec import Gpus
from gpuinfra.runner.nvidia_smi import NOT_FOUND, NoGpuError, probe_host

RESTART = "restart the machine, to load the installed driver"
LOOK = "run on the machine: `nvidia-smi`, `sudo dmesg | grep -i nvrm`"


@dataclass(frozen=True, slots=True)
class GpuFault:
    """A fault. IMAGE and WHERE in its texts stand for the job's image and machine."""

    signs: tuple[str, ...]
    """Texts that identify it. Case is ignored."""
    note: str
    help: str
    proves_driver: bool = False
    """Whether the fault means that the driver works."""

    def matches(self, output: str) -> bool:
        """Return whether an output has one of its signs."""
        text = output.casefold()
        return any(sign.casefold() in text for sign in self.signs)


# From the output of the machine's `nvidia-smi`.
HOST = (
    GpuFault(
        ("couldn't communicate with the NVIDIA driver", "driver not loaded"),
        "the NVIDIA driver is not loaded on WHERE",
        "load it with `sudo modprobe nvidia`; if that fails, reinstall it for this kernel and restart the machine",
    ),
    GpuFault(
        ("Driver/library version mismatch",), "the NVIDIA driver was updated on WHERE while it was loaded", RESTART
    ),
    GpuFault(
        ("No devices were found",),
        "the NVIDIA driver on WHERE finds no GPU",
        "choose a VM size with a GPU (NC), or check whether the system sees it: `lspci | grep -i nvidia`",
    ),
    GpuFault(
        ("Unable to determine the device handle", "GPU is lost"),
        "a GPU of WHERE has fallen off the bus",
        "restart the machine; if it happens again, deallocate and start it, so that Azure moves it to other hardware",
    ),
    GpuFault(
        ("not found", "No such file"),
        "there is no NVIDIA driver on WHERE: `nvidia-smi` is not installed",
        "install the driver on the machine, or use a machine image with the driver, such as the Data Science VM",
    ),
)
UNREGISTERED = GpuFault(
    ("could not select device driver", "unknown or invalid runtime name: nvidia", "unknown runtime specified nvidia"),
    "the engine on WHERE gives containers no GPU: NVIDIA's runtime is not registered with it",
    TOOLKIT,
)
# From an engine's refusal of a container with GPUs. The first match counts, so specific signs come first.
REFUSALS = (
    GpuFault(
        ("unknown device", "unresolvable CDI devices"),
        "WHERE has no such GPU",
        "list the GPUs with `nvidia-smi -L` on the machine, then use `--gpus N` or listed numbers",
        proves_driver=True,
    ),
    GpuFault(
        ("unsatisfied condition",),
        "IMAGE needs a newer NVIDIA driver than WHERE has",
        "update the driver on the machine, or use an image for an earlier CUDA",
        proves_driver=True,
    ),
    UNREGISTERED,
    GpuFault(
        (
            'exec: "nvidia-container-runtime-hook"',
            'exec: "nvidia-container-cli"',
            "nvidia-container-runtime: no such file",
            "nvidia-container-runtime-hook: no such file",
            '"nvidia-container-runtime": executable file not found',
        ),
        "NVIDIA's runtime is registered with the engine on WHERE, but not or not completely installed",
        TOOLKIT,
    ),
    GpuFault(("driver/library version mismatch",), HOST[1].note, RESTART),
    GpuFault(("driver not loaded",), HOST[0].note, HOST[0].help),
    GpuFault(
        ("load library failed", "libnvidia-ml.so"),
        "NVIDIA's runtime does not find the driver's libraries on WHERE",
        "install the driver on the machine; if it is installed, run `sudo ldconfig` and restart the engine; an engine "
        "installed as a snap cannot use it",
    ),
    GpuFault(
        ("cgroup subsystem devices not found", "failed to get device cgroup"),
        "NVIDIA's runtime on WHERE is too old for the system's control groups",
        f"update it: {TOOLKIT}",
    ),
    GpuFault(
        ("ldcache error", "ldconfig"),
        "NVIDIA's runtime is not compatible with IMAGE or with the libraries of WHERE",
        f"update it: {TOOLKIT}",
    ),
    GpuFault(
        ("nvidia-container-cli", "nvidia-container-runtime", "nvidia.com/gpu", "CDI device injection failed"),
        "NVIDIA's runtime on WHERE refused the job's container",
        LOOK,
    ),
)
# From `nvidia-smi` in a container of the image, on a machine whose `nvidia-smi` works.
IMAGE = (
    GpuFault(
        ("Driver/library version mismatch",),
        "IMAGE contains libraries of another version of the NVIDIA driver than WHERE",
        "use an image without a driver, that is, without the packages `libnvidia-*` and `nvidia-utils-*`; or restart "
        "the machine, if its driver was just updated",
    ),
    GpuFault(
        ("No devices were found",),
        "the container of IMAGE gets none of the GPUs of WHERE",
        "remove NVIDIA_VISIBLE_DEVICES from the image and the run configuration",
    ),
    GpuFault(
        ("Failed to initialize NVML: Unknown Error", "Insufficient Permissions"),
        "the container of IMAGE is not permitted to use the GPUs of WHERE",
        f"update NVIDIA's runtime: {TOOLKIT}",
    ),
    GpuFault(
        ("GPU access blocked by the operating system",),
        "the operating system of WHERE does not let containers use its GPUs",
        "restart the machine; under Windows, update its NVIDIA driver",
    ),
    GpuFault(
        ("couldn't communicate with the NVIDIA driver",),
        "the container of IMAGE does not reach the NVIDIA driver of WHERE",
        "use an image without a driver; its `nvidia-smi` must be the machine's",
    ),
    GpuFault(
        ("not found", "No such file"),
        "IMAGE gets no `nvidia-smi`: its NVIDIA_DRIVER_CAPABILITIES lacks `utility`, so it is unknown whether "
        "the job has a GPU",
        "set it in the run configuration: `EnvironmentVariables: {NVIDIA_DRIVER_CAPABILITIES: compute,utility}`",
    ),
)
NO_GPU = "no-gpu"
SUMMARY = "the job would have no GPU"
ASK_SECONDS = 60.0
MAX_OUTPUT = 300
# Shorter jobs may end before the first sample.
SHORT_SECONDS = 5.0
ALL = Gpus()


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known about a missing GPU. Every value may be unknown."""

    probe: Completed | None = None
    """The output of `nvidia-smi` in the job's container."""
    refusal: str = ""
    """The error with which the engine refused to start that container."""
    host: GpuFacts | Completed | None = None
    """The machine's GPUs, or the failure of its `nvidia-smi`; None if it was not checked."""
    gives_gpus: bool | None = None
    """Whether the engine has a runtime, a hook or devices for GPUs; None if unknown."""
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
    """Return the error that explains a failed or refused probe, after checks of the machine."""
    wanted = wanted or ALL
    done = error.done if isinstance(error, NoGpuError) else None
    refusal = "" if isinstance(error, NoGpuError) else str(error)
    if not in_container:
        return judge(Evidence(refusal=refusal, host=done, wanted=wanted, where=where))
    host = _host(shell)
    # The engine has already answered if it refused the container.
    gives_gpus = None if refusal else _gives_gpus(shell)
    return judge(Evidence(done, refusal, host, gives_gpus, wanted, image, where))


def _host(shell: Shell) -> GpuFacts | Completed | None:
    """Return the machine's GPUs or the failure of its `nvidia-smi`, or None if it does not answer."""
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
    """Return the error for the first fault that is found, with its fix."""
    if isinstance(evidence.host, GpuFacts) and (missing := shortage(evidence.host, evidence.wanted, evidence.where)):
        return missing
    for faults, output in _outputs(evidence):
        fault = next((fault for fault in faults if fault.matches(output)), None)
        if fault:
            return _error(evidence, fault.note, fault.help, output)
    return _unknown(evidence)


def _outputs(evidence: Evidence) -> list[tuple[tuple[GpuFault, ...], str]]:
    """Return outputs with their possible faults, in order: proof that the driver works precedes the host's output."""
    proof = tuple(fault for fault in REFUSALS if fault.proves_driver)
    host = _output(evidence.host) if isinstance(evidence.host, Completed) else ""
    # An engine without GPU support starts the container without a GPU.
    engine = (UNREGISTERED,) if evidence.gives_gpus is False else ()
    return [
        (proof, evidence.refusal),
        (HOST, host),
        (REFUSALS, evidence.refusal),
        (engine, UNREGISTERED.signs[0]),
        (IMAGE, _output(evidence.probe)),
    ]


def _exists(facts: GpuFacts, wanted: str) -> bool:
    if wanted.isdigit():
        return int(wanted) < len(facts.models)
    names = [each for each in facts.uuids if each]
    # The start of an ID is sufficient. The IDs of MIG partitions are unknown.
    return not names or wanted.startswith("MIG-") or any(each.startswith(wanted) for each in names)


def shortage(facts: GpuFacts, wanted: Gpus, where: str = "the machine") -> JobError | None:
    """Return the error for a job that requests GPUs that the machine does not have, or None."""
    count = len(facts.models)
    unknown = [each for each in wanted.ids if not _exists(facts, each)]
    if (wanted.count or 0) <= count and not unknown:
        return None
    requested = f"GPU {', '.join(unknown)}" if unknown else f"{wanted.count} GPUs"
    numbers = f"numbered 0 to {count - 1}" if count > 1 else "numbered 0"
    note = f"the job requests {requested}, but {where} has {count}, {numbers}: {facts.summary}"
    return JobError(SUMMARY, note, f"request fewer: `--gpus {count}`", NO_GPU)


def hides_all(value: str, facts: GpuFacts) -> bool:
    """Return whether this CUDA_VISIBLE_DEVICES hides all GPUs: CUDA stops at the first unknown entry."""
    first = value.split(",", maxsplit=1)[0].strip()
    known = first.isdecimal() or first.startswith(("GPU-", "MIG-"))
    return not known or not _exists(facts, first)


def hidden_gpus(variable: str, place: str) -> JobError:
    """Return the error for a variable that hides every GPU from a job; `place` is where it is set."""
    note = f"`{variable}` hides every GPU from the job; it is set {place}"
    return JobError(SUMMARY, note, "remove the variable there; use `--gpus` to choose the job's GPUs", NO_GPU)


def _error(evidence: Evidence, note: str, help: str, output: str) -> JobError:  # noqa: A002 the diagnostic's own word
    note, help = (text.replace("IMAGE", evidence.image).replace("WHERE", evidence.where) for text in (note, help))  # noqa: A001
    return JobError(
        SUMMARY, f"{note}; output: {_brief(output)}" if output != UNREGISTERED.signs[0] else note, help, NO_GPU
    )


def _unknown(evidence: Evidence) -> JobError:
    output = evidence.refusal or _output(evidence.probe)
    if not output and isinstance(evidence.host, Completed):
        output = _output(evidence.host)
    help = f"run on {evidence.where}: `nvidia-smi`, then `docker run --rm --gpus all IMAGE nvidia-smi`"  # noqa: A001
    works = " in the container, but it works on the machine" if isinstance(evidence.host, GpuFacts) else ""
    result = f"output: {_brief(output)}" if output else "it printed nothing"
    return JobError(
        SUMMARY, f"`nvidia-smi` does not work{works}; {result}", help.replace("IMAGE", evidence.image), NO_GPU
    )


def _output(done: Completed | None) -> str:
    if done is None:
        return ""
    output = " ".join(f"{done.stdout}\n{done.stderr}".split())
    # Messages of shells differ, and engines print none.
    return f"{output} (nvidia-smi: not found)" if done.exit_code in NOT_FOUND else output


def _brief(output: str) -> str:
    """Return an output on one line, and only the end of a long one, because engines print the cause last."""
    line = " ".join(output.split())
    return line if len(line) <= MAX_OUTPUT else f"…{line[-MAX_OUTPUT:]}"


def usage_warning(usage: GpuUsage | None, seconds: float) -> str | None:
    """Return the warning for a job that apparently did not use its GPU, or None."""
    if usage is None or not usage.samples:
        if seconds < SHORT_SECONDS:
            return None
        return f"it is unknown whether the GPU was used: there is no sample of the {seconds:.0f} s that the job ran"
    if usage.was_used:
        return None
    count = "1 sample" if usage.samples == 1 else f"{usage.samples} samples"
    idle = f"the GPU was never used: it was idle in {count} over {seconds:.0f} s"
    if usage.peak_memory_mib is None:
        return idle
    memory = f"at most {usage.peak_memory_mib} MiB of its memory" if usage.peak_memory_mib else "none of its memory"
    return f"{idle}, with {memory} in use"
