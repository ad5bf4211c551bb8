"""Azure's activity log, read as what it says of machines: when each came on, went off, came to be and was deleted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from gpuinfra.models.cost import Source
from gpuinfra.provision.costing.facts import Facts, Sample
from gpuinfra.provision.costing.timeline import Change, Turn

MACHINES = "microsoft.compute/virtualmachines"
PREEMPTED = "OperationPreempted"
"""Another operation has taken over, such as a deletion."""
_VERBS = {"start", "deallocate", "write", "delete"}
# A machine whose system did not come up in time is there, and is billed; other failures are before that.
_AFTER_ALLOCATION = ("OSProvisioning", "VMExtension", "VMAgent")


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a machine."""

    at: datetime
    machine: str
    """Its id, without case."""
    verb: str
    status: str
    """Started, Accepted, Succeeded, Failed."""
    operation: str = ""
    """By which the events of one operation belong together."""
    made: bool = False
    """It was not there before."""
    failure: str = ""
    """Azure's code for why it failed."""
    caller: str = ""
    """Who did it, as Azure names them: an address of mail, or the id of an identity."""
    facts: Facts | None = None
    """Of a write: what the machine is after it, where the log has Azure's answer."""

    @property
    def is_allocated(self) -> bool:
        """It failed, but only after the machine had come on."""
        return self.failure.startswith(_AFTER_ALLOCATION)


def read_events(bodies: Iterable[Mapping[str, Any]]) -> list[Event]:
    """What matters here, the oldest first. Azure gives the newest first, and more than was asked for."""
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
    return Event(
        at=at,
        machine=machine.casefold(),
        verb=words[-1],
        status=_value(body, "status"),
        operation=str(body.get("operationId") or body.get("correlationId") or ""),
        made=_value(body, "subStatus") == "Created",
        failure=_failure(body),
        caller=str(body.get("caller") or ""),
        facts=_facts(body) if words[-1] == "write" else None,
    )


def _value(body: Mapping[str, Any], name: str) -> str:
    found = body.get(name)
    return str((found.get("value") if isinstance(found, Mapping) else found) or "")


def _failure(body: Mapping[str, Any]) -> str:
    """The code in the message of an end that was no success: JSON in a text, by Azure's custom."""
    try:
        found = json.loads((body.get("properties") or {})["statusMessage"])
        return str(found["error"]["code"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""


def _facts(body: Mapping[str, Any]) -> Facts | None:
    """Size, region and priority from the answer to a write, which the log keeps as JSON in a text."""
    try:
        found = json.loads((body.get("properties") or {})["responseBody"])
        properties = found["properties"]
        size, region = str(properties["hardwareProfile"]["vmSize"]), str(found["location"])
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
class _Reading:
    """A machine while its events are read."""

    on: bool | None = None
    was_on: dict[str, bool | None] = field(default_factory=dict)
    """Operations that have begun, and whether it was on before each."""
    never_ran: bool = False
    """It was made, and has not come on yet."""


def changes(events: Iterable[Event]) -> list[Change]:
    """What one machine's events say of its power: billed from `start`, not billed from `deallocate`.

    https://learn.microsoft.com/azure/virtual-machines/states-billing: starting is billed, creating and deallocating are
    not.
    """
    reading, found = _Reading(), list[Change]()
    for event in events:
        for turn in _turns(reading, event):
            if turn in {Turn.ON, Turn.OFF}:
                is_on = turn is Turn.ON
                if reading.on is is_on:
                    continue
                reading.on = is_on
            found.append(Change(event.at, turn, Source.LOG, who=event.caller))
    return found


def samples(events: Iterable[Event]) -> list[Sample]:
    """What one machine was, from when on, by its events: a write that succeeded may have made it another."""
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


def last_time_on(events: Iterable[Event]) -> tuple[datetime | None, Change] | None:
    """When one machine last came on, if that is told, and how it ended; None where it has not, as far as is told."""
    began: datetime | None = None
    ended: Change | None = None
    for change in changes(events):
        if change.turn is Turn.ON:
            began, ended = change.at, None
        elif change.turn is Turn.OFF:
            ended = change
    return (began, ended) if ended else None


def _turns(reading: _Reading, event: Event) -> Iterator[Turn]:
    before = reading.was_on.pop(event.operation, None) if event.status in {"Succeeded", "Failed"} else None
    match event.verb, event.status:
        case (("start" | "deallocate"), "Started"):
            reading.was_on[event.operation] = reading.on
            yield Turn.ON if event.verb == "start" else Turn.OFF
        case "start", "Succeeded":
            yield Turn.ON
        case "start", "Failed" if not before and not event.is_allocated:
            yield Turn.OFF
        case "deallocate", "Succeeded":
            yield Turn.OFF
        case "deallocate", "Failed" if before is not False and event.failure != PREEMPTED:
            yield Turn.ON  # it went on as before
        case "write", _:
            yield from _written(reading, event)
        case "delete", "Succeeded":
            yield Turn.OFF
            yield Turn.GONE


def _written(reading: _Reading, event: Event) -> Iterator[Turn]:
    """A machine that is made comes on with it. One that is only changed stays as it is."""
    if event.made:
        reading.never_ran = True
        yield Turn.BORN
    if event.status == "Succeeded" and reading.never_ran:
        reading.never_ran = False
        yield Turn.ON
    elif event.status == "Failed" and reading.never_ran:
        reading.never_ran = not event.is_allocated
        yield Turn.ON if event.is_allocated else Turn.OFF
