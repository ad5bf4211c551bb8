"""Faults between a job and its GPU: how each is recognized, and how to fix it."""

from __future__ import annotations

from dataclasses import dataclass

from gpuinfra.runner.docker.check import TOOLKIT

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
