"""Packages that use the CPU only, or another CUDA version than the image has, in environments for a GPU."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from packaging.version import Version

from gpuinfra.diagnostics import Code, Diagnostic, Severity, listed
from gpuinfra.lint.facts import (
    BY_NAME,
    CHOOSES_GPU,
    CNTK_CPU,
    CNTK_GPU,
    CNTK_WHEEL,
    CONDA_VERSION,
    CPU_FOLDER,
    FINDS_CUDA,
    OWN_CHANNELS,
    CpuOnly,
    Gpu,
    brings_cuda,
    cuda_for,
    exact,
    gpu_of,
    gpu_package_cuda,
    gpu_package_version,
    is_cpu_build,
    is_for_cpu,
    is_without_cuda,
)
from gpuinfra.lint.finding import Finding, replace_part
from gpuinfra.lint.torch import TORCH, decides_build, how_to_choose, in_folder, is_lock
from gpuinfra.lint.uses import Location, Use, is_meant, meant_lines, uses_of
from gpuinfra.workbench.conda import Conda, Installer, Option, Package
from gpuinfra.workbench.cuda import Cuda, cuda_of, shown
from gpuinfra.workbench.project import Project

_NAME = re.compile(r"(?:[^\s:]+::)?(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*)")


@dataclass(frozen=True)
class _CpuOnlyLine:
    """The problem of a line, and the replacement that fixes it."""

    label: str
    help: str
    severity: Severity = Severity.ERROR
    old: str = ""
    new: str = ""


def cpu_only(project: Project) -> Iterator[Finding]:
    """Find lines that make an environment for a GPU use the CPU."""
    for conda in project.condas.values():
        uses = uses_of(project, conda)
        if any(use.place is Location.GPU for use in uses):
            yield from cpu_only_in(conda, uses)


def cpu_only_in(conda: Conda, uses: list[Use]) -> Iterator[Finding]:
    """Find such lines in one file. In a file for pip alone, only what is certain counts."""
    there = meant_lines(conda)
    driver = _driver_of(uses)
    for package in there.packages:
        verdict = _examine(there, package, driver)
        if verdict and (conda.is_conda or verdict.severity is Severity.ERROR):
            yield _finding(conda, package, _for_images(package, verdict, uses), uses)
    for option in conda.options:
        if CPU_FOLDER.search(option.text) and decides_build(there, option):
            yield _finding(conda, option, _of_folder(there, option, driver), uses)


def _driver_of(uses: list[Use]) -> Cuda | None:
    """Return the CUDA that the drivers of all machines support, as far as it is known."""
    return min((use.driver for use in uses if use.driver and use.place is Location.GPU), default=None)


def _of_folder(conda: Conda, option: Option, driver: Cuda | None) -> _CpuOnlyLine:
    changed = in_folder(conda, option, driver)
    help_line = f"write `{changed}`" if changed else "use the folder for the image's CUDA version"
    return _CpuOnlyLine("these are builds for the CPU", help_line)


def _examine(conda: Conda, package: Package, driver: Cuda | None) -> _CpuOnlyLine | None:
    """Return the problem of a line, or None. Lines that may be for another system have none."""
    if not is_meant(package, conda.python):
        return None
    return _of_url(package.url) if package.url else _of_package(conda, package, driver)


def _finding(conda: Conda, line: Package | Option, verdict: _CpuOnlyLine, uses: list[Use]) -> Finding:
    document = conda.document
    with_gpu = [use.name for use in uses if use.place is Location.GPU]
    others = [use.name for use in uses if use.place is not Location.GPU]
    note = f"used by {listed(with_gpu, 'and')}, with a GPU"
    if others:
        note += f", and by {listed(others, 'and')}: use a separate file for targets with a GPU"
    diagnostic = Diagnostic(
        Code.CPU_ONLY_PACKAGE,
        "package for the CPU",
        document.span(line.node),
        verdict.label,
        note,
        verdict.help,
        verdict.severity,
    )
    # A package for GPUs may not start without one.
    can_be_fixed = verdict.old and not others
    return Finding(diagnostic, replace_part(document, line.node, verdict.old, verdict.new) if can_be_fixed else None)


def _for_images(package: Package, verdict: _CpuOnlyLine, uses: list[Use]) -> _CpuOnlyLine:
    """Remove the fix if the image has no CUDA or another version: the package would not start.

    An image that is itself fixed has CUDA in the next round.
    """
    if package.by is not Installer.PIP or verdict.new not in FINDS_CUDA:
        return verdict
    if without := [use.image for use in uses if use.place is Location.GPU and is_without_cuda(use.image)]:
        help_line = f"{verdict.help}; it needs CUDA, which `{without[0]}` lacks"
        return replace(verdict, help=help_line, old="", new="")
    version = exact(package.version) if package.name == "tensorflow" else None
    needed = cuda_for(version) if version else None
    found = {cuda_of(use.image) for use in uses if use.place is Location.GPU and use.image} - {None, needed}
    if needed is None or not found:
        return verdict
    has = " and ".join(sorted(shown(cuda) for cuda in found if cuda))
    help_line = f"`tensorflow-gpu` does; this version needs CUDA {shown(needed)}, but the image has {has}"
    return replace(verdict, help=help_line, old="", new="")


def _of_package(conda: Conda, package: Package, driver: Cuda | None) -> _CpuOnlyLine | None:
    if package.name == "tensorflow":
        return _of_tensorflow(conda, package)
    if package.name in {"jax", "jaxlib"} and package.by is Installer.PIP:
        return _of_jax(conda, package, driver)
    if package.name in TORCH and re.search(r"\+cpu\b", package.version):
        help_line = how_to_choose(conda, package, driver) or "use a version without `+cpu`, or with `+cu…`"
        return _CpuOnlyLine("`+cpu` is a build for the CPU", help_line)
    if is_cpu_build(package):
        return _CpuOnlyLine("this is a build for the CPU", "omit the build, or use one with `cuda`")
    if (
        package.name == "tensorflow-cpu"
        and not conda.is_conda
        and (version := exact(package.version))
        and version >= Version("2.14")
    ):
        return _CpuOnlyLine("`tensorflow-cpu` does not use a GPU", _write(conda, f"tensorflow[and-cuda]=={version}"))
    known = BY_NAME.get((package.by, package.name))
    return _of_known(package, known) if known else None


def _of_known(package: Package, known: CpuOnly) -> _CpuOnlyLine:
    label = f"`{package.name}` does not use a GPU"
    severity = Severity.ERROR if known.certain else Severity.WARNING
    if package.name == "tensorflow-cpu" and (version := exact(package.version)) and not is_for_cpu(version):
        return _CpuOnlyLine(label, known.help, severity, _written_name(package), "tensorflow")
    if known.twin and not package.version:
        return _CpuOnlyLine(label, known.help, severity, _written_name(package), known.twin)
    return _CpuOnlyLine(label, known.help, severity)


def _of_url(url: str) -> _CpuOnlyLine | None:
    wheel = CNTK_WHEEL.fullmatch(url)
    if wheel and wheel["build"] == "CPU-Only":
        help_line = "the wheel of the same name in the folder `GPU` uses the GPU"
        return _CpuOnlyLine("a wheel from the folder `CPU-Only`", help_line, old=CNTK_CPU, new=CNTK_GPU)
    if CPU_FOLDER.search(url) or re.search(r"(?:\+|%2B)cpu-", url):
        return _CpuOnlyLine("a build for the CPU", "use the one for the image's CUDA version")
    return None


def _of_tensorflow(conda: Conda, package: Package) -> _CpuOnlyLine | None:
    chooser = conda.package(*CHOOSES_GPU)
    if package.by is Installer.CONDA and chooser and chooser.by is Installer.CONDA:
        return None
    gpu = gpu_of(package.version, package.by, conda.python)
    if gpu is Gpu.YES:
        return None
    if conda.package("tensorflow-gpu"):
        label = "it and `tensorflow-gpu` overwrite each other"
        return _CpuOnlyLine(label, "keep only `tensorflow-gpu`", Severity.WARNING)
    if gpu is Gpu.DEPENDS:
        label = "pip before version 19 installs one for the CPU"
        help_line = "write `tensorflow-gpu==1.14.0`, or `tensorflow>=2.1` and conda's `pip>=19`"
        return _CpuOnlyLine(label, help_line, Severity.WARNING)
    words = "of this version" if package.version else f"for Python {'.'.join(map(str, conda.python or ()))}"
    label = f"`tensorflow` {words} does not use a GPU"
    twin = "tensorflow-gpu" if _has_twin(conda, package) else ""
    is_of_others = package.by is Installer.CONDA and not OWN_CHANNELS.issuperset(conda.channels)
    help_line = f"`tensorflow-gpu`{' of the channel `defaults`' if is_of_others else ''} does"
    return _CpuOnlyLine(label, help_line, Severity.ERROR, _written_name(package) if twin else "", twin)


def _has_twin(conda: Conda, package: Package) -> bool:
    """Return whether the same version exists in the same channel under the other name."""
    if package.by is Installer.PIP:
        version = exact(package.version)
        return version is not None and version >= Version("1.0")
    plain = CONDA_VERSION.fullmatch(package.version)
    has_build = plain is not None and plain["build"] is not None
    is_plain = not package.version or (plain is not None and not has_build)
    return is_plain and "::" not in package.text and OWN_CHANNELS.issuperset(conda.channels)


def _of_jax(conda: Conda, package: Package, driver: Cuda | None) -> _CpuOnlyLine | None:
    words = " ".join([*(each.text for each in conda.packages), *(option.text for option in conda.options)])
    if not conda.is_conda and re.search(r"(?:^| )(?:-r|--requirement)\b", words):
        return None  # the other file may say more
    has_other = package.name == "jaxlib" and conda.package("jax", by=Installer.PIP)
    if has_other or re.search(r"jax\w*\[[^\]]*cuda|jaxlib\S*cuda|jax-cuda|jax-releases|jax_cuda", words):
        return None
    extra = f"jax[cuda{13 if driver and driver >= (13, 0) else 12}]"
    version = exact(package.version)
    # Earlier versions have other extras.
    is_known = not conda.is_conda and package.name == "jax" and version and version >= Version("0.4.30")
    return _CpuOnlyLine(
        "without `cuda` it uses only the CPU",
        _write(conda, f"{extra}=={version}") if is_known else f"for example `{extra}`",
    )


def _write(conda: Conda, line: str) -> str:
    return f"write `{line}` in pyproject.toml, and run `uv lock`" if is_lock(conda) else f"write `{line}`"


def _written_name(package: Package) -> str:
    found = _NAME.match(package.text)
    return found["name"] if found else ""


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
