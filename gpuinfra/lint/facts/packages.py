"""Packages that use the CPU alone, and the twin of each that uses a GPU."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpuinfra.workbench.conda import By, Package


@dataclass(frozen=True)
class CpuOnly:
    """A package that never uses a GPU."""

    help: str
    certain: bool = True
    """Whether a job that has it cannot mean to use the GPU with it; else it may be there for something else."""
    twin: str | None = None
    """The same, by the same installer and in any version that is not said, with GPU code."""


BY_NAME: dict[tuple[By, str], CpuOnly] = {
    (By.PIP, "tensorflow-cpu"): CpuOnly("`tensorflow` from 2.1 on is for both"),
    (By.PIP, "intel-tensorflow"): CpuOnly("`tensorflow` from 2.1 on, or `tensorflow-gpu` before, uses the GPU"),
    (By.PIP, "cntk"): CpuOnly("`cntk-gpu` uses the GPU", twin="cntk-gpu"),
    (By.PIP, "mxnet"): CpuOnly("`mxnet-cu80` and its like use the GPU; take the one for the image's CUDA"),
    (By.PIP, "mxnet-mkl"): CpuOnly("`mxnet-cu80` and its like use the GPU; take the one for the image's CUDA"),
    (By.PIP, "paddlepaddle"): CpuOnly("`paddlepaddle-gpu` uses the GPU"),
    (By.PIP, "onnxruntime"): CpuOnly("`onnxruntime-gpu` uses the GPU", certain=False),
    (By.CONDA, "cpuonly"): CpuOnly("remove it, so that PyTorch comes with CUDA"),
    (By.CONDA, "pytorch-cpu"): CpuOnly("`pytorch` uses the GPU"),
    (By.CONDA, "tensorflow-eigen"): CpuOnly("`tensorflow-gpu` uses the GPU"),
    (By.CONDA, "tensorflow-mkl"): CpuOnly("`tensorflow-gpu` uses the GPU"),
}
# With any of these, conda chooses the build of TensorFlow that uses a GPU.
CHOOSES_GPU = frozenset({"tensorflow-gpu", "tensorflow-gpu-base", "keras-gpu"})
# Anaconda's channels, which have both TensorFlows. Others have one of them, or other versions.
OWN_CHANNELS = frozenset({"defaults", "anaconda", "main", "pkgs/main"})

# What brings the CUDA libraries along, so that the image need not have them.
_BRINGS_CUDA = {
    By.CONDA: re.compile(r"cuda.*|cudnn|cupy|keras-gpu|mxnet-gpu|pytorch|pytorch-(?:cuda|gpu)|tensorflow-gpu"),
    By.PIP: re.compile(r"torch(?:vision|audio|text)?|fastai|nvidia-.*|cupy-cuda.*|jax-cuda.*"),
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
# Twins of pip's that do not even start where the image has no CUDA.
FINDS_CUDA = frozenset({"tensorflow-gpu", "cntk-gpu", CNTK_GPU})

# Folders of builds for the CPU: PyTorch's, and TensorFlow's before 1.0.
CPU_FOLDER = re.compile(r"/whl/cpu\b|/tensorflow/linux/cpu/")


def brings_cuda(package: Package) -> bool:
    """Whether a package has CUDA in it, or needs a package that has."""
    if _BRINGS_CUDA[package.by].fullmatch(package.name):
        return True
    if package.by is By.CONDA:
        return _BUILD_WITH_CUDA.search(package.version) is not None
    return _EXTRA_WITH_CUDA.search(package.text) is not None


def is_cpu_build(package: Package) -> bool:
    """Whether it is a build of PyTorch's for the CPU, of which conda has one beside each for a GPU."""
    return package.by is By.CONDA and package.name == "pytorch" and bool(_BUILD_FOR_CPU.fullmatch(package.version))
