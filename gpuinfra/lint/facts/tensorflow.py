"""Which TensorFlow version a line requests, and whether it can use a GPU on Linux.

- PyPI: `tensorflow` before 1.15 is for the CPU, 1.15.0 for both, 1.15.2 and 2.0 for the CPU again, from 2.1 for both:
  https://github.com/tensorflow/tensorflow/issues/36347. Since 2.0 the wheels need pip 19 or later.
- Anaconda: `tensorflow` 1 is for the CPU unless `tensorflow-gpu` chooses the other build:
  https://github.com/AnacondaRecipes/tensorflow_recipes. For later versions the channel decides: rules ignore them.
"""

from __future__ import annotations

import re
from enum import Enum

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from gpuinfra.workbench.conda import Installer

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
