"""The description of a job: `JobSpec` before the target is contacted, and `StartRequest`, which starts it there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from gpuinfra.diagnostics import Diagnostic
from gpuinfra.models.target import Target
from gpuinfra.runner.sources.dockerfile import Dockerfile
from gpuinfra.workbench.compute import LOCALDOCKER, REMOTEDOCKER, SHARE
from gpuinfra.workbench.conda import Conda
from gpuinfra.workbench.runconfig import PYSPARK, PYTHON, SCRIPT

# The limits of Linux: MAX_ARG_STRLEN for one variable or argument, and a quarter of the usual stack for all of them.
MAX_VARIABLE_BYTES = 128 * 1024 - 1
MAX_TOTAL_BYTES = 2 * 1024 * 1024 - 64 * 1024

_SIZE = re.compile(r"(?P<number>[0-9]{1,12})\s*(?P<unit>[kmgt]?)(?:i?b)?", re.IGNORECASE)
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_GPU = re.compile(r"[0-9]{1,4}|(?:GPU|MIG)-[0-9A-Za-z/-]{1,80}")


class GpuNeed(Enum):
    """Whether a job needs a GPU, according to the project's files and the machine's spec."""

    REQUIRED = "required"
    IF_ANY = "if there is one"
    NO = "no"


@dataclass(frozen=True, slots=True)
class Gpus:
    """Which GPUs a job gets: all, a number of them, or those with certain ids."""

    count: int | None = None
    """None means all GPUs, unless `ids` is set."""
    ids: tuple[str, ...] = ()
    """Indexes or `GPU-…` names."""


@dataclass(frozen=True)
class JobSpec:
    """One job, as the project's files, the machine's spec and the caller describe it together."""

    project: Path
    configuration: str
    target: Target
    gpu_need: GpuNeed
    says_gpu: bool = False
    """Whether a file says explicitly if the job gets a GPU."""
    base_image: str | None = None
    """The base image of a job in a container; None to choose it for the target's driver."""
    packages: Conda | None = None
    """The file with the packages to install: a conda file, requirements, or the dependencies of a project."""
    dockerfile: Dockerfile | None = None
    """What the image is built from, instead of a base image and packages."""
    environment_source: str = ""
    """Which file or field decided the environment, for people; empty if none did."""
    has_own_environment: bool = False
    """Whether a job without a container gets an environment of its own, instead of the machine's Python."""
    is_user_managed: bool = False
    """Whether the project's files say that nothing is to be installed."""
    prepares: bool = True
    """Whether a missing environment is built."""
    rebuild: bool = False
    build_secrets: dict[str, str] = field(default_factory=dict, repr=False)
    """Values for `${NAME}` in the requirements."""
    framework: str = PYTHON
    python: str | None = None
    """The interpreter that the target's file names."""
    spark_submit: str | None = None
    arguments: tuple[str, ...] = (SCRIPT,)
    """The arguments of the run configuration; `$file` stands for the script."""
    script: str = ""
    """The path in the project; empty if neither the run configuration nor the caller names one."""
    interpreter: tuple[str, ...] = ()
    """The program that runs the script, with its options; empty for Python."""
    words: tuple[str, ...] = ()
    """The caller's arguments, after those of the run configuration."""
    program: tuple[str, ...] = ()
    """A command that runs as it is, instead of a script. `script` is then the project file that it starts, if any."""
    title: str = ""
    """What runs, for people: the script, or the command as it was written."""
    spec_environment: dict[str, str] = field(default_factory=dict)
    """The variables of the machine's spec. Those of the run configuration take precedence."""
    environment: dict[str, str] = field(default_factory=dict)
    """The variables of the run configuration."""
    more_environment: dict[str, str] = field(default_factory=dict)
    """The variables of the caller, which take precedence."""
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    """Variables whose values are never printed or stored."""
    requested_gpus: Gpus | None = None
    """The GPUs that the caller requested, or None."""
    memory: int | None = None
    shm_size: int | None = None
    timeout: float | None = None
    keep_on_failure: float | None = None
    """For how many seconds `run` leaves the machine on if the job fails."""
    share: str | None = SHARE
    """The folder of the machine that all its jobs share, or None."""
    share_problem: Diagnostic | None = None
    """The error if the project's files, and not the caller, chose a folder outside of the default one."""
    is_share_chosen: bool = False
    """Whether the caller chose the shared folder, which may then be anywhere on the machine."""
    more_outputs: tuple[str, ...] = ()
    """Folders at the top of the project, besides `outputs`, whose files are fetched."""
    ports: dict[str, int] = field(default_factory=dict)
    """Ports of the job that are forwarded while it is followed, by name."""
    tracked: bool = True
    require_gpu_use: bool = False
    send_credentials: bool = False
    """Whether even a target that the user did not create or attach receives the user's Docker credentials."""
    warnings: tuple[Diagnostic, ...] = ()

    @property
    def in_container(self) -> bool:
        return self.target.type in {LOCALDOCKER, REMOTEDOCKER}

    @property
    def installs_packages(self) -> bool:
        """Whether the job's environment gets the packages of `packages`."""
        return self.in_container or self.has_own_environment

    @property
    def image_name(self) -> str | None:
        """What the image of a job in a container is built from, for messages; None until the image is chosen."""
        return self.dockerfile.path if self.dockerfile else self.base_image

    @property
    def gpus(self) -> Gpus | None:
        """The GPUs that the job gets, or None."""
        if self.requested_gpus is not None:
            return self.requested_gpus
        return None if self.gpu_need is GpuNeed.NO else Gpus()

    @property
    def requires_gpu(self) -> bool:
        """Whether the job must not run without a GPU."""
        return self.gpu_need is GpuNeed.REQUIRED or self.requested_gpus is not None

    @property
    def variables(self) -> dict[str, str]:
        """The variables without the secrets; those of the caller take precedence."""
        return {**self.spec_environment, **self.environment, **self.more_environment}

    def command(self, python: Sequence[str]) -> tuple[str, ...]:
        """Return the command line of the job. A script starts with `python` if the target's file has no interpreter."""
        if self.program:
            return self.program
        arguments = [self.script if each == SCRIPT else each for each in self.arguments]
        if self.framework == PYSPARK:
            return (self.spark_submit or "spark-submit", *arguments, *self.words)
        python = (self.python,) if self.python else python
        return (*(self.interpreter or python), *arguments, *self.words)

    def source_of(self, name: str, value: str) -> str:
        """Return where the job's variable was set, as part of a message."""
        own = name in self.more_environment or name in self.secrets
        if not own and self.environment.get(name) == value:
            return f"in the environment variables of `{self.configuration}.runconfig`"
        if not own and name in self.spec_environment:
            return "by `job.env` of the spec"
        return "by `--env`, `--env-file` or `--secret`"


@dataclass(frozen=True, slots=True)
class StartRequest:
    """How to start a job on its target. Paths are as the job sees them; for a container, inside the container."""

    run: str
    """The id of the run."""
    command: tuple[str, ...]
    """The program and its arguments."""
    folder: str
    """The working directory: the project."""
    environment: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    """More variables. Only the job sees their values: they appear in no arguments, logs or permanent files."""
    gpus: Gpus | None = None
    """None means that the job must not see a GPU."""
    memory: int | None = None
    """The memory limit in bytes."""
    shm_size: int | None = None
    """The size of /dev/shm in bytes."""
    timeout: float | None = None
    """The seconds after which the target stops it, with or without a client."""
    image: str | None = None
    """The id of the image, for a job in a container."""
    mounts: tuple[tuple[str, str], ...] = ()
    """Folders of the machine and where they are mounted in the container, writable."""
    ports: tuple[int, ...] = ()
    """Ports of a container that the machine opens on its loopback interface."""
    labels: dict[str, str] = field(default_factory=dict)
    environment_folder: str | None = None
    """For a job without a container: its Python environment, whose programs come first in its PATH."""


def parse_size(text: str) -> int | None:
    """Return the bytes of a size such as `8g`, `512 MiB` or `64m`, or None if the text is not a size."""
    found = _SIZE.fullmatch(text.strip())
    return int(found["number"]) << _UNITS[found["unit"].lower()] if found else None


def parse_gpus(text: str) -> Gpus | None:
    """Return the GPUs for `all`, a count such as `2`, or ids such as `0,1`, `device=0` or `GPU-…`; else None."""
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
    """Return why Linux would refuse to start a program with these variables and arguments, or None."""
    for name, value in environment.items():
        size = len(name.encode("utf-8", "surrogateescape")) + len(value.encode("utf-8", "surrogateescape")) + 2
        if size > MAX_VARIABLE_BYTES:
            return f"the variable `{name[:80]}` has {size:,} bytes; Linux allows {MAX_VARIABLE_BYTES:,}"
    for word in command:
        if len(word.encode("utf-8", "surrogateescape")) > MAX_VARIABLE_BYTES:
            return f"an argument has {len(word):,} characters; Linux allows {MAX_VARIABLE_BYTES:,} bytes"
    pairs = sum(len(f"{name}={value}".encode("utf-8", "surrogateescape")) + 9 for name, value in environment.items())
    words = sum(len(word.encode("utf-8", "surrogateescape")) + 9 for word in command)
    if pairs + words > MAX_TOTAL_BYTES:
        return f"variables and arguments have {pairs + words:,} bytes; Linux allows about {MAX_TOTAL_BYTES:,} in total"
    return None
