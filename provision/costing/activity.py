"""Parse Azure's activity log: when each VM was created, switched on or off, and deleted."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from gpuinfra.models.cost import Source
from gpuinfra.provision.costing.timeline import Facts, Sample, StateChange, Turn

MACHINES = "microsoft.compute/virtualmachines"
# Azure keeps 90 days and refuses to search further back. The margin covers the request's own duration.
KEPT = timedelta(days=90) - timedelta(minutes=5)
PREEMPTED = "OperationPreempted"
"""Another operation, such as a deletion, replaced this one."""
_VERBS = {"start", "deallocate", "write", "delete"}
# A VM that failed with one of these codes is allocated and billed. Other failures happen before the allocation.
_AFTER_ALLOCATION = ("OSProvisioning", "VMExtension", "VMAgent")


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a VM."""

    at: datetime
    machine: str
    """The VM's ID in lower case."""
    verb: str
    status: str
    """Started, Accepted, Succeeded or Failed."""
    operation: str = ""
    """The ID that the events of one operation share."""
    made: bool = False
    """Whether the VM did not exist before."""
    failure: str = ""
    """Azure's error code, if the operation failed."""
    caller: str = ""
    """Who did it, as Azure names them: an e-mail address, or the ID of an identity."""
    facts: Facts | None = None
    """For a write: the VM's properties afterwards, if the log contains Azure's response."""
    response: Mapping[str, Any] = field(default_factory=dict)
    """For a write: the VM afterwards, in ARM's format, or nothing."""

    @property
    def is_allocated(self) -> bool:
        """Whether the operation failed only after the VM was allocated."""
        return self.failure.startswith(_AFTER_ALLOCATION)


def read_events(bodies: Iterable[Mapping[str, Any]]) -> list[Event]:
    """Return the relevant events, oldest first. Azure returns the newest first, and more than requested."""
    found = [event for body in bodies if (event := _event(body))]
    found.reverse()
    return sorted(found, key=lambda event: event.at)


def _event(body: Mapping[str, Any]) -> Event | None:
    name = _value(body, "operationName")
    words = name.casefold().removesuffix("/action").split("/")
    machine = str(body.get("resourceId") or body.get("resourceUri") or "")
    at = _moment(body.get("eventTimestamp"))
    if at is None or "/".join(words[:-1]) != MACHINES or words[-1] not in _VERBS or not _is_machine(machine):
        return None
    response = _response(body) if words[-1] == "write" else {}
    return Event(
        at=at,
        machine=machine.casefold(),
        verb=words[-1],
        status=_value(body, "status"),
        operation=str(body.get("operationId") or body.get("correlationId") or ""),
        made=_value(body, "subStatus") == "Created",
        failure=_failure(body),
        caller=str(body.get("caller") or ""),
        facts=_facts(response),
        response=response,
    )


def _value(body: Mapping[str, Any], name: str) -> str:
    found = body.get(name)
    return str((found.get("value") if isinstance(found, Mapping) else found) or "")


def _failure(body: Mapping[str, Any]) -> str:
    """Return the error code of a failed operation, which Azure stores as JSON in a string."""
    try:
        found = json.loads((body.get("properties") or {})["statusMessage"])
        return str(found["error"]["code"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""


def _response(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the response to a write, which the log stores as JSON in a string, or an empty dict."""
    try:
        found = json.loads((body.get("properties") or {})["responseBody"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
    return found if isinstance(found, dict) else {}


def _facts(response: Mapping[str, Any]) -> Facts | None:
    """Return size, region and priority of a VM."""
    try:
        properties = response["properties"]
        size, region = str(properties["hardwareProfile"]["vmSize"]), str(response["location"])
        return Facts(size, region, str(properties.get("priority") or "").casefold() == "spot")
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _moment(text: Any) -> datetime | None:
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _is_machine(resource_id: str) -> bool:
    # /subscriptions/S/resourceGroups/G/providers/Microsoft.Compute/virtualMachines/M
    return len(resource_id.split("/")) == 9


@dataclass
class _PowerState:
    """The state of one VM while its events are read."""

    on: bool | None = None
    was_on: dict[str, bool | None] = field(default_factory=dict)
    """Pending operations, and whether the VM was on before each."""
    never_ran: bool = False
    """Whether the VM was created and has not been on yet."""


def changes(events: Iterable[Event]) -> list[StateChange]:
    """Return one VM's power changes: it is billed from `start` and not billed from `deallocate`.

    https://learn.microsoft.com/azure/virtual-machines/states-billing: starting is billed; creating and deallocating are
    not.
    """
    power, found = _PowerState(), list[StateChange]()
    for event in events:
        for turn in _turns(power, event):
            if turn in {Turn.ON, Turn.OFF}:
                is_on = turn is Turn.ON
                if power.on is is_on:
                    continue
                power.on = is_on
            found.append(StateChange(event.at, turn, Source.LOG, who=event.caller))
    return found


def samples(events: Iterable[Event]) -> list[Sample]:
    """Return one VM's properties over time. A successful write may have changed them."""
    found, answered = list[Sample](), dict[str, Facts]()
    for event in (each for each in events if each.verb == "write"):
        if event.facts:
            answered[event.operation] = event.facts
        if event.made:
            found.append(Sample(event.at, event.facts, Source.LOG, is_new=True))
        elif event.status == "Succeeded":
            found.append(Sample(event.at, answered.get(event.operation), Source.LOG))
        elif event.status == "Failed":
            found.append(Sample(event.at, None, Source.LOG))
    return found


def on_since(events: Iterable[Event]) -> datetime | None:
    """Return since when one VM is on, or None if the events do not show it."""
    last = next((change for change in reversed(changes(events)) if change.turn in {Turn.ON, Turn.OFF}), None)
    return last.at if last and last.turn is Turn.ON else None


def has_start(events: Iterable[Event]) -> bool:
    """Return whether one VM was switched on in these events."""
    return any(change.turn is Turn.ON for change in changes(events))


def last_time_on(events: Iterable[Event]) -> tuple[datetime | None, StateChange] | None:
    """Return when one VM was last switched on, if known, and the change that ended it; None if no end is known."""
    began: datetime | None = None
    ended: StateChange | None = None
    for change in changes(events):
        if change.turn is Turn.ON:
            began, ended = change.at, None
        elif change.turn is Turn.OFF:
            ended = change
    return (began, ended) if ended else None


def _turns(power: _PowerState, event: Event) -> Iterator[Turn]:
    before = power.was_on.pop(event.operation, None) if event.status in {"Succeeded", "Failed"} else None
    match event.verb, event.status:
        case (("start" | "deallocate"), "Started"):
            power.was_on[event.operation] = power.on
            yield Turn.ON if event.verb == "start" else Turn.OFF
        case "start", "Succeeded":
            yield Turn.ON
        case "start", "Failed" if not before and not event.is_allocated:
            yield Turn.OFF
        case "deallocate", "Succeeded":
            yield Turn.OFF
        case "deallocate", "Failed" if before is not False and event.failure != PREEMPTED:
            yield Turn.ON  # it stayed on
        case "write", _:
            yield from _written(power, event)
        case "delete", "Succeeded":
            yield Turn.OFF
            yield Turn.GONE


def _written(power: _PowerState, event: Event) -> Iterator[Turn]:
    """Yield power changes for a write. A new VM is on once created; an update does not change the power state."""
    if event.made:
        power.never_ran = True
        yield Turn.BORN
    if event.status == "Succeeded" and power.never_ran:
        power.never_ran = False
        yield Turn.ON
    elif event.status == "Failed" and power.never_ran:
        power.never_ran = not event.is_allocated
        yield Turn.ON if event.is_allocated else Turn.OFF
