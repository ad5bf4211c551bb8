"""A machine's lease: its end, the reason, and the cost until then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuinfra.models.stay import Reason
from gpuinfra.views import json_output
from gpuinfra.views.terminal import columns, cost, duration, harmless, messages, per_hour, results, timestamp

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuinfra.models.machine import LeaseState

_WHY = {"lease": "its lease ends", "hours": "its hours end", "cost cap": "its cost cap is reached"}


def show(state: LeaseState, *, json: bool) -> None:
    """Print the lease, and a note if the cost cap shortens it."""
    if json:
        json_output.show(state.as_json())
        return
    results().print("\n".join(render(state)))
    if state.capped:
        messages().print("note: the cost cap (`lifecycle.maxCost` in the spec) does not allow a later end")
    if state.old_stop:
        messages().print(
            f"warning: Azure's daily schedule may still stop the machine at {state.old_stop:%H:%M} UTC: it was moved "
            "less than 31 minutes before, and Azure may apply that only from the next day"
        )


def render(state: LeaseState) -> list[str]:
    """Return one line per fact, the end first."""
    mark = " (simulated)" if state.simulated else ""
    return [f"{columns([[state.machine.name]])[0]}{mark}", *(f"  {line}" for line in columns([*_rows(state)]))]


def _rows(state: LeaseState) -> Iterator[tuple[str, str]]:
    machine = state.machine
    if machine.power_state == "deallocated":
        yield "off", f"a lease of {state.lease} starts at power-on"
    else:
        yield "off at", _end(state)
        if machine.purpose:
            yield "on for", harmless(machine.purpose.words)
        yield machine.power_state, f"since {timestamp(machine.since)}"
        yield "lease", f"{state.lease} from power-on, renewed while a run is active"
    held = machine.purpose is not None and machine.purpose.reason is Reason.FAILED_JOB
    not_before = ", but not during the look at the failed job" if held else ""
    yield "idle", f"off after {state.idle} with no job, no login and an idle GPU{not_before}"
    if state.hours:
        yield "hours", state.hours
    if state.cap:
        at = f", at {timestamp(state.cap_at)}" if state.cap_at else ""
        yield "cost cap", f"{state.cap} from power-on{at}"
    if machine.power_state != "deallocated":
        price = f" at {per_hour(machine.price_per_hour)}/h" if machine.price_per_hour is not None else ""
        yield "cost", f"{cost(machine.cost_so_far(state.now))} so far, {cost(state.cost_until_end)} until then{price}"


def _end(state: LeaseState) -> str:
    until = state.machine.lease_until
    if until is None:
        return "as soon as possible: its lease cannot be read"
    if state.restarted:
        return (
            f"the next `gpuinfra reap`, or by its agent at {timestamp(state.agent_until)} at the latest: its lease is "
            f"over, and it was started or changed outside gpuinfra at {timestamp(state.restarted)}"
        )
    if state.seconds_left <= 0:
        return f"as soon as possible: its lease ended at {timestamp(until)}"
    return f"{timestamp(until)}, in {duration(state.seconds_left)}, when {_WHY[state.cause]}"
