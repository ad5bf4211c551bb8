"""What can be wrong between a job and its GPU: how each fault is recognized, and how it is fixed."""

from __future__ import annotations

from dataclasses import dataclass

from gpuinfra.runner.docker.check import TOOLKIT

RESTART = "restart the machine: the driver that is loaded and the one that is installed are the same then"
LOOK = "look at the machine: `nvidia-smi`, `sudo dmesg | grep -i nvrm`"


@dataclass(frozen=True, slots=True)
class Link:
    """One that can break. IMAGE and WHERE in its texts stand for the job's own."""

    signs: tuple[str, ...]
    """Any of them, in any case."""
    note: str
    help: str
    proves_driver: bool = False
    """Whether it can only break where the driver works."""

    def is_seen_in(self, said: str) -> bool:
        """Whether these words come from it."""
        words = said.casefold()
        return any(sign.casefold() in words for sign in self.signs)


# What the machine's own `nvidia-smi` says.
HOST = (
    Link(
        ("couldn't communicate with the NVIDIA driver", "driver not loaded"),
        "the NVIDIA driver is not loaded on WHERE",
        "load it: `sudo modprobe nvidia`; where that fails, install it again for this kernel and restart the machine",
    ),
    Link(("Driver/library version mismatch",), "the NVIDIA driver was updated on WHERE while it was loaded", RESTART),
    Link(
        ("No devices were found",),
        "the NVIDIA driver on WHERE finds no GPU",
        "choose a VM size with a GPU (NC), or look why it is not seen: `lspci | grep -i nvidia`",
    ),
    Link(
        ("Unable to determine the device handle", "GPU is lost"),
        "a GPU of WHERE has fallen off the bus",
        "restart the machine; where it happens again, have Azure move it: stop it, then start it",
    ),
    Link(
        ("not found", "No such file"),
        "there is no NVIDIA driver on WHERE: `nvidia-smi` is not installed",
        "install the driver on the machine, or take a machine image that has it, as the Data Science VM",
    ),
)

UNREGISTERED = Link(
    ("could not select device driver", "unknown or invalid runtime name: nvidia", "unknown runtime specified nvidia"),
    "the engine on WHERE gives no GPU to containers: NVIDIA's runtime is not registered with it",
    TOOLKIT,
)
# What an engine says that refuses a container with GPUs; the more special ones first.
REFUSALS = (
    Link(
        ("unknown device", "unresolvable CDI devices"),
        "WHERE has no such GPU",
        "see which there are: `nvidia-smi -L` on the machine; then `--gpus N`, or numbers that are listed",
        proves_driver=True,
    ),
    Link(
        ("unsatisfied condition",),
        "IMAGE needs a newer NVIDIA driver than WHERE has",
        "update the driver on the machine, or take an image for an earlier CUDA",
        proves_driver=True,
    ),
    UNREGISTERED,
    Link(
        (
            'exec: "nvidia-container-runtime-hook"',
            'exec: "nvidia-container-cli"',
            "nvidia-container-runtime: no such file",
            "nvidia-container-runtime-hook: no such file",
            '"nvidia-container-runtime": executable file not found',
        ),
        "NVIDIA's runtime is registered with the engine on WHERE, and not installed, or not all of it",
        TOOLKIT,
    ),
    Link(("driver/library version mismatch",), HOST[1].note, RESTART),
    Link(("driver not loaded",), HOST[0].note, HOST[0].help),
    Link(
        ("load library failed", "libnvidia-ml.so"),
        "NVIDIA's runtime does not find the driver's libraries on WHERE",
        "install the driver on the machine; where it is installed, `sudo ldconfig`, and restart the engine; an engine "
        "that is a snap sees none of it",
    ),
    Link(
        ("cgroup subsystem devices not found", "failed to get device cgroup"),
        "NVIDIA's runtime on WHERE is too old for the system's control groups",
        f"update it: {TOOLKIT}",
    ),
    Link(
        ("ldcache error", "ldconfig"),
        "NVIDIA's runtime does not get along with IMAGE or with the libraries of WHERE",
        f"update it: {TOOLKIT}",
    ),
    Link(
        ("nvidia-container-cli", "nvidia-container-runtime", "nvidia.com/gpu", "CDI device injection failed"),
        "NVIDIA's runtime on WHERE refused the job's container",
        LOOK,
    ),
)

# What `nvidia-smi` says in a container of the image, on a machine whose own works.
IMAGE = (
    Link(
        ("Driver/library version mismatch",),
        "IMAGE has libraries of an NVIDIA driver of its own, of another version than the driver of WHERE",
        "take an image without a driver: its packages `libnvidia-*` and `nvidia-utils-*` have to go; or restart the "
        "machine, if its driver was just updated",
    ),
    Link(
        ("No devices were found",),
        "the container of IMAGE gets none of the GPUs of WHERE",
        "let neither the image nor the run configuration set NVIDIA_VISIBLE_DEVICES",
    ),
    Link(
        ("Failed to initialize NVML: Unknown Error", "Insufficient Permissions"),
        "the container of IMAGE may not touch the GPUs of WHERE",
        f"update NVIDIA's runtime: {TOOLKIT}",
    ),
    Link(
        ("GPU access blocked by the operating system",),
        "the system of WHERE lets no container use its GPUs",
        "restart the machine; under Windows, update its NVIDIA driver",
    ),
    Link(
        ("couldn't communicate with the NVIDIA driver",),
        "the container of IMAGE does not reach the NVIDIA driver of WHERE",
        "take an image without a driver of its own; its `nvidia-smi` has to be that of the machine",
    ),
    Link(
        ("not found", "No such file"),
        "IMAGE is given no `nvidia-smi`: its NVIDIA_DRIVER_CAPABILITIES lacks `utility`, so it is unknown whether "
        "the job has a GPU",
        "set it in the run configuration: `EnvironmentVariables: {NVIDIA_DRIVER_CAPABILITIES: compute,utility}`",
    ),
)
