"""The description of a job: `JobSpec` before its target is contacted, and `StartRequest`, which starts it there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from gpuinfra.diagnostics import Diagnostic
from gpuinfra.models.target import Target
from gpuinfra.workbench.compute import LOCALDOCKER, REMOTEDOCKER, SHARE
from gpuinfra.workbench.conda import Conda
from gpuinfra.workbench.runconfig import PYSPARK, PYTHON, SCRIPT

# Of one variable and of all of them: what Linux takes at most (MAX_ARG_STRLEN, and a quarter of the usual stack).
LONGEST_VARIABLE = 128 * 1024 - 1
MOST_IN_ALL = 2 * 1024 * 1024 - 64 * 1024

_SIZE = re.compile(r"(?P<number>[0-9]{1,12})\s*(?P<unit>[kmgt]?)(?:i?b)?", re.IGNORECASE)
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_GPU = re.compile(r"[0-9]{1,4}|(?:GPU|MIG)-[0-9A-Za-z/-]{1,80}")


class GpuNeed(Enum):
    """Whether a job needs a GPU, as the project's files and the machine's spec say."""

    REQUIRED = "required"
    IF_ANY = "if there is one"
    NO = "no"


@dataclass(frozen=True, slots=True)
class Gpus:
    """Which GPUs a job gets: all, a number of them, or certain ones."""

    count: int | None = None
    """None without ids: all of them."""
    ids: tuple[str, ...] = ()
    """Numbers or `GPU-…` names."""


@dataclass(frozen=True)
class JobSpec:
    """One job: what the project's files, the machine's spec and the caller say together."""

    project: Path
    configuration: str
    target: Target
    gpu_need: GpuNeed
    says_gpu: bool = False
    """Whether a file itself says if the job gets a GPU."""
    base_image: str | None = None
    """The image that a job in a container is built on."""
    conda: Conda | None = None
    prepares: bool = True
    """Whether a missing environment is built."""
    rebuild: bool = False
    build_secrets: dict[str, str] = field(default_factory=dict, repr=False)
    """Values for `${NAME}` in the requirements."""
    framework: str = PYTHON
    python: str | None = None
    """The interpreter, if the target's file names one."""
    spark_submit: str | None = None
    arguments: tuple[str, ...] = (SCRIPT,)
    """The arguments of the run configuration; `$file` stands for the script."""
    script: str = ""
    """The path in the project; empty if neither the run configuration nor the caller names one."""
    words: tuple[str, ...] = ()
    """The caller's arguments, after those of the run configuration."""
    environment: dict[str, str] = field(default_factory=dict)
    """The variables of the run configuration."""
    more_environment: dict[str, str] = field(default_factory=dict)
    """The variables of the caller, which come first."""
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    """Variables whose values nothing prints or keeps."""
    requested_gpus: Gpus | None = None
    """The GPUs that the caller asks for; None if it does not say."""
    memory: int | None = None
    shm_size: int | None = None
    timeout: float | None = None
    share: str | None = SHARE
    """The folder of the machine that all its jobs share; None if they share none."""
    share_problem: Diagnostic | None = None
    """Why jobs may not share that folder unless the caller names it."""
    is_share_chosen: bool = False
    """Whether the caller names the shared folder: then it may be anywhere on the machine."""
    tracked: bool = True
    require_gpu_use: bool = False
    send_credentials: bool = False
    """Whether a target that the user did not create or attach gets the user's Docker credentials."""
    warnings: tuple[Diagnostic, ...] = ()

    @property
    def in_container(self) -> bool:
        """Whether the job runs in a container."""
        return self.target.type in {LOCALDOCKER, REMOTEDOCKER}

    @property
    def gpus(self) -> Gpus | None:
        """The GPUs that the job gets; None for a job without."""
        if self.requested_gpus is not None:
            return self.requested_gpus
        return None if self.gpu_need is GpuNeed.NO else Gpus()

    @property
    def requires_gpu(self) -> bool:
        """Whether the job must not run without a GPU."""
        return self.gpu_need is GpuNeed.REQUIRED or self.requested_gpus is not None

    @property
    def variables(self) -> dict[str, str]:
        """The variables that may be seen, those of the caller first."""
        return {**self.environment, **self.more_environment}

    def command(self, python: Sequence[str]) -> tuple[str, ...]:
        """Return what the job runs. `python` starts the interpreter if the target's file names none."""
        arguments = [self.script if each == SCRIPT else each for each in self.arguments]
        if self.framework == PYSPARK:
            return (self.spark_submit or "spark-submit", *arguments, *self.words)
        return (*((self.python,) if self.python else python), *arguments, *self.words)

    def source_of(self, name: str, value: str) -> str:
        """Return where a variable of the job gets this value, for a message."""
        if self.environment.get(name) == value:
            return f"in the environment variables of `{self.configuration}.runconfig`"
        return "by `--env`, `--env-file` or `--secret`"


@dataclass(frozen=True, slots=True)
class StartRequest:
    """How a job is started on its target. Paths are those that the job sees: in a container those of the container."""

    run: str
    """The run's id."""
    command: tuple[str, ...]
    """What to run, word by word, the interpreter first."""
    folder: str
    """The working directory: the project."""
    environment: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    """More variables. Only the job sees their values: they are in no arguments, logs or files that stay."""
    gpus: Gpus | None = None
    """None: it gets none, and must see none."""
    memory: int | None = None
    """The most that it may use, in bytes."""
    shm_size: int | None = None
    """The size of /dev/shm, in bytes."""
    timeout: float | None = None
    """The seconds after which the target stops it, with or without a client."""
    image: str | None = None
    """The image's id, for a job in a container."""
    mounts: tuple[tuple[str, str], ...] = ()
    """Folders of the machine, and where a job in a container sees them. Writable."""
    labels: dict[str, str] = field(default_factory=dict)


def parse_size(text: str) -> int | None:
    """`8g`, `512 MiB` or `64m` in bytes; None if it is not a size."""
    found = _SIZE.fullmatch(text.strip())
    return int(found["number"]) << _UNITS[found["unit"].lower()] if found else None


def parse_gpus(text: str) -> Gpus | None:
    """`all`, so many as `2`, or certain ones as `0,1`, `device=0` or `GPU-…`; None where it is none of these."""
    plain = text.strip()
    if plain.casefold() == "all":
        return Gpus()
    if re.fullmatch("[1-9][0-9]{0,2}", plain):
        return Gpus(count=int(plain))
    ids = tuple(each.strip() for each in plain.removeprefix("device=").split(","))
    is_list = "," in plain or plain.startswith("device=") or not plain.isdigit()
    if is_list and len(set(ids)) == len(ids) and all(_GPU.fullmatch(each) for each in ids):
        return Gpus(ids=ids)
    return None


def too_large(environment: dict[str, str], command: tuple[str, ...]) -> str | None:
    """Why Linux would not start a program with these; None where it would."""
    for name, value in environment.items():
        size = len(name.encode("utf-8", "surrogateescape")) + len(value.encode("utf-8", "surrogateescape")) + 2
        if size > LONGEST_VARIABLE:
            return f"the variable `{name[:80]}` has {size:,} bytes; Linux takes {LONGEST_VARIABLE:,} in one"
    for word in command:
        if len(word.encode("utf-8", "surrogateescape")) > LONGEST_VARIABLE:
            return f"an argument has {len(word):,} characters; Linux takes {LONGEST_VARIABLE:,} bytes in one"
    pairs = sum(len(f"{name}={value}".encode("utf-8", "surrogateescape")) + 9 for name, value in environment.items())
    words = sum(len(word.encode("utf-8", "surrogateescape")) + 9 for word in command)
    if pairs + words > MOST_IN_ALL:
        return f"variables and arguments are {pairs + words:,} bytes; Linux takes about {MOST_IN_ALL:,} in all"
    return None
