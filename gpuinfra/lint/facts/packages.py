"""CPU-only packages, and their GPU variants."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpuinfra.workbench.conda import Installer, Package


@dataclass(frozen=True)
class CpuOnly:
    """A package that never uses a GPU."""

    help: str
    certain: bool = True
    """Whether the package always means that the GPU is not used."""
    twin: str | None = None
    """The GPU variant with the same installer, if no version is given."""


BY_NAME: dict[tuple[Installer, str], CpuOnly] = {
    (Installer.PIP, "tensorflow-cpu"): CpuOnly("`tensorflow` 2.1 and later supports both"),
    (Installer.PIP, "intel-tensorflow"): CpuOnly(
        "`tensorflow` 2.1 and later, or `tensorflow-gpu` before, uses the GPU"
    ),
    (Installer.PIP, "cntk"): CpuOnly("`cntk-gpu` uses the GPU", twin="cntk-gpu"),
    (Installer.PIP, "mxnet"): CpuOnly(
        "`mxnet-cu80` and similar packages use the GPU; choose the one for the image's CUDA"
    ),
    (Installer.PIP, "mxnet-mkl"): CpuOnly(
        "`mxnet-cu80` and similar packages use the GPU; choose the one for the image's CUDA"
    ),
    (Installer.PIP, "paddlepaddle"): CpuOnly("`paddlepaddle-gpu` uses the GPU"),
    (Installer.PIP, "onnxruntime"): CpuOnly("`onnxruntime-gpu` uses the GPU", certain=False),
    (Installer.CONDA, "cpuonly"): CpuOnly("remove it, so that PyTorch comes with CUDA"),
    (Installer.CONDA, "pytorch-cpu"): CpuOnly("`pytorch` uses the GPU"),
    (Installer.CONDA, "tensorflow-eigen"): CpuOnly("`tensorflow-gpu` uses the GPU"),
    (Installer.CONDA, "tensorflow-mkl"): CpuOnly("`tensorflow-gpu` uses the GPU"),
}
# With any of these, conda chooses the build of TensorFlow that uses a GPU.
CHOOSES_GPU = frozenset({"tensorflow-gpu", "tensorflow-gpu-base", "keras-gpu"})
# Anaconda's channels have both TensorFlows. Other channels have one of them, or other versions.
OWN_CHANNELS = frozenset({"defaults", "anaconda", "main", "pkgs/main"})

# Packages that include the CUDA libraries.
_BRINGS_CUDA = {
    Installer.CONDA: re.compile(r"cuda.*|cudnn|cupy|keras-gpu|mxnet-gpu|pytorch|pytorch-(?:cuda|gpu)|tensorflow-gpu"),
    Installer.PIP: re.compile(r"torch(?:vision|audio|text)?|fastai|nvidia-.*|cupy-cuda.*|jax-cuda.*"),
}
_EXTRA_WITH_CUDA = re.compile(r"\[[^\]]*cuda(?![^\],]*local)[^\]]*\]")
_BUILD_WITH_CUDA = re.compile(r"cuda|gpu")
# `=1.4=py3.6_cpu_0`, `=1.12=*cpu*`, `[build=cpu*]`; a pattern with `!` may be one for all others.
_BUILD_FOR_CPU = re.compile(r"[^!]*(?<![a-z])cpu(?![a-z])[^!]*")

# The wheels of the Cognitive Toolkit: one name in three folders, for Linux and for Windows.
CNTK_WHEEL = re.compile(
    r"https?://cntk\.ai/PythonWheel/(?P<build>CPU-Only|GPU|GPU-1bit-SGD)/cntk-[^/]+-(?P<platform>linux_x86_64|win_amd64)\.whl"
)
CNTK_CPU, CNTK_GPU = "/CPU-Only/", "/GPU/"
CNTK_WINDOWS, CNTK_LINUX = "win_amd64.whl", "linux_x86_64.whl"
# pip packages that do not start without CUDA in the image.
FINDS_CUDA = frozenset({"tensorflow-gpu", "cntk-gpu", CNTK_GPU})

# Folders of builds for the CPU: PyTorch's, and TensorFlow's before 1.0.
CPU_FOLDER = re.compile(r"/whl/cpu\b|/tensorflow/linux/cpu/")


def brings_cuda(package: Package) -> bool:
    """Return whether a package, or its dependencies, include CUDA."""
    if _BRINGS_CUDA[package.by].fullmatch(package.name):
        return True
    if package.by is Installer.CONDA:
        return _BUILD_WITH_CUDA.search(package.version) is not None
    return _EXTRA_WITH_CUDA.search(package.text) is not None


def is_cpu_build(package: Package) -> bool:
    """Return whether it is a CPU build of PyTorch from conda."""
    return (
        package.by is Installer.CONDA and package.name == "pytorch" and bool(_BUILD_FOR_CPU.fullmatch(package.version))
    )
