"""An order: everything about a job that was decided before anything is done about it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Gpus:
    """Which GPUs a job gets: all, so many, or certain ones."""

    count: int | None = None
    """None with no ids: all of them."""
    ids: tuple[str, ...] = ()
    """Numbers or `GPU-…` names."""


@dataclass(frozen=True, slots=True)
class Order:
    """One job. Paths are the job's own: in a container those of the container."""

    run: str
    """The run's id."""
    command: tuple[str, ...]
    """What to run, word by word, the interpreter first."""
    folder: str
    """The working directory: the project."""
    environment: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    """More variables, whose values must be seen by nobody but the job: not in arguments, files that stay, or logs."""
    gpus: Gpus | None = None
    """None: it gets none, and must see none."""
    memory: int | None = None
    """The most it may use, in bytes."""
    shm_size: int | None = None
    """Of /dev/shm, in bytes."""
    timeout: float | None = None
    """Seconds after which it is ended on the target, whether anybody is connected or not."""
    image: str | None = None
    """Of a job in a container: the image's id."""
    mounts: tuple[tuple[str, str], ...] = ()
    """Of a job in a container: folders of the machine, and where the job sees them. Writable."""
    labels: dict[str, str] = field(default_factory=dict)
