"""Decide how runs without a client ended, from the answers of their machine and Azure. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from shlex import quote
from typing import Any

from gpuinfra.models.run import DELETED_WITH_OUTPUTS, DISK_IS_KEPT, END_IS_LATEST, KNOWS_NOTHING, Run, RunState
from gpuinfra.runner.job import JobEnd, StopReason
from gpuinfra.runner.remote_runs import UNKNOWN_EXIT_CODE

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
BY_MACHINE = tuple(each.value for each in StopReason if each.is_by_machine)


class Power(StrEnum):
    """Whether a machine can run a job."""

    ON = "on"
    OFF = "off"
    STOPPED = "stopped"
    """The guest is shut down, but the machine is still billed."""
    DELETED = "deleted"
    """The VM does not exist, but its disk does."""
    GONE = "gone"
    """VM and disk do not exist."""
    REPLACED = "replaced"
    """VM and disk do not exist, and another VM has the name."""


@dataclass(frozen=True, slots=True)
class MachinePower:
    """Azure's answer about a machine."""

    power: Power
    offs: tuple[datetime, ...] = ()
    """The times at which it was deallocated or deleted, oldest first."""
    read_at: datetime | None = None
    """When Azure's log was read, or None if it could not be read."""


@dataclass(frozen=True, slots=True)
class RunAnswer:
    """The machine's answer about a run."""

    known: bool
    ended: JobEnd | None = None
    """How the job ended, or None while it runs."""


def settle(run: Run, answer: RunAnswer | None, machine: MachinePower | None) -> dict[str, Any]:
    """Return the fields that record the end of a run without a client; empty if it runs, or if that is unknown.

    The machine's answer counts. Azure's answer decides only if the machine does not answer.
    """
    if run.state.is_over:
        return {}
    if run.job is None or (answer and not answer.known and run.started is None):
        return never_began(run)
    return _without_machine(run, machine) if answer is None else _with_machine(run, answer, machine)


def never_began(run: Run) -> dict[str, Any]:
    """Return the fields that record a run whose client is gone and whose job does not exist."""
    if run.reason == StopReason.CANCELLED:
        return {"state": RunState.CANCELLED, "reason": StopReason.CANCELLED.value, "job": None}
    return {"state": RunState.LOST, "reason": NEVER_BEGAN, "job": None}


def _with_machine(run: Run, answer: RunAnswer, machine: MachinePower | None) -> dict[str, Any]:
    name, off = run.machine or run.target, _first_off(run, machine)
    if not answer.known:
        return _lost(run, f"{name} {KNOWS_NOTHING}: it was replaced, or its files were removed", off)
    if answer.ended is None:
        return {}
    ended = answer.ended
    if ended.stop_reason is StopReason.LOST:
        reason = f"{name} was restarted" if off else ended.detail or StopReason.LOST.value
        # If the exit code is known, so is the time of the end.
        is_time_known = ended.exit_code != UNKNOWN_EXIT_CODE
        return _lost(run, reason, ended.at if is_time_known else off or ended.at)
    if run.reason == StopReason.CANCELLED:
        ended = replace(ended, stop_reason=StopReason.CANCELLED)
    is_unknown = ended.stop_reason is not StopReason.EXITED and ended.exit_code == UNKNOWN_EXIT_CODE
    return end_fields(run, ended, None if is_unknown else ended.exit_code)


def _without_machine(run: Run, machine: MachinePower | None) -> dict[str, Any]:
    if machine is None or machine.power is Power.ON:
        return {}
    off = _first_off(run, machine)
    at = f" at {off.astimezone(UTC):%Y-%m-%d %H:%M}Z" if off else ""
    events = {
        Power.OFF: f"was deallocated{at}",
        Power.STOPPED: "was stopped, and is still billed",
        Power.DELETED: f"was deleted{at}; {DISK_IS_KEPT}",
        Power.GONE: "was deleted",
        Power.REPLACED: "was deleted, and another VM has its name",
    }
    # Azure's log is minutes late. If it does not contain the end yet, the machine went off just now.
    fields = _lost(run, f"{run.machine} {events[machine.power]}", off or machine.read_at)
    warnings = run.warnings if off or machine.read_at is None else (*run.warnings, END_IS_LATEST)
    if machine.power not in {Power.GONE, Power.REPLACED}:
        return {**fields, "warnings": warnings}
    return {**fields, "machine": "", "warnings": (*warnings, f"{run.machine} {DELETED_WITH_OUTPUTS}")}


def _first_off(run: Run, machine: MachinePower | None) -> datetime | None:
    """Return when the machine first went off after the job started, or None."""
    started = run.started or run.created
    return next((at for at in machine.offs if at >= started), None) if machine else None


def _lost(run: Run, reason: str, ended: datetime | None) -> dict[str, Any]:
    return end_fields(run, JobEnd(UNKNOWN_EXIT_CODE, StopReason.LOST, ended, reason), None)


def end_fields(run: Run, ended: JobEnd, exit_code: int | None) -> dict[str, Any]:
    """Return the fields that record how a run ended."""
    stop_reason, detail, at = ended.stop_reason, ended.detail, ended.at
    state = STATES.get(stop_reason, RunState.COMPLETED if exit_code == 0 else RunState.FAILED)
    if stop_reason is StopReason.EXITED:
        reason = ""
    elif stop_reason.is_by_machine and detail:
        reason = f"{stop_reason.value}: {detail}"  # the state alone does not show it
    else:
        reason = detail or stop_reason.value
    fields: dict[str, Any] = {"state": state, "exit_code": exit_code, "ended": at, "reason": reason}
    # Prefer both times from the machine's clock: the local clock may differ, and this computer learns the start late.
    started = ended.started if ended.started and at and ended.started <= at else run.started
    if started and at:
        fields |= {"started": started, "ended": max(at, started)}
        fields["timings"] = {**run.timings, "job": round((fields["ended"] - started).total_seconds(), 3)}
    return fields


def went_off(run: Run) -> bool:
    """Return whether a run ended because its machine went off."""
    is_by_machine = run.state is RunState.CANCELLED and run.reason.startswith(BY_MACHINE)
    return bool(run.machine) and (is_by_machine or run.state in {RunState.LOST, RunState.EVICTED})


def fetch_help(run: Run, spec: str) -> str:
    """Return the commands that fetch the outputs of a run."""
    return off_help(run, spec) if went_off(run) else f"`gpuinfra outputs {run.id}` fetches what it wrote"


def is_lost_for_good(run: Run) -> bool:
    """Return whether outputs that were not fetched no longer exist, because their disk was deleted."""
    return run.state.is_over and bool(run.job or run.started) and not (run.outputs.complete or run.may_have_outputs)


def lost_help(run: Run) -> str:
    """Return what remains of a run whose outputs no longer exist."""
    return f"what was not fetched is lost; `gpuinfra outputs {run.id} --list` lists what was fetched"


def off_help(run: Run, spec: str) -> str:
    """Return the commands that fetch the outputs of a run from a machine that is off."""
    if is_lost_for_good(run):
        return lost_help(run)
    return f"`gpuinfra up {quote(spec)}`, then `gpuinfra outputs {run.id}` fetches what it wrote"
