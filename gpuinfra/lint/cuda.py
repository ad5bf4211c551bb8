"""Packages that look for another CUDA than the image has: they run on the CPU there, or do not start."""

from __future__ import annotations

from collections.abc import Iterator

from gpuinfra.diagnostics import Code, Diagnostic
from gpuinfra.lint.facts.packages import brings_cuda
from gpuinfra.lint.facts.tensorflow import gpu_package_cuda, gpu_package_version
from gpuinfra.lint.finding import Finding
from gpuinfra.lint.markers import is_meant
from gpuinfra.lint.uses import Place, uses_of
from gpuinfra.workbench.conda import By, Conda, Package
from gpuinfra.workbench.cuda import cuda_of, shown
from gpuinfra.workbench.project import Project


def wrong_cuda(project: Project) -> Iterator[Finding]:
    """`tensorflow-gpu` of PyPI, which brings no CUDA of its own, on an image with another CUDA."""
    for conda in project.condas.values():
        if any(brings_cuda(each) and is_meant(each, conda.python) is not False for each in conda.packages):
            continue
        package = conda.package("tensorflow-gpu", by=By.PIP)
        if package and package.url is None and is_meant(package, conda.python):
            yield from _findings(project, conda, package)


def _findings(project: Project, conda: Conda, package: Package) -> Iterator[Finding]:
    version = gpu_package_version(package.version, conda.python)
    needed = gpu_package_cuda(version) if version else None
    if needed is None:
        return
    for use in uses_of(project, conda):
        found = cuda_of(use.image) if use.place is Place.GPU and use.image else None
        # From CUDA 11 on, all minor versions of a major one have the same libraries.
        if found is None or (found[0] == needed[0] if needed[0] >= 11 else found == needed):
            continue
        python = f" for Python {conda.python[0]}.{conda.python[1]}" if conda.python else ""
        which = f"`tensorflow-gpu`{'' if package.version else python} is {version}"
        yield Finding(
            Diagnostic(
                Code.WRONG_CUDA,
                "package for another CUDA",
                conda.document.span(package.node),
                f"{which}, and looks for CUDA {shown(needed)}",
                f"`{use.image}`, of {use.name}, has CUDA {shown(found)}: the job would run on the CPU, or not start",
                f"name an image with CUDA {shown(needed)}, or a newer `tensorflow` for CUDA {shown(found)}",
            )
        )
        return
