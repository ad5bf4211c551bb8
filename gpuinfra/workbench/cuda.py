"""The CUDA version in an image's name, and the version that a GPU needs."""

import re

Cuda = tuple[int, int]

# The first toolkit for each GPU: https://docs.nvidia.com/deploy/cuda-compatibility/, release notes of CUDA 12.8.
NEEDED = {"T4": (10, 0), "A100": (11, 0), "H100": (11, 8), "RTXPRO6000": (12, 8)}

# The CUDA versions for which PyTorch publishes wheels, at https://download.pytorch.org/whl/cu126 and similar addresses.
TORCH_BUILDS: dict[str, tuple[Cuda, ...]] = {
    "2.0": ((11, 7), (11, 8)),
    "2.1": ((11, 8), (12, 1)),
    "2.2": ((11, 8), (12, 1)),
    "2.3": ((11, 8), (12, 1)),
    "2.4": ((11, 8), (12, 1), (12, 4)),
    "2.5": ((11, 8), (12, 1), (12, 4)),
    "2.6": ((11, 8), (12, 4), (12, 6)),
    "2.7": ((11, 8), (12, 6), (12, 8)),
    "2.8": ((12, 6), (12, 8), (12, 9)),
    "2.9": ((12, 6), (12, 8), (13, 0)),
}

# tools/docker/build-docker of microsoft/SynapseML: every image for GPUs was made from nvidia/cuda:8.0-cudnn6.
_MMLSPARK = re.compile(r"(?:[^/]+\.[^/]+/)?microsoft/mmlspark:(?:plus-)?gpu(?:-.*)?")
_MMLSPARK_CUDA = (8, 0)
# The registry: its name says nothing about the image.
HOST = re.compile(r"(?:[^/]*[.:][^/]*|localhost)/")
_MARK = re.compile(r"(?:gpu|cuda|cudnn|nvidia)[0-9]*")
_SAID = re.compile(r"(?:nvidia/cuda:|cuda-?)(?P<major>[0-9]{1,2})\.(?P<minor>[0-9]{1,2})")


def cuda_of(image: str) -> Cuda | None:
    """Return an image's CUDA version, or None if its name does not say."""
    if _MMLSPARK.fullmatch(image):
        return _MMLSPARK_CUDA
    found = _SAID.search(image)
    return (int(found["major"]), int(found["minor"])) if found else None


def is_for_gpu(image: str | None) -> bool:
    """Return whether name or tag say that the image is for GPUs."""
    host = HOST.match(image or "")
    name = (image or "")[host.end() if host else 0 :].lower()
    words = re.split(r"[^a-z0-9]+", name)
    return "cpu" not in words and (cuda_of(name) is not None or any(_MARK.fullmatch(word) for word in words))


def parse_cuda(text: str) -> Cuda | None:
    """Return the version in a text such as `12.2` or `12`, or None if it begins with none."""
    found = re.match(r"([0-9]{1,3})(?:\.([0-9]{1,3}))?", text)
    return (int(found[1]), int(found[2] or 0)) if found else None


def shown(version: Cuda) -> str:
    """Return a version such as `11.8`."""
    return f"{version[0]}.{version[1]}"


def torch_build(version: str, driver: Cuda | None, capability: str | None) -> tuple[str, Cuda] | None:
    """Return the version of PyTorch and CUDA for a driver and a GPU: the same version if it has such a build."""
    needed = _needed_by(capability)
    limit = driver or (12, 6)
    minor = ".".join(version.split(".")[:2])
    others = sorted(TORCH_BUILDS, key=lambda each: tuple(map(int, each.split("."))), reverse=True)
    for each in (minor, *others):
        fitting = [cuda for cuda in TORCH_BUILDS.get(each, ()) if needed <= cuda and cuda[0] <= limit[0]]
        # Within a major version, CUDA also works with an earlier driver. Prefer a build that does not depend on this.
        if fitting:
            exact = [cuda for cuda in fitting if cuda <= limit]
            return version if each == minor else f"{each}.0", max(exact) if exact else min(fitting)
    return None


def _needed_by(capability: str | None) -> Cuda:
    """Return the first CUDA version for a compute capability."""
    number = float(capability) if capability and re.fullmatch(r"\d+\.\d+", capability) else 0.0
    return next((cuda for least, cuda in ((10.0, (12, 8)), (9.0, (11, 8)), (8.0, (11, 0))) if number >= least), (10, 0))
