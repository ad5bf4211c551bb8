"""Explanations of missing GPUs, from the output of the real tools, and warnings about unused GPUs."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from gpuinfra.diagnostics import Code
from gpuinfra.models.run import GpuUsage
from gpuinfra.models.target import GpuFacts
from gpuinfra.runner.connection.port import Completed
from gpuinfra.runner.docker import check
from gpuinfra.runner.errors import Broken, ConnectError, JobError, TimedOut
from gpuinfra.runner.gpu import HOST, IMAGE, REFUSALS, Evidence, diagnose, judge, shortage, usage_warning
from gpuinfra.runner.job_spec import Gpus
from gpuinfra.runner.nvidia_smi import PROBE, NoGpuError
from gpuinfra.runner.nvidia_smi import PROBE_MARK as MARK

TWO = GpuFacts(("Tesla T4",) * 2, "535.161.08", (15360,) * 2, ("7.5",) * 2, uuids=("GPU-1a", "GPU-2b"))
NOT_LOADED = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA "
    "driver is installed and running."
)
HOOK = (
    "failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: "
    "error during container init: error running hook #0: error running hook: exit status 1, stdout: , stderr: "
    "Auto-detected mode as 'legacy'\nnvidia-container-cli: {}: unknown"
)
NO_RUNTIME = 'could not select device driver "" with capabilities: [[gpu]]'
MISSING = Completed(127, "", "sh: nvidia-smi: not found")


def fails(code: int, said: str) -> Completed:
    return Completed(code, said, "")


CASES = [
    # The host's driver, even if the engine reports another error.
    (Evidence(host=MISSING), "there is no NVIDIA driver on", "install the driver"),
    (Evidence(host=MISSING, refusal=NO_RUNTIME), "there is no NVIDIA driver on", "install the driver"),
    (Evidence(host=Completed(127, "", "")), "there is no NVIDIA driver on", "install the driver"),
    (Evidence(host=fails(9, NOT_LOADED)), "the NVIDIA driver is not loaded on", "modprobe"),
    (
        Evidence(host=fails(18, "Failed to initialize NVML: Driver/library version mismatch")),
        "the NVIDIA driver was updated on",
        "restart the machine",
    ),
    (Evidence(host=fails(6, "No devices were found"), probe=MISSING), "finds no GPU", "VM size"),
    (
        Evidence(host=fails(15, "Unable to determine the device handle for GPU 0000:01:00.0: GPU is lost.")),
        "has fallen off the bus",
        "restart the machine",
    ),
    # The engine and NVIDIA's runtime.
    (Evidence(host=TWO, refusal=NO_RUNTIME), "NVIDIA's runtime is not registered", "nvidia-ctk runtime configure"),
    (Evidence(refusal="Unknown runtime specified nvidia."), "is not registered", "nvidia-container-toolkit"),
    (Evidence(host=TWO, probe=MISSING, gives_gpus=False), "is not registered", "nvidia-container-toolkit"),
    (
        Evidence(host=TWO, refusal='exec: "nvidia-container-runtime-hook": executable file not found in $PATH'),
        "registered with the engine on the machine, but not",
        "nvidia-container-toolkit",
    ),
    (
        Evidence(refusal=HOOK.format("initialization error: nvml error: driver not loaded")),
        "the NVIDIA driver is not loaded on",
        "modprobe",
    ),
    (
        Evidence(refusal=HOOK.format("initialization error: nvml error: driver/library version mismatch")),
        "the NVIDIA driver was updated on",
        "restart the machine",
    ),
    (
        Evidence(
            host=TWO,
            refusal=HOOK.format(
                "initialization error: load library failed: libnvidia-ml.so.1: cannot open shared object file: no such "
                "file or directory"
            ),
        ),
        "does not find the driver's libraries",
        "ldconfig",
    ),
    (
        Evidence(host=TWO, refusal=HOOK.format("container error: cgroup subsystem devices not found")),
        "too old for the system's control groups",
        "update it",
    ),
    (
        Evidence(host=TWO, refusal=HOOK.format("ldcache error: process /sbin/ldconfig.real failed with error code: 1")),
        "is not compatible with",
        "update it",
    ),
    (Evidence(host=TWO, refusal=HOOK.format("mount error: something new")), "refused the job's container", "dmesg"),
    # More GPUs than exist. If the engine reports that, the driver works.
    (Evidence(host=TWO, wanted=Gpus(3)), "requests 3 GPUs, but the machine has 2, numbered 0 to 1", "--gpus 2"),
    (Evidence(host=TWO, wanted=Gpus(ids=("1", "2"))), "requests GPU 2, but", "--gpus 2"),
    (
        Evidence(host=MISSING, refusal=HOOK.format("device error: 2: unknown device"), wanted=Gpus(3)),
        "has no such GPU",
        "nvidia-smi -L",
    ),
    (
        Evidence(
            host=TWO,
            refusal=HOOK.format(
                "requirement error: unsatisfied condition: cuda>=12.4, please update your driver to a newer version, "
                "or use an earlier cuda container"
            ),
        ),
        "needs a newer NVIDIA driver",
        "earlier CUDA",
    ),
    # The image.
    (Evidence(host=TWO, probe=MISSING, gives_gpus=True), "lacks `utility`", "NVIDIA_DRIVER_CAPABILITIES"),
    (
        Evidence(host=TWO, probe=fails(18, "Failed to initialize NVML: Driver/library version mismatch")),
        "contains libraries of another version",
        "libnvidia-",
    ),
    (Evidence(host=TWO, probe=fails(6, "No devices were found")), "gets none of the GPUs", "NVIDIA_VISIBLE_DEVICES"),
    (
        Evidence(host=TWO, probe=fails(255, "Failed to initialize NVML: Unknown Error")),
        "is not permitted to use",
        "update",
    ),
    (
        Evidence(host=TWO, probe=fails(17, "Failed to initialize NVML: GPU access blocked by the operating system")),
        "does not let containers use its GPUs",
        "restart the machine",
    ),
    (Evidence(host=TWO, probe=fails(9, NOT_LOADED)), "does not reach the NVIDIA driver", "without a driver"),
    # Unknown causes.
    (Evidence(host=TWO, probe=fails(3, "odd")), "but it works on the machine; output: odd", "docker run"),
    (Evidence(host=fails(3, "odd")), "does not work; output: odd", "nvidia-smi"),
    (Evidence(), "it printed nothing", "nvidia-smi"),
]


@pytest.mark.parametrize(("evidence", "note", "help_"), CASES)
def test_fault_is_reported_with_its_fix(evidence: Evidence, note: str, help_: str) -> None:
    error = judge(evidence)
    assert error.code == Code.NO_GPU
    assert error.summary == "the job would have no GPU"
    assert note in error.note
    assert help_ in (error.help or "")
    assert "\n" not in f"{error.note}{error.help}"
    assert not {"IMAGE", "WHERE"} & set(f"{error.note} {error.help}".replace("`", " ").split())


def test_every_fault_has_a_case() -> None:
    errors = [judge(evidence) for evidence, _, _ in CASES]
    for fault in (*HOST, *REFUSALS, *IMAGE):
        note = fault.note.replace("WHERE", "the machine").replace("IMAGE", "the image")
        assert any(error.note.startswith(note) for error in errors), fault


def test_error_names_the_image_and_the_machine() -> None:
    error = judge(Evidence(host=TWO, probe=MISSING, image="my/image:1", where="203.0.113.7:22"))
    assert error.note.startswith("my/image:1 gets no `nvidia-smi`")
    assert "203.0.113.7:22" in judge(Evidence(host=MISSING, where="203.0.113.7:22")).note


def test_long_output_is_shortened_to_its_end() -> None:
    error = judge(Evidence(refusal="x" * 5000 + HOOK.format("mount error: the cause")))
    assert error.note.endswith("the cause: unknown")
    assert len(error.note) < 500


@pytest.mark.parametrize("wanted", [Gpus(), Gpus(2), Gpus(ids=("0", "1")), Gpus(ids=("GPU-1a",)), Gpus(ids=("MIG-1",))])
def test_existing_gpus_are_accepted(wanted: Gpus) -> None:
    assert shortage(TWO, wanted) is None


# Checks of the machine
@dataclass
class Machine:
    """Gives one answer to the probe, and another to checks of its engine."""

    gpu: Completed | ConnectError
    engine: str = ""
    asked: list[str] = field(default_factory=list)

    def run(self, command: Sequence[str] | str, *, timeout: float) -> Completed:
        self.asked.append("gpu" if list(command) == list(PROBE) else "engine")
        if self.asked[-1] == "engine":
            return Completed(0, self.engine, "")
        if isinstance(self.gpu, ConnectError):
            raise self.gpu
        return self.gpu

    def close(self) -> None:
        pass


WORKS = Completed(
    0,
    f"{MARK}\n<?xml?>\n{MARK} 0\nTesla T4, 535.161.08, 15360 MiB, 7.5\n{MARK} 0\n",
    "",
)


def parts(info: str) -> str:
    said = {"docker": "engine 20.10.24", "info": info}
    return "".join(f"\n{check.MARK} {name} 0\n{text}\n" for name, text in said.items())


def test_engine_is_not_checked_after_a_refusal() -> None:
    machine = Machine(WORKS)
    error = diagnose(JobError("x", NO_RUNTIME, code="no-gpu"), shell=machine, in_container=True)
    assert "is not registered" in error.note
    assert machine.asked == ["gpu"]


@pytest.mark.parametrize(
    ("info", "note"),
    [('{"Runtimes": {"nvidia": {}}}', "lacks `utility`"), ('{"Runtimes": {"runc": {}}}', "is not registered")],
)
def test_engine_fault_is_not_reported_as_image_fault(info: str, note: str) -> None:
    machine = Machine(WORKS, parts(info))
    assert note in diagnose(NoGpuError(MISSING), shell=machine, in_container=True).note
    assert machine.asked == ["gpu", "engine"]


def test_probe_without_a_container_checks_nothing_else() -> None:
    machine = Machine(WORKS)
    error = diagnose(NoGpuError(fails(9, NOT_LOADED)), shell=machine, in_container=False, where="this computer")
    assert error.note.startswith("the NVIDIA driver is not loaded on this computer")
    assert machine.asked == []


@pytest.mark.parametrize("lost", [Broken("lost"), TimedOut("slow")])
def test_unresponsive_machine_leaves_the_first_output(lost: ConnectError) -> None:
    error = diagnose(NoGpuError(fails(6, "No devices were found")), shell=Machine(lost), in_container=True)
    assert "gets none of the GPUs" in error.note


# Unused GPUs
def usage(samples: int, peak: int, memory: int = 0) -> GpuUsage:
    return GpuUsage(samples, 2.0 * samples, peak, peak / 2, memory)


@pytest.mark.parametrize(
    ("used", "seconds", "warning"),
    [
        (None, 4.9, None),
        (usage(0, 0), 4.9, None),
        (None, 5.0, "it is unknown whether the GPU was used: there is no sample of the 5 s that the job ran"),
        (usage(0, 0), 60.0, "it is unknown whether the GPU was used: there is no sample of the 60 s that the job ran"),
        (usage(30, 1), 60.0, None),
        (usage(1, 0), 1.2, "the GPU was never used: it was idle in 1 sample over 1 s, with none of its memory in use"),
        (
            usage(30, 0, 3),
            60.0,
            "the GPU was never used: it was idle in 30 samples over 60 s, with at most 3 MiB of its memory in use",
        ),
    ],
)
def test_unused_gpu_is_reported(used: GpuUsage | None, seconds: float, warning: str | None) -> None:
    assert usage_warning(used, seconds) == warning
