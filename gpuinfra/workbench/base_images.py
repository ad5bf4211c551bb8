"""The base image of jobs whose files name none: the newest one for the machine's driver."""

import re
from typing import NamedTuple

from gpuinfra.workbench.cuda import Cuda, parse_cuda, shown

_REGISTRY = "mcr.microsoft.com/azureml"

# Microsoft's images with conda, Python 3.10 and CUDA: https://github.com/Azure/AzureML-Containers, as of March 2026.
# The one for CUDA 11.8 gets no more updates, but it stays available, and drivers before 525 need it.
IMAGES: dict[Cuda, str] = {
    (11, 8): f"{_REGISTRY}/openmpi4.1.0-cuda11.8-cudnn8-ubuntu22.04",
    (12, 4): f"{_REGISTRY}/openmpi5.0-cuda12.4-ubuntu22.04",
    (12, 5): f"{_REGISTRY}/openmpi5.0-cuda12.5-ubuntu22.04",
    (12, 6): f"{_REGISTRY}/openmpi5.0-cuda12.6-ubuntu24.04",
    (12, 8): f"{_REGISTRY}/openmpi5.0-cuda12.8-ubuntu24.04",
    (13, 1): f"{_REGISTRY}/openmpi5.0-cuda13.1-ubuntu24.04",
}
WITHOUT_CUDA = f"{_REGISTRY}/openmpi5.0-ubuntu24.04"
"""The image for jobs without a GPU."""

# The first driver for all minor versions of a major one ("minor version compatibility"):
# https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html, as of December 2025.
DRIVERS = {11: 450, 12: 525, 13: 580}


class BaseImage(NamedTuple):
    """An image, and why it was chosen."""

    name: str
    reason: str


def choose_base_image(driver: str | None, cuda: str | None = None) -> BaseImage:
    """Return the image for a driver and its newest CUDA version, as `nvidia-smi` reports them; None means unknown."""
    earliest = min(IMAGES)
    if driver is None:
        return BaseImage(IMAGES[earliest], f"the driver is unknown; CUDA {shown(earliest)} needs the oldest one")
    own, number = parse_cuda(cuda or ""), _number(driver)
    major = own[0] if own else max((each for each, first in DRIVERS.items() if first <= number), default=0)
    of_major = [each for each in IMAGES if each[0] == major]
    supports = f"driver {driver} supports CUDA {shown(own)}" if own else f"driver {driver}"
    # First, an image that needs no compatibility between minor versions; then the one that needs the least.
    if own and (exact := [each for each in of_major if each <= own]):
        return BaseImage(IMAGES[max(exact)], supports)
    if of_major and number >= DRIVERS[major]:
        return BaseImage(IMAGES[min(of_major)], f"{supports}; CUDA {major}.x needs driver {DRIVERS[major]} or later")
    if own and (earlier := [each for each in IMAGES if each <= own]):
        return BaseImage(IMAGES[max(earlier)], supports)
    return BaseImage(IMAGES[earliest], f"{supports}, which is too old for every image; this one has the earliest CUDA")


def _number(driver: str) -> int:
    """Return the first number of a driver's version, or 0."""
    found = re.match(r"[0-9]{1,6}", driver)
    return int(found[0]) if found else 0
