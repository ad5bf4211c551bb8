"""Azure's activity log, read as changes of a machine's power state."""

import json
import re
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from gpuinfra.provision.azure import fleet as activity
from gpuinfra.provision.costing.activity import changes, last_time_on, read_events

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
ID = "/subscriptions/s/resourceGroups/gpuinfra-m/providers/Microsoft.Compute/virtualMachines/m"


def body(seconds: float, verb: str, status: str, *, operation: str = "", **fields: Any) -> dict[str, Any]:
    """An event in Azure's format, with the relevant fields only."""
    name = verb if verb in {"write", "delete"} else f"{verb}/action"
    at = NOON + timedelta(seconds=seconds)
    return {
        "eventTimestamp": f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond:06d}0Z",
        "operationName": {"value": f"Microsoft.Compute/virtualMachines/{name}"},
        "operationId": operation or verb,
        "correlationId": "one for all of a command",
        "resourceId": ID,
        "status": {"value": status},
        "subStatus": {"value": ""},
        **fields,
    }


def failed(seconds: float, verb: str, code: str) -> dict[str, Any]:
    message = json.dumps({"error": {"code": code, "message": "it went wrong"}})
    return body(seconds, verb, "Failed", properties={"statusMessage": message})


def made(seconds: float, end: float, **last: Any) -> list[dict[str, Any]]:
    return [
        body(seconds, "write", "Started"),
        body(seconds, "write", "Accepted", subStatus={"value": "Created"}),
        last or body(end, "write", "Succeeded"),
    ]


def power_changes(*bodies: dict[str, Any]) -> list[str]:
    """Return each change, and its seconds after noon."""
    # Azure returns the newest first.
    found = changes(read_events(reversed(bodies)))
    return [f"{change.turn.value} {(change.at - NOON).total_seconds():g}" for change in found]


def test_billing_begins_at_the_end_of_the_creation() -> None:
    assert power_changes(*made(0, 80)) == ["born 0", "on 80"]


def test_start_is_billed_from_its_beginning_and_deallocation_until_its_beginning() -> None:
    assert power_changes(
        body(0, "start", "Started"),
        body(0, "start", "Accepted"),
        body(10, "start", "Succeeded"),
        body(100, "deallocate", "Started"),
        body(100, "deallocate", "Accepted"),
        body(120, "deallocate", "Succeeded"),
    ) == ["on 0", "off 100"]


def test_update_does_not_change_the_power_state() -> None:
    change = [body(200, "write", "Started"), body(200, "write", "Accepted"), body(205, "write", "Succeeded")]
    off = [body(100, "deallocate", "Started"), body(110, "deallocate", "Succeeded")]
    assert power_changes(*made(0, 80), *off, *change) == ["born 0", "on 80", "off 100"]


def test_deletion_is_billed_until_its_end() -> None:
    deletion = [body(100, "delete", "Started"), body(100, "delete", "Accepted"), body(122, "delete", "Succeeded")]
    assert power_changes(*made(0, 80), *deletion) == ["born 0", "on 80", "off 122", "gone 122"]


def test_failed_deallocation_keeps_the_machine_on() -> None:
    off = [body(100, "deallocate", "Started"), failed(130, "deallocate", "InternalExecutionError")]
    assert power_changes(*made(0, 80), *off) == ["born 0", "on 80", "off 100", "on 130"]


def test_deallocation_preempted_by_a_deletion_stays_off() -> None:
    off = [body(100, "deallocate", "Started"), failed(110, "deallocate", "OperationPreempted")]
    deletion = [body(110, "delete", "Started"), body(130, "delete", "Succeeded")]
    assert power_changes(*made(0, 80), *off, *deletion) == ["born 0", "on 80", "off 100", "gone 130"]


@pytest.mark.parametrize(
    ("code", "expected"), [("AllocationFailed", ["on 0", "off 20"]), ("OSProvisioningTimedOut", ["on 0"])]
)
def test_failed_start_is_billed_only_if_the_machine_was_allocated(code: str, expected: list[str]) -> None:
    assert power_changes(body(0, "start", "Started"), failed(20, "start", code)) == expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [("AllocationFailed", ["born 0", "off 30"]), ("OSProvisioningTimedOut", ["born 0", "on 30"])],
)
def test_failed_creation_is_billed_only_if_the_machine_was_allocated(code: str, expected: list[str]) -> None:
    assert power_changes(*made(0, 0, **failed(30, "write", code))) == expected


def test_machine_is_on_after_a_second_creation() -> None:
    again = [body(60, "write", "Started", operation="2"), body(90, "write", "Succeeded", operation="2")]
    assert power_changes(*made(0, 0, **failed(30, "write", "AllocationFailed")), *again) == [
        "born 0",
        "off 30",
        "on 90",
    ]


def test_start_of_a_running_machine_changes_nothing() -> None:
    again = [body(100, "start", "Started"), failed(110, "start", "AllocationFailed")]
    assert power_changes(*made(0, 80), *again) == ["born 0", "on 80"]


def test_operation_logged_only_at_its_end_counts_from_there() -> None:
    assert power_changes(*made(0, 80), body(100, "deallocate", "Succeeded")) == ["born 0", "on 80", "off 100"]


@pytest.mark.parametrize(
    "change",
    [
        {"operationName": {"value": "Microsoft.Compute/disks/write"}},
        {"operationName": {"value": "Microsoft.Compute/virtualMachines/powerOff/action"}},
        {"operationName": None},
        {"resourceId": f"{ID}/extensions/x"},
        {"resourceId": None},
        {"eventTimestamp": "yesterday"},
        {"eventTimestamp": None},
    ],
)
def test_events_unrelated_to_power_are_ignored(change: dict[str, Any]) -> None:
    assert read_events([{**body(0, "start", "Started"), **change}]) == []


def test_events_without_localized_values_are_read_in_any_case() -> None:
    plain = {"operationName": "MICROSOFT.COMPUTE/VIRTUALMACHINES/START/ACTION", "status": "Started", "subStatus": None}
    (event,) = read_events([{**body(0, "start", ""), **plain}])
    assert (event.verb, event.status, event.machine) == ("start", "Started", ID.casefold())


def test_last_end_names_its_caller() -> None:
    bodies = [
        *made(0, 80),
        body(100, "deallocate", "Started", caller="me"),
        body(200, "start", "Started", caller="me"),
        body(300, "deallocate", "Started", caller="its agent"),
        # Azure's schedule tries it every day, whether the machine is on or not.
        body(400, "deallocate", "Started", caller="schedule", operation="2"),
    ]
    found = last_time_on(read_events(reversed(bodies)))
    assert found is not None
    assert (found[0], found[1].at, found[1].who) == (
        NOON + timedelta(seconds=200),
        NOON + timedelta(seconds=300),
        "its agent",
    )


def test_running_or_unknown_machine_has_no_end() -> None:
    assert last_time_on(read_events(reversed(made(0, 80)))) is None
    assert last_time_on([]) is None


def test_end_without_a_start_is_read() -> None:
    found = last_time_on(read_events([body(100, "deallocate", "Started")]))
    assert found is not None
    assert (found[0], found[1].at) == (None, NOON + timedelta(seconds=100))


# From Azure's documentation of the call; other fields might be refused, and the whole log with them.
SELECTABLE = (
    "authorization claims correlationId description eventDataId eventName eventTimestamp httpRequest level operationId "
    "operationName properties resourceGroupName resourceProviderName resourceId status submissionTimestamp subStatus "
    "subscriptionId"
).split()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The parameters of the requests for the log."""
    found = list[dict[str, str]]()

    class FakeRequests:
        def __init__(self, client: Any) -> None: ...

        def pages(self, path: str, version: str, query: dict[str, str]) -> list[Any]:
            found.append(query)
            return []

    monkeypatch.setattr(activity, "Requests", FakeRequests)
    return found


CLIENTS: Any = SimpleNamespace(access=SimpleNamespace(subscription="s"))


@pytest.mark.parametrize("resource", [None, ID])
def test_only_selectable_fields_are_selected(asked: list[dict[str, str]], resource: str | None) -> None:
    activity.read_log(CLIENTS, NOON, NOON, resource)
    selected = asked[0].get("$select")
    # The caller comes only with complete events, which are requested for one machine only.
    assert (selected is None) == (resource is not None)
    assert set((selected or "").split(",")) - {""} <= set(SELECTABLE)


def test_log_is_read_beyond_the_current_second(asked: list[dict[str, str]]) -> None:
    # Azure's clock has whole seconds, so an agent's recent deallocation may be after "now".
    activity.read_log(CLIENTS, NOON, NOON.replace(microsecond=1), ID)
    (until,) = re.findall(r"eventTimestamp le '(.*?)'", asked[0]["$filter"])
    assert datetime.fromisoformat(until) >= NOON + timedelta(seconds=2)
