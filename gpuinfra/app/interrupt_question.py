"""The question after Ctrl-C: what each answer leads to, before it happens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from gpuinfra.app.lease_renewal import AFTERWARDS
from gpuinfra.models.base import format_duration
from gpuinfra.provision.lease import BACKSTOP

if TYPE_CHECKING:
    from gpuinfra.models.spec import Lifecycle


@dataclass(frozen=True)
class MachineEnd:
    """What ends the machine of a job."""

    name: str
    after_run: str | None
    """What `run` does with it afterwards; None for `submit`."""
    within: timedelta | None
    """How long its lease lasts after a detach; None if that is not known here."""
    price_per_hour: float | None
    has_local_time: bool = True
    """Whether its clock is that of this computer; the sandbox has its own."""


def time_after_detach(lifecycle: Lifecycle, seconds: float | None) -> timedelta:
    """Return the lease that a detach sets, for a job with this time limit."""
    longest = AFTERWARDS + timedelta(seconds=seconds) if seconds else timedelta()
    return max(lifecycle.lease, longest)


def interrupt_question(machine: MachineEnd | None, now: datetime) -> str:
    """Return the question, with what each answer leads to."""
    return (
        "\nCtrl-C: the job keeps running. What next?\n"
        f"  d  detach: the job finishes{_after_detach(machine, now)}\n"
        f"  c  cancel: the job ends, and its outputs are fetched{_after_cancel(machine)}\n"
        "  g  go on following\n"
        "Ctrl-C again detaches, and so does no answer for two minutes. [d/c/g]"
    )


def question_about_all(jobs: Sequence[MachineEnd], others: Sequence[MachineEnd], now: datetime) -> str:
    """Return the question about several machines: those with a running job, and the others, which end now."""
    leave = [f"     {each.name}: the job finishes{_after_detach(each, now)}" for each in jobs]
    ends = [f"     {each.name}: no job runs{_after_cancel(each)}" for each in others]
    cancels = [f"     {each.name}: the job ends{_after_cancel(each)}" for each in jobs]
    return "\n".join(
        (
            f"\nCtrl-C: the jobs on {', '.join(each.name for each in jobs)} keep running. What next?",
            "  d  detach from all:",
            *leave,
            *ends,
            "  c  cancel all, and fetch their outputs:",
            *cancels,
            *ends,
            "  g  go on following",
            "Ctrl-C again detaches, and so does no answer for two minutes. [d/c/g]",
        )
    )


def _after_detach(machine: MachineEnd | None, now: datetime) -> str:
    if machine is None:
        return ""
    name, within = machine.name, machine.within
    if machine.after_run in {None, "keep"}:
        end = f"; {name} stays on"
        until = "until its lease ends: its agent switches it off within"
        return f"{end} {until} {_in(within, machine, now)}" if within else f"{end} as its lease says"
    end = f", then the agent of {name} switches the machine off"
    return f"{end}, within {_in(within, machine, now)}" if within else end


def _in(within: timedelta, machine: MachineEnd, now: datetime) -> str:
    """Return when the lease ends, and when the machine is off at the latest, with the most that this costs."""
    latest = within + BACKSTOP
    at = f" ({(now + latest).astimezone(UTC):%Y-%m-%d %H:%M} UTC)" if machine.has_local_time else ""
    words = f"{format_duration(within)}; if it cannot, Azure's schedule does within {format_duration(latest)}{at}"
    if machine.price_per_hour is None:
        return words
    most = machine.price_per_hour * latest.total_seconds() / 3600
    return f"{words}, for at most ${most:.2f} more"


def _after_cancel(machine: MachineEnd | None) -> str:
    if machine is None or machine.after_run is None:
        return ""
    ends = {"keep": "stays on", "delete": "is deleted"}.get(machine.after_run, "is switched off")
    return f"; {machine.name} {ends}"
