"""Every fault by name, as the real SDK sees it."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ResourceNotFoundError,
    ServiceRequestError,
    ServiceResponseError,
)
from azure.core.pipeline.transport import RequestsTransport
from azure.mgmt.compute import ComputeManagementClient
from azure.mgmt.resource.resources import ResourceManagementClient

from gpuinfra.sandbox.kernel.faults import ERRORS, NAMES, OPERATION_ERRORS, OTHERS
from tests.integration.sandbox.servers import WAIT_SECONDS, Sandbox

ELSEWHERE = {
    *("restricted", "no-boot", "ssh-refuses", "gpu-gone", "trusted-launch", "evict", "identity-refused"),
    *("hold-before", "hold-after", "read-only", "us-government", "no-schedules", "schedule-window"),
}
"""Faults of listings, machines, rights, schedules, and those that hold, which their own tests show."""
EASTUS = {"location": "eastus"}
DISK: Any = {"location": "eastus", "properties": {"creationData": {"createOption": "Empty"}, "diskSizeGB": 32}}


class Once:
    """Clients that try once, so that nothing hides what the server answered."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        settings: dict[str, Any] = {
            "base_url": sandbox.endpoint,
            "credential_scopes": ["https://management.azure.com/.default"],
            "connection_verify": str(sandbox.server.authority_file),
            "retry_total": 0,
            "polling_interval": 0,
        }
        credential = sandbox.credential()
        self.groups_client = ResourceManagementClient(credential, sandbox.subscription, **settings)
        self.compute = ComputeManagementClient(credential, sandbox.subscription, **settings)
        self.groups = self.groups_client.resource_groups
        self.groups.create_or_update("demo", EASTUS)

    def arm(self, name: str, **fields: Any) -> None:
        self.sandbox.control("POST", "faults", {"name": name, **fields})

    def armed(self) -> list[dict[str, Any]]:
        faults: list[dict[str, Any]] = self.sandbox.control("GET", "faults")["faults"]
        return faults

    def make_group(self, name: str, location: str = "eastus") -> None:
        self.groups.create_or_update(name, {"location": location})

    def make_disk(self, name: str, timeout: float = WAIT_SECONDS) -> Any:
        poller = self.compute.disks.begin_create_or_update("demo", name, DISK)
        poller.wait(timeout)
        assert poller.done(), "the operation is still running"
        return poller.result()

    def close(self) -> None:
        self.groups_client.close()
        self.compute.close()


@pytest.fixture
def once(sandbox: Sandbox) -> Iterator[Once]:
    made = Once(sandbox)
    yield made
    made.close()


def test_every_fault_has_a_test() -> None:
    assert set(NAMES) == {*ERRORS, *OPERATION_ERRORS, *OTHERS}
    assert set(OTHERS) - ELSEWHERE == {"drop-before", "drop-after", "never-ends", "slow"}


@pytest.mark.parametrize("name", ERRORS)
def test_error_fault_answers_one_request(once: Once, name: str) -> None:
    once.arm(name)
    with pytest.raises(HttpResponseError) as caught:
        once.groups.get("demo")
    status, text = ERRORS[name]
    assert caught.value.status_code == status
    assert caught.value.error is not None
    assert (caught.value.error.code, caught.value.error.message) == (name, text)
    assert once.armed() == []
    assert once.groups.get("demo").name == "demo"


def test_request_with_error_fault_changes_nothing(once: Once) -> None:
    once.arm("ServiceUnavailable", method="PUT")
    with pytest.raises(HttpResponseError):
        once.make_group("undone")
    assert not once.groups.check_existence("undone")


def test_refused_token_raises_an_authentication_error(once: Once) -> None:
    once.arm("ExpiredAuthenticationToken")
    with pytest.raises(ClientAuthenticationError) as caught:
        once.groups.get("demo")
    answer: Any = caught.value.response
    assert answer.headers["WWW-Authenticate"].startswith("Bearer ")


def test_fault_can_have_a_custom_message(once: Once) -> None:
    once.arm("Conflict", message="not on a Monday")
    with pytest.raises(HttpResponseError, match="not on a Monday"):
        once.groups.get("demo")


def test_too_many_requests_has_retry_after(once: Once) -> None:
    once.arm("TooManyRequests", retryAfter=7)
    with pytest.raises(HttpResponseError) as caught:
        once.groups.get("demo")
    answer: Any = caught.value.response
    assert answer.headers["Retry-After"] == "7"


def test_sdk_retries_after_the_given_time(once: Once, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(RequestsTransport, "sleep", lambda _, seconds: slept.append(seconds))
    once.arm("TooManyRequests", retryAfter=7, count=2)
    assert once.sandbox.resource.resource_groups.get("demo").name == "demo"
    assert slept == [7, 7]
    statuses = [request["status"] for request in once.sandbox.control("GET", "log")["requests"][-3:]]
    assert statuses == [429, 429, 200]


def test_drop_before_changes_nothing(once: Once) -> None:
    once.arm("drop-before", method="PUT")
    with pytest.raises((ServiceRequestError, ServiceResponseError)):
        once.make_group("before")
    assert not once.groups.check_existence("before")
    assert once.sandbox.control("GET", "log")["requests"][-2]["status"] == 0


def test_drop_after_carries_the_request_out(once: Once) -> None:
    once.arm("drop-after", method="PUT")
    with pytest.raises((ServiceRequestError, ServiceResponseError)):
        once.make_group("after")
    assert once.groups.check_existence("after")


def test_sdk_retries_a_dropped_request(once: Once) -> None:
    """The SDK cannot know; its retry finds out."""
    once.arm("drop-after", method="PUT")
    retrying = once.sandbox.resource.resource_groups
    assert retrying.create_or_update("retried", EASTUS).name == "retried"
    puts = [entry for entry in once.sandbox.control("GET", "log")["requests"] if entry["path"].endswith("/retried")]
    assert [entry["status"] for entry in puts] == [0, 200]


def test_slow_fault_delays_the_answer(once: Once) -> None:
    once.arm("slow", seconds=0.2)
    started = time.monotonic()
    once.groups.get("demo")
    assert time.monotonic() - started >= 0.2
    assert once.armed() == []


def test_slow_fault_does_not_delay_other_requests(once: Once) -> None:
    once.arm("slow", seconds=3, resource="demo")
    poller = once.compute.disks.begin_create_or_update("demo", "quick", DISK)
    assert poller.result().provisioning_state == "Succeeded"
    assert len(once.armed()) == 1


@pytest.mark.parametrize("name", OPERATION_ERRORS)
def test_accepted_operation_can_fail(once: Once, name: str) -> None:
    once.arm(name)
    poller = once.compute.disks.begin_create_or_update("demo", f"disk-{name}", DISK)
    with pytest.raises(HttpResponseError) as caught:
        poller.result(20)
    assert caught.value.error is not None
    assert (caught.value.error.code, caught.value.error.message) == (name, OPERATION_ERRORS[name])
    assert once.compute.disks.get("demo", f"disk-{name}").provisioning_state == "Failed"
    assert once.make_disk(f"disk-{name}").provisioning_state == "Succeeded"


def test_any_error_fault_can_end_an_operation(once: Once) -> None:
    once.arm("SkuNotAvailable", operation=True, message="gone")
    poller = once.compute.disks.begin_create_or_update("demo", "accepted", DISK)
    with pytest.raises(HttpResponseError, match="gone") as caught:
        poller.result(20)
    assert caught.value.error is not None
    assert caught.value.error.code == "SkuNotAvailable"


def test_operation_fault_does_not_affect_other_requests(once: Once) -> None:
    once.arm("Conflict", operation=True)
    once.arm("Conflict", method="DELETE")
    once.groups.get("demo")
    with pytest.raises(HttpResponseError):
        once.compute.disks.begin_delete("demo", "whatever")
    assert [fault.get("operation") for fault in once.armed()] == [True]


def test_operation_with_never_ends_stays_in_progress(once: Once) -> None:
    once.arm("never-ends", type="disks")
    path = f"/subscriptions/{once.sandbox.subscription}/resourceGroups/demo/providers/Microsoft.Compute/disks/for-ever"
    status, headers, _ = once.sandbox.http("PUT", f"{path}?api-version=2024-03-02", DISK)
    assert status == 202
    once.sandbox.control("POST", "clock", {"advance": 1800})
    asked = headers["azure-asyncoperation"].removeprefix(once.sandbox.endpoint)
    assert once.sandbox.http("GET", asked)[2]["status"] == "InProgress"
    assert once.compute.disks.get("demo", "for-ever").provisioning_state == "Updating"
    # Another operation on it is not held up.
    assert once.make_disk("for-ever").provisioning_state == "Succeeded"


def test_slow_operation_takes_longer_on_the_sandbox_clock(once: Once) -> None:
    once.arm("slow", operation=True, seconds=600)
    once.compute.disks.begin_create_or_update("demo", "late", DISK, polling=False)
    assert once.compute.disks.get("demo", "late").provisioning_state == "Updating"
    once.sandbox.control("POST", "clock", {"advance": 590})
    assert once.compute.disks.get("demo", "late").provisioning_state == "Updating"
    once.sandbox.control("POST", "clock", {"advance": 11})
    assert once.compute.disks.get("demo", "late").provisioning_state == "Succeeded"


@pytest.mark.parametrize(
    ("fields", "hits"),
    [
        ({}, True),
        ({"method": "GET"}, True),
        ({"method": "get"}, True),
        ({"method": "PUT"}, False),
        ({"type": "resourceGroups"}, True),
        ({"type": "Microsoft.Resources/RESOURCEGROUPS"}, True),
        ({"type": "Microsoft.Compute/resourceGroups"}, False),
        ({"type": "disks"}, False),
        ({"resource": "Demo"}, True),
        ({"resource": "demonstration"}, False),
        ({"region": "eastus"}, True),
        ({"region": "East US"}, True),
        ({"region": "westus2"}, False),
        ({"method": "GET", "type": "resourceGroups", "resource": "demo", "region": "eastus"}, True),
        ({"method": "GET", "type": "resourceGroups", "resource": "demo", "region": "westus2"}, False),
    ],
)
def test_fault_hits_only_matching_requests(once: Once, fields: dict[str, str], hits: bool) -> None:
    once.arm("Conflict", **fields)
    try:
        once.groups.get("demo")
    except AzureError:
        assert hits
    else:
        assert not hits
    assert len(once.armed()) == (0 if hits else 1)


def test_region_filter_matches_a_resource_being_created(once: Once) -> None:
    once.arm("Conflict", region="westus2", count=0)
    once.make_group("here")
    with pytest.raises(HttpResponseError):
        once.make_group("there", "West US 2")


def test_type_filter_matches_lists(once: Once) -> None:
    once.arm("Conflict", type="Microsoft.Compute/disks", method="GET", count=2)
    once.groups.get("demo")
    with pytest.raises(HttpResponseError):
        list(once.compute.disks.list())
    with pytest.raises(HttpResponseError):
        list(once.compute.disks.list_by_resource_group("demo"))
    assert once.armed() == []


def test_fault_is_used_up_after_its_count(once: Once) -> None:
    once.arm("Conflict", count=2)
    for left in (1, 0):
        with pytest.raises(HttpResponseError):
            once.groups.get("demo")
        assert [fault["count"] for fault in once.armed()] == ([left] if left else [])
    once.groups.get("demo")
    once.arm("Conflict", count=0)
    for _ in range(3):
        with pytest.raises(HttpResponseError):
            once.groups.get("demo")
    once.sandbox.control("DELETE", "faults")
    once.groups.get("demo")


def test_faults_apply_in_the_order_they_were_armed(once: Once) -> None:
    for name in ("Conflict", "InternalServerError", "ScopeLocked"):
        once.arm(name)
    codes = []
    for _ in range(3):
        with pytest.raises(HttpResponseError) as caught:
            once.groups.get("demo")
        assert caught.value.error is not None
        codes.append(caught.value.error.code)
    assert codes == ["Conflict", "InternalServerError", "ScopeLocked"]


def test_fault_hits_requests_for_missing_resources(once: Once) -> None:
    once.arm("InternalServerError", resource="ghost")
    with pytest.raises(HttpResponseError, match="internal server error"):
        once.groups.get("ghost")
    with pytest.raises(ResourceNotFoundError):
        once.groups.get("ghost")
