"""Packages that are built for a newer CUDA than the driver of the spec's image supports."""

import re
from collections.abc import Iterator

from gpuinfra.diagnostics import Code, Diagnostic
from gpuinfra.lint.finding import Finding
from gpuinfra.lint.torch import TORCH, TORCH_FOLDER, decides_build, how_to_choose, in_folder, is_lock
from gpuinfra.lint.uses import Location, Use, is_meant, meant_lines, uses_of
from gpuinfra.workbench.conda import Conda, Installer, Option, Package
from gpuinfra.workbench.cuda import Cuda, cuda_of, shown
from gpuinfra.workbench.project import Project

# Versions and URLs of builds, as `2.9.0+cu130`.
_LOCAL_CUDA = re.compile(r"(?:\+|%2B)cu(?P<major>\d{2})(?P<minor>\d)(?!\d)")
# Packages of JAX and CuPy that have CUDA's major version in their names, as `jax-cuda12-plugin` and `cupy-cuda13x`.
_CUDA_IN_NAME = re.compile(r"(?:jax|cupy)-cuda(?P<major>\d{2})(?:x|-\w+)?")
_JAX_EXTRA = re.compile(r"\[[^\]]*\bcuda(?P<major>\d{2})(?!\d)[^\]]*\]")


def newer_cuda(project: Project) -> Iterator[Finding]:
    """Find builds for a newer CUDA than the driver of the spec's image supports. Within a major version, all work."""
    for conda in project.condas.values():
        uses = [use for use in uses_of(project, conda) if use.place is Location.GPU and use.driver]
        if use := min(uses, key=lambda each: each.driver or (0, 0), default=None):
            yield from _newer(conda, use)


def _newer(conda: Conda, use: Use) -> Iterator[Finding]:
    driver = use.driver or (0, 0)
    image = cuda_of(use.image or "")
    there = meant_lines(conda)
    for line in there.lines:
        cuda = _cuda_of_line(there, line)
        # Images for a newer CUDA can have libraries with which it works on an older driver.
        if cuda is None or cuda[0] <= driver[0] or (image and image[0] >= cuda[0]):
            continue
        major = f"CUDA {cuda[0]}" if cuda[1] is None else f"CUDA {cuda[0]}.{cuda[1]}"
        diagnostic = Diagnostic(
            Code.WRONG_CUDA,
            "package for a newer CUDA",
            conda.document.span(line.node),
            f"it is built for {major}, which is newer than the driver",
            f"the driver in the machine image of `{use.name}` supports CUDA {shown(driver)}",
            _older(there, line, driver),
        )
        yield Finding(diagnostic)


def _cuda_of_line(conda: Conda, line: Package | Option) -> tuple[int, int | None] | None:
    """Return the CUDA that a line of pip is built for; None if it does not say. The minor version may be unknown."""
    if isinstance(line, Option):
        found = TORCH_FOLDER.search(line.text)
        decides = found and found["major"] and decides_build(conda, line) and conda.package(*TORCH)
        return (int(found["major"]), int(found["minor"])) if found and decides else None
    if line.by is not Installer.PIP or not is_meant(line, conda.python):
        return None
    if found := _LOCAL_CUDA.search(line.url or line.version):
        return int(found["major"]), int(found["minor"])
    extra = _JAX_EXTRA.search(line.text.partition(";")[0]) if line.name == "jax" else None
    found = extra or _CUDA_IN_NAME.fullmatch(line.name)
    return (int(found["major"]), None) if found else None


def _older(conda: Conda, line: Package | Option, driver: Cuda) -> str:
    """Return what to write for a build that the driver supports."""
    if isinstance(line, Option):
        changed = in_folder(conda, line, driver)
        return f"write `{changed}`" if changed else f"use the folder for CUDA {driver[0]}"
    known = how_to_choose(conda, line, driver) if line.name in TORCH and not line.url else None
    older = re.sub(r"cuda\d{2}", f"cuda{driver[0]}", line.text.partition(" ")[0])
    if known is None and older != line.text.partition(" ")[0] and not is_lock(conda):
        known = f"write `{older}`"
    return known or f"use a build for CUDA {driver[0]}"
