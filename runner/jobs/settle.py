"""Decide how runs without a client are or ended, from what their machine and Azure answer. All pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from shlex import quote
from typing import Any

from gpuinfra.models.run import DELETED_WITH_OUTPUTS, DISK_IS_KEPT, KNOWS_NOTHING, Run, RunState
from gpuinfra.runner.jobs.job import Ended, StopReason
from gpuinfra.runner.jobs.remote_runs import UNKNOWN_EXIT_CODE

CANCELLED = StopReason.CANCELLED.value
"""The reason of a run that the user has asked to end."""
NEVER_BEGAN = "it was interrupted before the job began"

STATES = {
    StopReason.TIMED_OUT: RunState.TIMED_OUT,
    StopReason.CANCELLED: RunState.CANCELLED,
    StopReason.EVICTED: RunState.EVICTED,
    StopReason.LEASE_OVER: RunState.CANCELLED,
    StopReason.IDLE: RunState.CANCELLED,
    StopReason.COST_CAP: RunState.CANCELLED,
    StopReason.LOST: RunState.LOST,
}
BY_MACHINE = tuple(how.value for how in StopReason if how.is_by_machine)


class Power(StrEnum):
    """Whether a machine can run a job."""

    ON = "on"
    OFF = "off"
    STOPPED = "stopped"
    """The guest is shut down, and the machine is still billed."""
    DELETED = "deleted"
    """The VM does not exist, but its disk does."""
    GONE = "gone"
    """VM and disk do not exist."""
    REPLACED = "replaced"
    """VM and disk do not exist, and another VM has the name."""


@dataclass(frozen=True, slots=True)
class MachinePower:
    """What Azure answers about a machine."""

    power: Power
    offs: tuple[datetime, ...] = ()
    """When it was deallocated or deleted, the oldest first."""
    read_at: datetime | None = None
    """When Azure's log was read; None where it could not be read."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a machine answers about a run."""

    known: bool
    ended: Ended | None = None
    """How its job ended; None while it runs."""


def settle(run: Run, answer: Answer | None, machine: MachinePower | None) -> dict[str, Any]:
    """Return the fields of a run that has no client and has ended; nothing if it runs, or if that is not known.

    A machine that answers knows best. Azure decides only where the machine does not answer.
    """
    if run.state.is_over:
        return {}
    if run.job is None or (answer and not answer.known and run.started is None):
        return never_began(run)
    return _without_machine(run, machine) if answer is None else _with_machine(run, answer, machine)


def never_began(run: Run) -> dict[str, Any]:
    """Return the fields of a run whose client is gone and whose job does not exist."""
    if run.reason == CANCELLED:
        return {"state": RunState.CANCELLED, "reason": CANCELLED, "job": None}
    return {"state": RunState.LOST, "reason": NEVER_BEGAN, "job": None}


def _with_machine(run: Run, answer: Answer, machine: MachinePower | None) -> dict[str, Any]:
    name, off = run.machine or run.target, _first_off(run, machine)
    if not answer.known:
        return _lost(run, f"{name} {KNOWS_NOTHING}: it was replaced, or its files were removed", off)
    if answer.ended is None:
        return {}
    ended = answer.ended
    if ended.how is StopReason.LOST:
        # Where its exit code is known, so is when it ended.
        at = off or ended.at if ended.exit_code == UNKNOWN_EXIT_CODE else ended.at
        return _lost(run, f"{name} was restarted" if off else ended.detail or StopReason.LOST.value, at)
    how = StopReason.CANCELLED if run.reason == CANCELLED else ended.how
    is_unknown = how is not StopReason.EXITED and ended.exit_code == UNKNOWN_EXIT_CODE
    return end_fields(run, replace(ended, how=how), None if is_unknown else ended.exit_code)


def _without_machine(run: Run, machine: MachinePower | None) -> dict[str, Any]:
    if machine is None or machine.power is Power.ON:
        return {}
    off = _first_off(run, machine)
    at = f" at {off.astimezone(UTC):%Y-%m-%d %H:%M}Z" if off else ""
    words = {
        Power.OFF: f"was deallocated{at}",
        Power.STOPPED: "was stopped, and is still billed",
        Power.DELETED: f"was deleted{at}; {DISK_IS_KEPT}",
        Power.GONE: "was deleted",
        Power.REPLACED: "was deleted, and another VM has its name",
    }
    # Azure's log lags by minutes: a log without the end means that it was a moment ago.
    found = _lost(run, f"{run.machine} {words[machine.power]}", off or machine.read_at)
    if machine.power not in {Power.GONE, Power.REPLACED}:
        return found
    return {**found, "machine": "", "warnings": (*run.warnings, f"{run.machine} {DELETED_WITH_OUTPUTS}")}


def _first_off(run: Run, machine: MachinePower | None) -> datetime | None:
    """When the machine first went off after the job began."""
    began = run.started or run.created
    return next((at for at in machine.offs if at >= began), None) if machine else None


def _lost(run: Run, reason: str, ended: datetime | None) -> dict[str, Any]:
    return end_fields(run, Ended(UNKNOWN_EXIT_CODE, StopReason.LOST, ended, reason), None)


def end_fields(run: Run, ended: Ended, exit_code: int | None) -> dict[str, Any]:
    """Return the fields that say how a run ended."""
    how, detail, at = ended.how, ended.detail, ended.at
    state = STATES.get(how, RunState.COMPLETED if exit_code == 0 else RunState.FAILED)
    reason = "" if how is StopReason.EXITED else detail or how.value
    if how.is_by_machine and detail:
        reason = f"{how.value}: {detail}"  # the state alone does not say it
    found: dict[str, Any] = {"state": state, "exit_code": exit_code, "ended": at, "reason": reason}
    # Both from the machine's clock if possible: this computer's may differ, and it learns of a start only later.
    started = ended.started if ended.started and at and ended.started <= at else run.started
    if started and at:
        found |= {"started": started, "ended": max(at, started)}
        found["timings"] = {**run.timings, "job": round((found["ended"] - started).total_seconds(), 3)}
    return found


def went_off(run: Run) -> bool:
    """Whether a run ended because its machine went off."""
    is_by_machine = run.state is RunState.CANCELLED and run.reason.startswith(BY_MACHINE)
    return bool(run.machine) and (is_by_machine or run.state in {RunState.LOST, RunState.EVICTED})


def fetch_help(run: Run, spec: str) -> str:
    """Return the commands that fetch what a run wrote."""
    return off_help(run, spec) if went_off(run) else f"`gpuinfra outputs {run.id}` fetches what it wrote"


def off_help(run: Run, spec: str) -> str:
    """Return the commands that fetch what a run wrote on a machine that is off."""
    return f"`gpuinfra up {quote(spec)}`, then `gpuinfra outputs {run.id}` fetches what it wrote"
