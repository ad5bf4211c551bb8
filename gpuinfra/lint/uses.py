"""Who uses an environment, and where: that decides what its packages have to be for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from gpuinfra.workbench.compute import LOCAL, Compute
from gpuinfra.workbench.conda import Conda
from gpuinfra.workbench.cuda import is_for_gpu
from gpuinfra.workbench.project import Project
from gpuinfra.workbench.runconfig import CONDA_FILE, RunConfig


class Place(Enum):
    """Where an environment is made."""

    GPU = "in a container with a GPU"
    CPU = "in a container without a GPU"
    HERE = "on this computer, whatever it is"
    ELSEWHERE = "on a Linux machine of which no more is known"


@dataclass(frozen=True)
class Use:
    """One target, by a run configuration or by itself, that makes an environment of a conda file."""

    name: str
    place: Place
    image: str | None = None
    """What its container is made of, if there is one and it says."""


def uses_of(project: Project, conda: Conda) -> list[Use]:
    """Every use of a conda file that the project's files tell of."""
    uses = [
        Use(runconfig.name, place, _image_of(project, runconfig))
        for runconfig in project.runconfigs.values()
        if project.conda_of(runconfig) is conda and (place := place_of(project, runconfig))
    ]
    if conda.path == CONDA_FILE:
        uses += [
            Use(compute.name, _container(compute), compute.base_docker_image)
            for compute in _without_runconfig(project)
            if compute.is_docker
        ]
    return uses


def is_for_linux(project: Project, conda: Conda) -> bool:
    """Whether an environment of the file is made in a container or on a machine; by default it is."""
    uses = uses_of(project, conda)
    if uses:
        return any(use.place is not Place.HERE for use in uses)
    named = any(project.conda_of(runconfig) is conda for runconfig in project.runconfigs.values())
    return conda.path == CONDA_FILE and not named


def place_of(project: Project, runconfig: RunConfig) -> Place | None:
    """Where the environment of a run is made; None where the conda file is not used at all."""
    if runconfig.user_managed:
        return None
    compute = project.target_of(runconfig)
    if runconfig.docker and runconfig.docker.enabled:
        gpu = runconfig.docker.gpu or is_for_gpu(runconfig.docker.base_image)
        return Place.GPU if gpu else Place.CPU
    if compute is None:
        is_here = (runconfig.target or runconfig.name) == LOCAL
        return Place.ELSEWHERE if not is_here else Place.HERE if runconfig.is_later else None
    if compute.type == LOCAL:
        return Place.HERE if runconfig.is_later else None
    if compute.user_managed_environment:
        return None
    return _container(compute) if compute.is_docker and not runconfig.is_later else Place.ELSEWHERE


def _image_of(project: Project, runconfig: RunConfig) -> str | None:
    compute = project.target_of(runconfig)
    if runconfig.docker and runconfig.docker.enabled:
        return runconfig.docker.base_image
    return compute.base_docker_image if compute else None


def is_gpu_target(compute: Compute) -> bool:
    """Whether its jobs are meant to use a GPU, as far as its file says."""
    return compute.is_docker and (compute.nvidia_docker or is_for_gpu(compute.base_docker_image))


def _container(compute: Compute) -> Place:
    return Place.GPU if is_gpu_target(compute) else Place.CPU


def _without_runconfig(project: Project) -> Iterator[Compute]:
    """Targets that no run configuration is for: a job that is sent there gets the usual environment."""
    taken = {runconfig.target or runconfig.name for runconfig in project.runconfigs.values()}
    return (
        compute
        for name, compute in project.computes.items()
        if name not in taken | project.runconfigs.keys() and not compute.user_managed_environment
    )
