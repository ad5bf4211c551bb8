"""Packages for another CUDA version than the image has: jobs would run on the CPU or fail."""

from __future__ import annotations

from collections.abc import Iterator

from gpuinfra.diagnostics import Code, Diagnostic
from gpuinfra.lint.facts.packages import brings_cuda
from gpuinfra.lint.facts.tensorflow import gpu_package_cuda, gpu_package_version
from gpuinfra.lint.finding import Finding
from gpuinfra.lint.markers import is_meant
from gpuinfra.lint.uses import Location, uses_of
from gpuinfra.workbench.conda import Conda, Installer, Package
from gpuinfra.workbench.cuda import cuda_of, shown
from gpuinfra.workbench.project import Project


def wrong_cuda(project: Project) -> Iterator[Finding]:
    """Find `tensorflow-gpu` from PyPI, which includes no CUDA, on an image with another CUDA version."""
    for conda in project.condas.values():
        if any(brings_cuda(each) and is_meant(each, conda.python) is not False for each in conda.packages):
            continue
        package = conda.package("tensorflow-gpu", by=Installer.PIP)
        if package and package.url is None and is_meant(package, conda.python):
            yield from _findings(project, conda, package)


def _findings(project: Project, conda: Conda, package: Package) -> Iterator[Finding]:
    version = gpu_package_version(package.version, conda.python)
    needed = gpu_package_cuda(version) if version else None
    if needed is None:
        return
    for use in uses_of(project, conda):
        found = cuda_of(use.image) if use.place is Location.GPU and use.image else None
        # Since CUDA 11, all minor versions of a major version are compatible.
        if found is None or (found[0] == needed[0] if needed[0] >= 11 else found == needed):
            continue
        python = f" for Python {conda.python[0]}.{conda.python[1]}" if conda.python else ""
        which = f"`tensorflow-gpu`{'' if package.version else python} is {version}"
        yield Finding(
            Diagnostic(
                Code.WRONG_CUDA,
                "package for another CUDA",
                conda.document.span(package.node),
                f"{which}, which needs CUDA {shown(needed)}",
                f"`{use.image}` of {use.name} has CUDA {shown(found)}: the job would run on the CPU or fail",
                f"use an image with CUDA {shown(needed)}, or a newer `tensorflow` for CUDA {shown(found)}",
            )
        )
        return
