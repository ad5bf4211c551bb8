"""A run: one job on one target, from the command to its results."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from gpuinfra.models.resource import same_machine

DELETED_WITH_OUTPUTS = "was deleted with outputs that were not fetched"
"""The end of the warning of a run whose machine took its outputs with it."""
KNOWS_NOTHING = "knows nothing of it"
"""In the reason of a run that its target does not know any more."""


class RunState(StrEnum):
    """Where a run is, or how it ended."""

    PREPARING = "preparing"
    """Nothing of the job's own runs yet: it is sent, its environment is made."""
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    """The job ended with another exit code than 0, or could not begin."""
    CANCELLED = "cancelled"
    TIMED_OUT = "timed-out"
    EVICTED = "evicted"
    """Azure took the spot machine back; what the job wrote is on its disk."""
    LOST = "lost"
    """Nobody knows any more: the machine, or the engine, forgot it."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen."""
        return self not in {RunState.PREPARING, RunState.RUNNING}


@dataclass(frozen=True, slots=True)
class JobRef:
    """By what a job is found again on its target."""

    kind: str
    """`container` or `process`."""
    id: str
    """The container's id; for a process the run's own."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """What a job wrote into `outputs/`, and what of it is here."""

    files: int = 0
    size: int = 0
    complete: bool = False
    """Whether all of it was fetched after the end of the job, and every checksum held."""


@dataclass(frozen=True, slots=True)
class GpuUsage:
    """How the GPUs were used while the job ran: samples of all its GPUs together."""

    samples: int
    seconds: float
    """Between the first and the last sample."""
    peak_utilization: int
    """Percent, of the busiest GPU."""
    mean_utilization: float
    """Percent, over all GPUs and samples."""
    peak_memory_mib: int | None
    """Of the GPU that had the most in use; None where no GPU tells it."""

    @property
    def was_used(self) -> bool:
        """Whether any sample saw any work."""
        return self.peak_utilization > 0


@dataclass(frozen=True, slots=True)
class Run:
    """All that is remembered of a run. It has no secret in it: of secrets there are names alone."""

    id: str
    target: str
    """The compute target's name."""
    type: str
    """The target's type: local, localdocker, remote, remotedocker."""
    configuration: str
    """The run configuration's name: what `-c` was given."""
    command: tuple[str, ...]
    """What the job runs, word by word."""
    state: RunState
    created: datetime
    machine: str = ""
    """The machine's name, where it is one of ours."""
    resource_id: str = ""
    """The id of its virtual machine; empty where the target did not have it."""
    script: str = ""
    started: datetime | None = None
    """When the job itself began."""
    ended: datetime | None = None
    exit_code: int | None = None
    reason: str = ""
    """Why it ended so, where its exit code does not say: `out of memory`, `no GPU`, …"""
    job: JobRef | None = None
    git_commit: str | None = None
    git_dirty: bool | None = None
    spec_digest: str | None = None
    image: str | None = None
    image_digest: str | None = None
    gpu: dict[str, Any] | None = None
    """As `GpuFacts.as_json` has it."""
    usage: GpuUsage | None = None
    timings: dict[str, float] = field(default_factory=dict)
    """Seconds by phase, in the order in which they began."""
    outputs: Outputs = Outputs()
    environment: tuple[str, ...] = ()
    """Names of the variables that the job was given; no values."""
    cost_usd: float | None = None
    simulated: bool = False
    after_run: str | None = None
    """What is done with the machine afterwards, where `run` started it."""
    warnings: tuple[str, ...] = ()

    @property
    def is_unfetched(self) -> bool:
        """Whether its job has ended and what it wrote is still on its target."""
        return self.state.is_over and self.may_have_outputs

    @property
    def may_have_outputs(self) -> bool:
        """Whether its target may have outputs that are not here."""
        is_deleted = not self.machine and any(each.endswith(DELETED_WITH_OUTPUTS) for each in self.warnings)
        is_unknown = self.state is RunState.LOST and KNOWS_NOTHING in self.reason
        return bool(self.job or self.started) and not (self.outputs.complete or is_deleted or is_unknown)

    def is_of(self, machine: str, resource_id: str = "") -> bool:
        """Whether its job was sent to this machine: by id where both are known, else by name."""
        if self.machine.casefold() != machine.casefold():
            return False
        return not (self.resource_id and resource_id) or same_machine(self.resource_id, resource_id)

    def as_json(self) -> dict[str, Any]:
        """For programs, and for the history. `run_from_json` reads it again."""
        found = {_camel(each.name): getattr(self, each.name) for each in fields(self)}
        return {
            **found,
            "command": list(self.command),
            "state": self.state.value,
            "created": _stamp(self.created),
            "started": _stamp(self.started),
            "ended": _stamp(self.ended),
            "job": asdict(self.job) if self.job else None,
            "usage": _camel_keys(asdict(self.usage)) | {"used": self.usage.was_used} if self.usage else None,
            "outputs": asdict(self.outputs),
            "environment": list(self.environment),
            "warnings": list(self.warnings),
        }


def run_from_json(found: dict[str, Any]) -> Run:
    """A run as it was written by `as_json`. Keys that a newer gpuinfra wrote are passed over."""
    known = {each.name: found[_camel(each.name)] for each in fields(Run) if _camel(each.name) in found}
    usage = {name: value for name, value in (known.get("usage") or {}).items() if name != "used"}
    return Run(
        **{
            **known,
            "command": tuple(known["command"]),
            "state": RunState(known["state"]),
            "created": _moment(known["created"]),
            "started": _moment(known.get("started")),
            "ended": _moment(known.get("ended")),
            "job": JobRef(**known["job"]) if known.get("job") else None,
            "usage": GpuUsage(**{each.name: usage[_camel(each.name)] for each in fields(GpuUsage)}) if usage else None,
            "outputs": Outputs(**known.get("outputs", {})),
            "environment": tuple(known.get("environment", ())),
            "warnings": tuple(known.get("warnings", ())),
        }
    )


def _stamp(moment: datetime | None) -> str | None:
    """To the millisecond: jobs can be short."""
    if moment is None:
        return None
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _camel_keys(values: dict[str, Any]) -> dict[str, Any]:
    return {_camel(name): value for name, value in values.items()}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def unheard_hint(run: Run) -> str:
    """Return what to do about a run whose client is gone."""
    return f"{run.id} was {run.state.value} when it was last heard of; `gpuinfra logs {run.id} -f` asks again"
