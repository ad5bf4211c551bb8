"""A run: one job on one target, from the command to its results and outputs."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from gpuinfra.diagnostics import Diagnostic, Exit
from gpuinfra.models.json_values import camel, exact_stamp, parse_stamp
from gpuinfra.models.plan import same_machine

DELETED_WITH_OUTPUTS = "was deleted with outputs that were not fetched"
"""The end of the warning for a run whose outputs were deleted with its machine."""
LOG_INCOMPLETE = "its log is not complete"
"""The start of the warning for a run whose target has output that is not in the log here."""
END_IS_LATEST = "Azure's log does not say when its machine went off: time and cost are upper limits"
"""The warning for a run whose recorded end is when its machine was first seen off."""
DISK_IS_KEPT = "its disk still exists"
"""The end of the reason for a run whose VM was deleted without its disk."""
KNOWS_NOTHING = "knows nothing of it"
"""Part of the reason for a run that its target no longer knows."""


class RunState(StrEnum):
    """The state of a run."""

    PREPARING = "preparing"
    """The project is uploaded and the environment is built; the job has not started."""
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    """The job ended with a nonzero exit code, or could not start."""
    CANCELLED = "cancelled"
    TIMED_OUT = "timed-out"
    EVICTED = "evicted"
    """Azure evicted the spot machine. The job's files are on its disk."""
    LOST = "lost"
    """Unknown: the machine or Docker no longer knows the job."""

    @property
    def is_over(self) -> bool:
        return self not in {RunState.PREPARING, RunState.RUNNING}


@dataclass(frozen=True, slots=True)
class JobRef:
    """A reference to a job on its target."""

    kind: str
    """`container` or `process`."""
    id: str
    """The container's id; for a process, the run's id."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """The fetched files of a job's `outputs/`."""

    files: int = 0
    size: int = 0
    complete: bool = False
    """Whether all files were fetched after the job ended, with matching checksums."""


@dataclass(frozen=True, slots=True)
class GpuUsage:
    """GPU use during the job, sampled over all its GPUs."""

    samples: int
    seconds: float
    """Between the first and the last sample."""
    peak_utilization: int
    """Percent, of the busiest GPU."""
    mean_utilization: float
    """Percent, over all GPUs and samples."""
    peak_memory_mib: int | None
    """Of the GPU that used the most; None if no GPU reports it."""

    @property
    def was_used(self) -> bool:
        return self.peak_utilization > 0

    def as_json(self) -> dict[str, Any]:
        return {camel(name): value for name, value in asdict(self).items()} | {"used": self.was_used}


class GpuSample(NamedTuple):
    """What a job's GPUs do now."""

    utilization: float
    """Percent, over all GPUs."""
    memory_mib: int | None
    """Of all GPUs together; None if no GPU reports it."""


class LiveStatus(NamedTuple):
    """How a running job is, while it prints nothing."""

    run: str
    seconds: float
    """Since the job started."""
    gpu: GpuSample | None
    cost_usd: float | None
    """So far."""
    simulated: bool


@dataclass(frozen=True, slots=True)
class Run:
    """The record of a run. It holds the names of secrets, never their values."""

    id: str
    target: str
    """The compute target's name."""
    type: str
    """The target's type: local, localdocker, remote, remotedocker."""
    configuration: str
    """The name of the run configuration (`-c`)."""
    command: tuple[str, ...]
    """The job's command and arguments."""
    state: RunState
    created: datetime
    machine: str = ""
    """The machine's name if gpuinfra created it."""
    resource_id: str = ""
    """The VM's Azure id; empty if the target did not have it."""
    vm_id: str = ""
    """Azure's `vmId`, which tells apart VMs that had the same Azure id; empty if the target did not have it."""
    script: str = ""
    started: datetime | None = None
    """When the job started."""
    ended: datetime | None = None
    exit_code: int | None = None
    reason: str = ""
    """Why it ended, if the exit code does not say: `out of memory`, `no GPU`, …"""
    job: JobRef | None = None
    git_commit: str | None = None
    git_dirty: bool | None = None
    spec_digest: str | None = None
    image: str | None = None
    image_digest: str | None = None
    gpu: dict[str, Any] | None = None
    """The result of `GpuFacts.as_json`."""
    usage: GpuUsage | None = None
    timings: dict[str, float] = field(default_factory=dict)
    """Seconds per phase, in order."""
    outputs: Outputs = Outputs()
    ports: dict[str, int] = field(default_factory=dict)
    """Ports of the job that are forwarded while it is followed, by name."""
    request: dict[str, Any] | None = None
    """The options of the job, as given and without secrets, to repeat it."""
    environment_digest: str = ""
    """The digest of the files that describe its environment."""
    environment: tuple[str, ...] = ()
    """The names of the job's environment variables, without values."""
    cost_usd: float | None = None
    simulated: bool = False
    after_run: str | None = None
    """What happens to the machine afterwards, if `run` started it."""
    warnings: tuple[str, ...] = ()

    @property
    def is_end_latest(self) -> bool:
        """Whether the recorded end is only when its machine was first seen off."""
        return END_IS_LATEST in self.warnings

    @property
    def is_on_kept_disk(self) -> bool:
        """Whether the job was lost with a VM that was deleted without its disk."""
        return self.state is RunState.LOST and self.reason.endswith(DISK_IS_KEPT)

    @property
    def is_unfetched(self) -> bool:
        """Whether the job has ended and outputs are still on its target."""
        return self.state.is_over and self.may_have_outputs

    @property
    def is_log_incomplete(self) -> bool:
        """Whether its target has output of the job that is not in the log here."""
        return any(each.startswith(LOG_INCOMPLETE) for each in self.warnings)

    @property
    def may_have_outputs(self) -> bool:
        """Whether its target may have outputs that were not fetched."""
        is_deleted = not self.machine and any(each.endswith(DELETED_WITH_OUTPUTS) for each in self.warnings)
        is_unknown = self.state is RunState.LOST and KNOWS_NOTHING in self.reason
        return bool(self.job or self.started) and not (self.outputs.complete or is_deleted or is_unknown)

    def is_of(self, machine: str, resource_id: str = "") -> bool:
        """Return whether the job was sent to this machine: by id if both are known, else by name."""
        if self.machine.casefold() != machine.casefold():
            return False
        return not (self.resource_id and resource_id) or same_machine(self.resource_id, resource_id)

    def is_on_another(self, vm_id: str) -> bool:
        """Return whether the job was sent to another VM than this one; False if that is not known."""
        return bool(self.vm_id and vm_id) and self.vm_id.casefold() != vm_id.casefold()

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object that `run_from_json` reads."""
        found = {camel(each.name): getattr(self, each.name) for each in fields(self)}
        return {
            **found,
            "command": list(self.command),
            "state": self.state.value,
            "created": exact_stamp(self.created),
            "started": exact_stamp(self.started),
            "ended": exact_stamp(self.ended),
            "job": asdict(self.job) if self.job else None,
            "usage": self.usage.as_json() if self.usage else None,
            "outputs": asdict(self.outputs),
            "environment": list(self.environment),
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True, slots=True)
class OldRun:
    """A run that can be deleted, and the bytes of its log and outputs on this computer."""

    run: Run
    size: int


def run_from_json(found: dict[str, Any]) -> Run:
    """Return the run that `as_json` wrote. Keys of a newer gpuinfra are ignored."""
    known = {each.name: found[camel(each.name)] for each in fields(Run) if camel(each.name) in found}
    usage = {name: value for name, value in (known.get("usage") or {}).items() if name != "used"}
    return Run(
        **{
            **known,
            "command": tuple(known["command"]),
            "state": RunState(known["state"]),
            "created": parse_stamp(known["created"]),
            "started": parse_stamp(known.get("started")),
            "ended": parse_stamp(known.get("ended")),
            "job": JobRef(**known["job"]) if known.get("job") else None,
            "usage": GpuUsage(**{each.name: usage[camel(each.name)] for each in fields(GpuUsage)}) if usage else None,
            "outputs": Outputs(**known.get("outputs", {})),
            "environment": tuple(known.get("environment", ())),
            "warnings": tuple(known.get("warnings", ())),
        }
    )


def unheard_hint(run: Run) -> str:
    """Return what to do about a run whose client is gone."""
    return f"{run.id} was {run.state.value} at last contact; `gpuinfra logs {run.id} -f` connects again"


STDOUT, STDERR = 1, 2
FRAME_HEADER = 13
"""Bytes before a frame's data in a log file."""


class Frame(NamedTuple):
    """Bytes that a job printed at once on one stream; not always a whole line."""

    stream: int
    """STDOUT or STDERR."""
    time: int
    """Nanoseconds since 1970, by the target's clock; never less than in the frame before."""
    data: bytes

    @property
    def size(self) -> int:
        """The number of bytes in a log file."""
        return FRAME_HEADER + len(self.data)


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A file or symbolic link in a run's outputs."""

    name: str
    """The path, with `/` between folders."""
    size: int
    link: str | None = None
    """The target of a symbolic link."""

    def as_json(self) -> dict[str, Any]:
        found = {"name": self.name, "size": self.size, "link": self.link}
        return {key: value for key, value in found.items() if value is not None}


class Unlike(StrEnum):
    """How a file of one run differs from the same file of another run."""

    ONLY_A = "only-a"
    ONLY_B = "only-b"
    SIZE = "size"
    CONTENT = "content"


@dataclass(frozen=True, slots=True)
class FileDifference:
    """A file that differs between two runs."""

    name: str
    how: Unlike
    a: int | None
    """The size in the first run; None if it does not have the file."""
    b: int | None

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "difference": self.how.value, "a": self.a, "b": self.b}


@dataclass(frozen=True)
class RunOutputs:
    """The outputs of a run on this computer."""

    run: Run
    path: Path
    """Their folder, or the folder that they were copied to."""
    files: Sequence[KeptFile]
    copied: bool = False
    left_out: bool | None = None
    """Whether uploads ignore the folder; None if it is outside the project."""
    diagnostics: tuple[Diagnostic, ...] = ()
    exit_code: Exit = Exit.DONE
    skipped: tuple[str, ...] = ()
    """Files of a running job that were not fetched, with the reason."""
    unfinished: tuple[str, ...] = ()
    """Files of a running job that are here as far as they were written."""

    def as_json(self) -> dict[str, Any]:
        return {
            "run": self.run.id,
            **({"skipped": list(self.skipped)} if self.skipped else {}),
            **({"unfinished": list(self.unfinished)} if self.unfinished else {}),
            "path": str(self.path),
            "copied": self.copied,
            "complete": self.run.outputs.complete,
            "files": [file.as_json() for file in self.files],
        }
