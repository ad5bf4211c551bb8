"""Public images and packages: which ones use a GPU, CUDA or Spark. Rules ignore unknown ones.

TensorFlow on Linux:

- PyPI: `tensorflow` before 1.15 is for the CPU, 1.15.0 for both, 1.15.2 and 2.0 for the CPU again, from 2.1 for both:
  https://github.com/tensorflow/tensorflow/issues/36347. Since 2.0 the wheels need pip 19 or later.
- Anaconda: `tensorflow` 1 is for the CPU unless `tensorflow-gpu` chooses the other build:
  https://github.com/AnacondaRecipes/tensorflow_recipes. For later versions the channel decides: rules ignore them.
"""

import re
from dataclasses import dataclass
from enum import Enum

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from gpuinfra.workbench.conda import Installer, Package
from gpuinfra.workbench.cuda import HOST, is_for_gpu


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


MMLSPARK = "microsoft/mmlspark"
# `X`, `plus-X`, `gpu-X` and `plus-gpu-X`: https://github.com/microsoft/SynapseML/pull/122
_MMLSPARK_TAG = re.compile(r"(?:plus-)?(?:gpu-)?(?P<version>[0-9].*)")
# The versions that the Workbench's documentation names with both `plus-` and `plus-gpu-`.
_TWINS = {f"plus-{version}": f"plus-gpu-{version}" for version in ("0.7.9", "0.7.91", "0.9.9")}

# Official base images without CUDA and Spark.
_PLAIN = frozenset("alpine busybox continuumio/anaconda3 continuumio/miniconda3 debian python ubuntu".split())
_WITHOUT_SPARK = _PLAIN | {"nvidia/cuda", "pytorch/pytorch", "tensorflow/tensorflow"}


def split_image(image: str) -> tuple[str, str]:
    """Return repository and tag, without the names of Docker Hub."""
    hub = re.match(r"(?:(?:index\.)?docker\.io/)?(?:library/)?", image)
    rest = image[hub.end() if hub else 0 :]
    host = HOST.match(rest)
    start = host.end() if host else 0
    repository, _, tag = rest[start:].partition("@")[0].partition(":")
    return f"{rest[:start]}{repository}", tag


def is_without_cuda(image: str | None) -> bool:
    """Return whether the image is known to have no CUDA."""
    repository, tag = split_image(image or "")
    if is_for_gpu(image):
        return False
    if repository in _PLAIN or repository.startswith("continuumio/"):
        return True
    if repository == MMLSPARK:
        return tag in {"", "latest", "plus"} or mmlspark_version(image) is not None
    return repository == "tensorflow/tensorflow" and re.match(r"[0-9]|latest|$", tag) is not None


def tensorflow_twin(image: str) -> str | None:
    """Return the image for GPUs of the same TensorFlow, if this is TensorFlow's own image for the CPU, else None."""
    repository, tag = split_image(image)
    if repository != "tensorflow/tensorflow" or "@" in image or not is_without_cuda(image):
        return None
    version, *rest = (tag or "latest").split("-")
    return f"{image.removesuffix(f':{tag}')}:{'-'.join([version, 'gpu', *rest])}"


def gpu_twin(image: str) -> str | None:
    """Return the same image with CUDA if one is published, else None."""
    repository, tag = split_image(image)
    if repository != MMLSPARK or tag not in _TWINS or "@" in image:
        return None
    return f"{image.removesuffix(tag)}{_TWINS[tag]}"


def has_spark(image: str | None) -> bool | None:
    """Return whether the image has Spark, or None if unknown. Without an image, Workbench used mmlspark."""
    if image is None:
        return True
    repository, tag = split_image(image)
    if "spark" in f"{repository}:{tag}".lower():
        return True
    return False if repository in _WITHOUT_SPARK else None


def mmlspark_version(image: str | None) -> Version | None:
    """Return the version in an mmlspark tag, which has `_` instead of `+`."""
    repository, tag = split_image(image or "")
    found = _MMLSPARK_TAG.fullmatch(tag)
    if repository != MMLSPARK or found is None:
        return None
    try:
        return Version(found["version"].replace("_", "+"))
    except InvalidVersion:
        return None


_RELEASES = tuple(
    Version(release)
    for release in (
        "1.0.1 1.1.0 1.2.1 1.3.0 1.4.1 1.5.1 1.6.0 1.7.1 1.8.0 1.9.0 1.10.1 1.11.0 1.12.3 1.13.2 1.14.0 1.15.0 1.15.5 "
        "2.0.4 2.1.4 2.2.3 2.3.4 2.4.4 2.5.3 2.6.5 2.7.4 2.8.4 2.9.3 2.10.1 2.11.1 2.12.1 2.13.1 2.14.1 2.15.1 2.16.2"
    ).split()
)
# The last version for old Python versions.
_LAST = {
    (3, 3): Version("1.12.3"),
    (3, 4): Version("1.13.2"),
    (3, 5): Version("2.3.4"),
}
CONDA_VERSION = re.compile(r"[= ]*(?P<major>[0-9*]+)(?:\.[0-9.]+)?\.?\*?(?:[= ]+(?P<build>[^=, ]+))?")
"""`=1.12`, `==1.8.0`, `=1.12.*`, `1.12`, each perhaps with a build, as in `=1.12=mkl_py36`."""
# The CUDA of `tensorflow-gpu` on PyPI: https://www.tensorflow.org/install/source#gpu. Anaconda's includes CUDA.
_CUDA = ((Version("1.5"), (8, 0)), (Version("1.13"), (9, 0)), (Version("2.1"), (10, 0)))
_GPU_PACKAGE_CUDA = (
    *_CUDA,
    (Version("2.4"), (10, 1)),
    (Version("2.5"), (11, 0)),
    (Version("2.12"), (11, 2)),
)
# Anaconda has no TensorFlow 2 for these.
_ANACONDA_1 = {(2, 7), (3, 4), (3, 5)}


class Gpu(Enum):
    """Whether a GPU is usable."""

    YES = "yes"
    NO = "no"
    DEPENDS = "depends"
    """pip before version 19 installs a CPU version."""


def gpu_of(version: str, by: Installer, python: tuple[int, int] | None) -> Gpu:
    """Return whether `tensorflow` of this line can use a GPU; unknown counts as yes."""
    if by is Installer.CONDA:
        return _gpu_by_conda(version, python)
    specifiers = _specifiers(version)
    newest = _newest(specifiers, python) if specifiers is not None else None
    if newest is None:
        return Gpu.YES
    if is_for_cpu(newest):
        return Gpu.NO
    # Python 3.5 came with a pip that refuses the newer wheels.
    return Gpu.DEPENDS if python == (3, 5) and specifiers is not None and specifiers.contains("1.14.0") else Gpu.YES


def is_for_cpu(version: Version) -> bool:
    """Return whether this version of `tensorflow` on PyPI has no GPU code."""
    if version.release[:2] == (1, 15):
        return version.micro >= 2
    return version.release[:2] < (1, 15) or version.release[:2] == (2, 0)


def cuda_for(version: Version) -> tuple[int, int] | None:
    """Return the CUDA version that this `tensorflow-gpu` from PyPI needs; None if it was renamed by then."""
    return next((cuda for before, cuda in _CUDA if version < before), None)


def gpu_package_version(version: str, python: tuple[int, int] | None) -> Version | None:
    """Return the `tensorflow-gpu` version that pip installs for a line, or None if unknown."""
    specifiers = _specifiers(version)
    if specifiers is None or (not version and python not in _LAST):
        return None
    return _newest(specifiers, python)


def gpu_package_cuda(version: Version) -> tuple[int, int] | None:
    """Return the CUDA version that `tensorflow-gpu` from PyPI needs; None for unknown versions."""
    return next((cuda for before, cuda in _GPU_PACKAGE_CUDA if version < before), None)


def exact(version: str) -> Version | None:
    """Return the version of `==1.2.1`, or None for a range."""
    found = re.fullmatch(r"==\s*([0-9][0-9a-zA-Z.]*)", version.strip())
    try:
        return Version(found[1]) if found else None
    except InvalidVersion:
        return None


def _gpu_by_conda(version: str, python: tuple[int, int] | None) -> Gpu:
    if not version:
        return Gpu.NO if python in _ANACONDA_1 else Gpu.YES
    plain = CONDA_VERSION.fullmatch(version)
    if plain is None:
        specifiers = _specifiers(version)
        newest = _newest(specifiers, None) if specifiers is not None else None
        return Gpu.NO if newest and newest < Version("2") else Gpu.YES
    if plain["build"]:
        return Gpu.NO if re.match(r"mkl|eigen|cpu", plain["build"]) else Gpu.YES
    return Gpu.NO if plain["major"] in {"0", "1"} else Gpu.YES


def _specifiers(version: str) -> SpecifierSet | None:
    try:
        return SpecifierSet(version)
    except InvalidSpecifier:
        return None


def _newest(specifiers: SpecifierSet, python: tuple[int, int] | None) -> Version | None:
    pinned = exact(str(specifiers))
    if pinned:
        return pinned
    last = _LAST.get(python) if python else None
    fitting = [each for each in _RELEASES if specifiers.contains(each) and (last is None or each <= last)]
    return max(fitting, default=None)
