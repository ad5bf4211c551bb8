"""Which targets use an environment, whether they have a GPU, and which package lines apply to jobs."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

from packaging.markers import InvalidMarker, Marker, UndefinedComparison, UndefinedEnvironmentName

from gpuinfra.workbench.compute import LOCAL, Compute
from gpuinfra.workbench.conda import Conda, Package
from gpuinfra.workbench.cuda import Cuda, is_for_gpu
from gpuinfra.workbench.project import Project
from gpuinfra.workbench.runconfig import CONDA_FILE, RunConfig


class Location(Enum):
    """Where an environment is used."""

    GPU = "in a container with a GPU"
    CPU = "in a container without a GPU"
    HERE = "on this computer"
    ELSEWHERE = "on an unknown Linux machine"


@dataclass(frozen=True)
class Use:
    """A run configuration, a target without one, or a spec that uses an environment."""

    name: str
    place: Location
    image: str | None = None
    """The container's image, if known."""
    driver: Cuda | None = None
    """The newest CUDA that the machine's driver supports, if known."""


def uses_of(project: Project, conda: Conda) -> list[Use]:
    """Return every use of an environment in the project, by the name of the target or run configuration."""
    uses = [
        Use(runconfig.name, place, _image_of(project, runconfig))
        for runconfig in project.runconfigs.values()
        if project.conda_of(runconfig) is conda and (place := location_of(project, runconfig))
    ]
    if conda.path == CONDA_FILE:
        uses += [
            Use(compute.name, _container(compute), compute.base_docker_image)
            for compute in _without_runconfig(project)
            if compute.is_docker
        ]
    by_spec = [
        Use(job.name, Location.GPU if job.needs_gpu else Location.ELSEWHERE, job.image, job.driver)
        for job in project.jobs
        if job.packages is conda
    ]
    # A spec decides for its target, whatever the run configuration says.
    named = {job.name for job in project.jobs}
    return [*(use for use in uses if use.name not in named), *by_spec]


def is_for_linux(project: Project, conda: Conda) -> bool:
    """Return whether the file is used in a container or on a remote machine. The default file is."""
    uses = uses_of(project, conda)
    if uses:
        return any(use.place is not Location.HERE for use in uses)
    named = any(project.conda_of(runconfig) is conda for runconfig in project.runconfigs.values())
    return conda.path == CONDA_FILE and not named


def location_of(project: Project, runconfig: RunConfig) -> Location | None:
    """Return where a run configuration uses its environment; None if it does not use the conda file."""
    if runconfig.user_managed:
        return None
    compute = project.target_of(runconfig)
    if runconfig.docker and runconfig.docker.enabled:
        gpu = runconfig.docker.gpu or is_for_gpu(runconfig.docker.base_image)
        return Location.GPU if gpu else Location.CPU
    if compute is None:
        is_here = (runconfig.target or runconfig.name) == LOCAL
        return Location.ELSEWHERE if not is_here else Location.HERE if runconfig.is_sdk_v1 else None
    if compute.type == LOCAL:
        return Location.HERE if runconfig.is_sdk_v1 else None
    if compute.user_managed_environment:
        return None
    return _container(compute) if compute.is_docker and not runconfig.is_sdk_v1 else Location.ELSEWHERE


def _image_of(project: Project, runconfig: RunConfig) -> str | None:
    compute = project.target_of(runconfig)
    if runconfig.docker and runconfig.docker.enabled:
        return runconfig.docker.base_image
    return compute.base_docker_image if compute else None


def is_gpu_target(compute: Compute) -> bool:
    """Return whether a target's file says that jobs use a GPU."""
    return compute.is_docker and (compute.nvidia_docker or is_for_gpu(compute.base_docker_image))


def _container(compute: Compute) -> Location:
    return Location.GPU if is_gpu_target(compute) else Location.CPU


def _without_runconfig(project: Project) -> Iterator[Compute]:
    """Return targets without a run configuration. Their jobs use the default environment."""
    taken = {runconfig.target or runconfig.name for runconfig in project.runconfigs.values()}
    return (
        compute
        for name, compute in project.computes.items()
        if name not in taken | project.runconfigs.keys() and not compute.user_managed_environment
    )


# Without a Python version, a marker counts if it is the same for all of these.
_PYTHONS = tuple((3, minor) for minor in range(4, 15))
# Depends on the machine, or on the patch version of Python.
_NOT_KNOWN = re.compile(
    r"platform_release|platform_version|platform\.version|python_full_version|implementation_version"
)


def is_meant(package: Package, python: tuple[int, int] | None) -> bool | None:
    """Return whether a line applies to jobs, on Linux x86-64; None if unknown."""
    if not package.marker:
        return True
    if _NOT_KNOWN.search(package.marker):
        return None
    try:
        marker = Marker(package.marker)
        found = {marker.evaluate(_environment(each)) for each in ([python] if python else _PYTHONS)}
    except (InvalidMarker, UndefinedComparison, UndefinedEnvironmentName):
        return None
    return found.pop() if len(found) == 1 else None


def _environment(python: tuple[int, int]) -> dict[str, str]:
    return {
        "extra": "",
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": "x86_64",
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_version": f"{python[0]}.{python[1]}",
        # Python 2 includes the major version of its build kernel.
        "sys_platform": "linux2" if python[0] == 2 else "linux",
    }


def meant_lines(conda: Conda) -> Conda:
    """Return the file without the lines that are for other systems."""
    return replace(conda, packages=tuple(each for each in conda.packages if is_meant(each, conda.python) is not False))
