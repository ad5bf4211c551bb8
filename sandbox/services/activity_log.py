"""Microsoft.Insights' activity log: what happened to resources, who caused it, and the outcome.

https://learn.microsoft.com/azure/azure-monitor/platform/activity-log-schema and
https://learn.microsoft.com/rest/api/monitor/activity-logs/list. It is built from the record of long-running
operations. In Azure an event appears minutes after it happened; here it appears at once.
"""

import json
import re
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from gpuinfra.sandbox.kernel.call import CLOUD_ITSELF, Answer, Call
from gpuinfra.sandbox.kernel.clock import stamp_z
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.errors import ArmError
from gpuinfra.sandbox.kernel.routes import SUBSCRIPTION, Service, parse_id
from gpuinfra.sandbox.services.common import next_link, require_subscription

service = Service()

DAYS_KEPT = 90
PAGE = 200
_PATH = f"{SUBSCRIPTION}/providers/Microsoft.Insights/eventtypes/management/values"
# `az` writes times without quotes.
_COMPARISON = re.compile(
    r"\s*(?P<field>\w+)\s+(?P<how>eq|ge|le)\s+(?:'(?P<quoted>[^']*)'|(?P<bare>[^\s']+))\s*(?:and\s|$)"
)
# A filter may name one of these, in addition to the time.
_FIELDS = {"resourceProvider", "resourceGroupName", "resourceUri", "correlationId"}
_CODES = {"write": (201, 200), "delete": (202, 202)}
_NAMES = {200: "OK", 201: "Created", 202: "Accepted"}

Event = dict[str, Any]


@service.route("GET", _PATH, action="Microsoft.Insights/eventtypes/values/read")
def _list_events(call: Call) -> Answer:
    require_subscription(call)
    start, end, field, value = _filter(call)
    found = [event for event in _events(call.cloud) if start <= event["at"] <= end and _fits(event, field, value)]
    found.reverse()
    skip = call.query.get("$skiptoken", "0")
    if not skip.isdigit():
        raise _bad("The skip token is invalid.")
    first, following = int(skip), int(skip) + PAGE
    body: dict[str, Any] = {"value": [_shown(call, event) for event in found[first:following]]}
    if following < len(found):
        body["nextLink"] = next_link(call, following)
    return Answer(200, body)


def _filter(call: Call) -> tuple[float, float, str, str]:
    """Return start, end, and the one other field and its value, if any."""
    text, position = call.query.get("$filter", ""), 0
    start, end, field, value = None, call.cloud.now, "", ""
    while position < len(text):
        found = _COMPARISON.match(text, position)
        if found is None:
            raise _bad(f"The filter '{text}' is invalid near '{text[position:]}'.")
        given = found["quoted"] if found["bare"] is None else found["bare"]
        match found["field"], found["how"]:
            case "eventTimestamp", "ge":
                start = _seconds(given)
            case "eventTimestamp", "le":
                end = _seconds(given)
            case "eventChannels", "eq":
                pass  # `az` asks for Admin and Operation, which is all that the log has
            case name, "eq" if name in _FIELDS and not field:
                field, value = name, given
            case name, _:
                raise _bad(f"The filter on '{name}' is not supported together with the others, or not at all.")
        position = found.end()
    if start is None:
        raise _bad("The $filter must have a start time: eventTimestamp ge '<time>'.")
    if start < call.cloud.now - DAYS_KEPT * 86_400:
        raise _bad(f"The start time cannot be more than {DAYS_KEPT} days in the past.")
    return start, end, field, value


def _seconds(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise _bad(f"'{text}' is not a time.") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _bad(message: str) -> ArmError:
    return ArmError(400, "BadRequest", message)


def _fits(event: Event, field: str, value: str) -> bool:
    return not field or str(event[field]).lower() == value.lower()


# What happened


def note_eviction(cloud: Cloud, resource_id: str, *, deletes: bool) -> None:
    """Record that Azure evicted a VM, which no operation shows.

    Azure does not document the event's name; here it is named after its effect.
    """
    body = {
        "provider": "Microsoft.Compute",
        "resource": resource_id,
        "action": "virtualMachines/delete" if deletes else "virtualMachines/deallocate",
        "caller": "Azure Spot",
        "at": cloud.now,
    }
    cloud.store.add_eviction(body)


def _events(cloud: Cloud) -> list[Event]:
    """Return all events, oldest first."""
    operations = cloud.store.operations()
    found = [event for _, operation, body in operations for event in _of_operation(operation, body)]
    found += [_of_eviction(number, body) for number, body in cloud.store.evictions()]
    # Sorting is stable: simultaneous events keep their order.
    return sorted(found, key=lambda event: float(event["at"]))


def _of_operation(operation: str, body: Mapping[str, Any]) -> Iterator[Event]:
    """Yield the events at begin, acceptance and end."""
    verb = body["action"].rpartition("/")[2]
    status = _CODES.get(verb, (202, 202))[0 if body.get("new") else 1]
    common = {"operation": operation, "body": body}
    yield {**_common(body), **common, "at": body["start"], "status": "Started", "name": "BeginRequest"}
    yield {**_common(body), **common, "at": body["start"], "status": "Accepted", "name": "EndRequest", "code": status}
    if "end" in body:
        yield {**_common(body), **common, "at": body["end"], "status": body["status"], "name": "EndRequest"}


def _of_eviction(number: int, body: Mapping[str, Any]) -> Event:
    made = uuid.uuid5(uuid.NAMESPACE_URL, f"eviction/{number}/{body['resource']}")
    return {**_common(body), "operation": str(made), "body": body, "at": body["at"], "status": "Succeeded", "name": ""}


def _common(body: Mapping[str, Any]) -> Event:
    """Return the fields that filters compare."""
    return {
        "resourceProvider": body["provider"],
        "resourceGroupName": parse_id(body["resource"]).group,
        "resourceUri": body["resource"],
        "correlationId": body.get("correlationId", ""),
    }


# Show


def _shown(call: Call, event: Event) -> dict[str, Any]:
    body = event["body"]
    made = uuid.uuid5(uuid.NAMESPACE_URL, f"{event['operation']}/{event['status']}")
    moment = stamp_z(event["at"])
    code = event.get("code")
    shown = {
        "caller": _caller(body),
        "correlationId": event["correlationId"] or event["operation"],
        "eventDataId": str(made),
        "eventName": _both(event["name"]),
        "category": _both("Administrative"),
        "eventTimestamp": moment,
        "id": f"{body['resource']}/events/{made}/ticks/{round(event['at'] * 10_000_000)}",
        "level": "Error" if event["status"] == "Failed" else "Informational",
        "operationId": event["operation"],
        "operationName": _both(_operation_name(body)),
        "resourceGroupName": event["resourceGroupName"],
        "resourceProviderName": _both(body["provider"]),
        "resourceType": _both(parse_id(body["resource"]).type),
        "resourceId": body["resource"],
        "status": _both(event["status"]),
        "subStatus": _both(_NAMES[code], f"{_NAMES[code]} (HTTP Status Code: {code})") if code else _both(""),
        "submissionTimestamp": moment,
        "subscriptionId": call.cloud.subscription,
        "properties": _properties(event),
    }
    wanted = {part.strip().lower() for part in call.query.get("$select", "").split(",")} - {""}
    return {name: value for name, value in shown.items() if not wanted or name.lower() in wanted}


def _both(text: str, localized: str = "") -> dict[str, str]:
    return {"value": text, "localizedValue": localized or text}


def _properties(event: Event) -> dict[str, str]:
    """Return why it failed, or the body with which Azure answered an accepted write, as JSON in a string."""
    body = event["body"]
    if event["status"] == "Failed" and "error" in body:
        return {"statusMessage": json.dumps({"error": body["error"]})}
    if event["status"] == "Accepted" and "response" in body:
        return {"responseBody": json.dumps(body["response"])}
    return {}


def _caller(body: Mapping[str, Any]) -> str:
    caller = str(body.get("caller") or "")
    if caller != CLOUD_ITSELF.id:
        return caller
    # The sandbox itself: a shutdown schedule, or the contents of a resource group that is deleted.
    return "Microsoft.DevTestLab" if body["action"].endswith("/deallocate") else "Microsoft.Resources"


def _operation_name(body: Mapping[str, Any]) -> str:
    """Return a name such as `Microsoft.Compute/virtualMachines/start/action`."""
    provider, action = body["provider"], str(body["action"])
    if action.startswith("resourceGroups/"):
        action = f"subscriptions/{action}"
    return f"{provider}/{action}" if action.endswith(("/write", "/delete")) else f"{provider}/{action}/action"
