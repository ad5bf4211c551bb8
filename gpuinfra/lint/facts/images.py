"""What an image's name says about CUDA, Spark and mmlspark.

Other images are unknown, and rules ignore them.
"""

from __future__ import annotations

import re

from packaging.version import InvalidVersion, Version

from gpuinfra.workbench.cuda import HOST, is_for_gpu

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
