"""A lease: until when, why then, and what it costs until then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuinfra.views import document
from gpuinfra.views.cells import columns, cost, length, moment, per_hour
from gpuinfra.views.terminal import messages, results

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuinfra.models.lease import LeaseState

_WHY = {"lease": "its lease ends", "hours": "its hours end", "cost cap": "its cost cap is reached"}


def show(state: LeaseState, *, json: bool) -> None:
    """All of it, and what became of a wish for more time."""
    if json:
        document.show(state.as_json())
        return
    results().print("\n".join(render(state)))
    if state.capped:
        messages().print("note: the cost cap lets it be on no longer; `lifecycle.maxCost` in the spec says how much")


def render(state: LeaseState) -> list[str]:
    """A line a fact, the end first."""
    mark = " (simulated)" if state.simulated else ""
    return [f"{columns([[state.machine.name]])[0]}{mark}", *(f"  {line}" for line in columns([*_rows(state)]))]


def _rows(state: LeaseState) -> Iterator[tuple[str, str]]:
    machine = state.machine
    if machine.power_state == "deallocated":
        yield "off", f"a lease of {state.lease} begins when it is switched on"
    else:
        yield "off at", _end(state)
        yield machine.power_state, f"since {moment(machine.since)}"
        yield "lease", f"{state.lease} from power-on, renewed while a run is at work"
    yield "idle", f"off after {state.idle} with no job, no login and an idle GPU"
    if state.hours:
        yield "hours", state.hours
    if state.cap:
        at = f", at {moment(state.cap_at)}" if state.cap_at else ""
        yield "cost cap", f"{state.cap} from power-on{at}"
    if machine.power_state != "deallocated":
        price = f" at {per_hour(machine.price_per_hour)}/h" if machine.price_per_hour is not None else ""
        yield "cost", f"{cost(machine.cost_so_far(state.now))} so far, {cost(state.cost_until_end)} until then{price}"


def _end(state: LeaseState) -> str:
    until = state.machine.lease_until
    if until is None:
        return "once: it has no lease that can be read"
    if state.seconds_left <= 0:
        return f"once: it should be off since {moment(until)}"
    return f"{moment(until)}, in {length(state.seconds_left)}, when {_WHY[state.cause]}"
