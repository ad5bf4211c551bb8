"""Which CUDA an image has, where its name tells, and which CUDA a GPU asks for."""

from __future__ import annotations

import re

# The first toolkit that makes code for a GPU: https://docs.nvidia.com/deploy/cuda-compatibility/, and for the last one
# the release notes of CUDA 12.8.
NEEDED = {"T4": (10, 0), "A100": (11, 0), "H100": (11, 8), "RTXPRO6000": (12, 8)}

# tools/docker/build-docker of microsoft/SynapseML: every image for GPUs was made from nvidia/cuda:8.0-cudnn6.
_MMLSPARK = re.compile(r"(?:[^/]+\.[^/]+/)?microsoft/mmlspark:(?:plus-)?gpu(?:-.*)?")
_MMLSPARK_CUDA = (8, 0)
_SAID = re.compile(r"(?:nvidia/cuda:|cuda-?)(?P<major>[0-9]{1,2})\.(?P<minor>[0-9]{1,2})")


def cuda_of(image: str) -> tuple[int, int] | None:
    """The version that is in an image; None where nobody can tell by its name."""
    if _MMLSPARK.fullmatch(image):
        return _MMLSPARK_CUDA
    found = _SAID.search(image)
    return (int(found["major"]), int(found["minor"])) if found else None


def is_for_gpu(image: str | None) -> bool:
    """Whether the name says that it is for GPUs."""
    return image is not None and (cuda_of(image) is not None or "gpu" in re.split(r"[^a-z0-9]+", image.lower()))


def shown(version: tuple[int, int]) -> str:
    """`11.8`"""
    return f"{version[0]}.{version[1]}"
