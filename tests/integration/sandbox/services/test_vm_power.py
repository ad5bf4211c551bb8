"""Power of machines: who is billed for what, one operation at a time, eviction, and commands in the guest."""

from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError

from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.internal_calls import call_inside
from gpuinfra.sandbox.services.compute.run_command import command_result
from gpuinfra.sandbox.services.registry import SERVICES
from gpuinfra.sandbox.web.authority import make_identities
from tests.integration.sandbox.machine_help import (
    Place,
    check_like,
    error_of,
    full_body,
    inline,
    profile,
    recorded,
)
from tests.integration.sandbox.recordings import DATA, shape

HOUR = 3600
PRICE, SPOT_PRICE = 0.526, 0.1578


def states(place: Place, name: str = "m") -> list[str]:
    return [part["state"] for part in place.bill(name)["timeline"]]


# The bill


def test_vm_is_billed_while_running_or_stopped(place: Place) -> None:
    place.make()
    place.advance(HOUR)
    assert place.bill()["costUsd"] == pytest.approx(PRICE, rel=0.005)
    place.machines.begin_power_off(place.group, "m").result()
    assert place.status("m") == ("ProvisioningState/succeeded", "stopped")
    place.advance(HOUR)
    assert place.bill()["costUsd"] == pytest.approx(2 * PRICE, rel=0.005)
    place.machines.begin_deallocate(place.group, "m").result()
    before = place.bill()["costUsd"]
    place.advance(10 * HOUR)
    bill = place.bill()
    assert (bill["powerState"], bill["costUsd"]) == ("deallocated", before)
    place.machines.begin_start(place.group, "m").result()
    place.advance(HOUR)
    assert place.bill()["costUsd"] == pytest.approx(3 * PRICE, rel=0.005)
    assert place.bill()["billedSeconds"] == pytest.approx(3 * HOUR, rel=0.005)
    place.machines.begin_delete(place.group, "m").result()
    place.advance(HOUR)
    assert place.bill()["costUsd"] == pytest.approx(3 * PRICE, rel=0.005)
    assert states(place) == [
        "creating",
        "starting",
        "running",
        "stopping",
        "stopped",
        "deallocating",
        "deallocated",
        "starting",
        "running",
        "deleted",
    ]


def test_spot_vm_costs_less(place: Place) -> None:
    place.spot("s")
    place.advance(HOUR)
    assert place.bill("s")["costUsd"] == pytest.approx(SPOT_PRICE, rel=0.005)


def test_operations_take_time_in_the_realistic_profile(place: Place) -> None:
    place.make()
    place.sandbox.control("POST", "profile", {"profile": "realistic"})
    assert place.sandbox.http("POST", place.path("m", "/deallocate"))[0] == 202
    assert place.status("m") == ("ProvisioningState/updating", "deallocating")
    place.advance(60)
    assert place.status("m") == ("ProvisioningState/succeeded", "deallocated")
    assert place.sandbox.http("POST", place.path("m", "/start"))[0] == 202
    assert place.status("m") == ("ProvisioningState/updating", "starting")
    place.advance(60)
    assert place.status("m")[1] == "running"
    body = place.body("slow")
    assert place.sandbox.http("PUT", place.path("slow"), body)[0] == 201
    assert place.status("slow") == ("ProvisioningState/creating", "")
    place.advance(400)
    assert place.status("slow")[1] == "running"


# What each operation does


def test_operation_answers_match_recordings(place: Place) -> None:
    place.make()
    http = place.sandbox.http
    check_like(recorded("vm_deallocate_202"), *http("POST", place.path("m", "/deallocate")))
    check_like(
        recorded("vm_expand_instanceview_deallocated"),
        *_with_tags(http("GET", place.path("m", query="&$expand=instanceView"))),
    )
    view = http("GET", place.path("m", "/instanceView"))[2]
    assert set(view) == {"disks", "hyperVGeneration", "statuses"}
    status, headers, answer = http("POST", place.path("m", "/start"))
    check_like(recorded("vm_start_202"), status, headers, answer)
    base = place.sandbox.endpoint
    operation = http("GET", headers["azure-asyncoperation"].removeprefix(base))[2]
    assert operation["status"] == "Succeeded"
    check_like(recorded("vm_start_monitor_final_200"), *http("GET", headers["location"].removeprefix(base)))
    for action in ("restart", "redeploy", "reapply", "powerOff"):
        status, headers, answer = http("POST", place.path("m", f"/{action}"))
        assert (status, answer) == (202, None)
        assert {"azure-asyncoperation", "location"} <= set(headers)
    assert http("POST", place.path("m", "/generalize"))[0] == 501


def _with_tags(answer: tuple[int, dict[str, str], Any]) -> tuple[int, dict[str, str], Any]:
    """The recorded machine is another's: its tags are its own."""
    answer[2]["tags"] = {"firsttag": "1", "secondtag": "2", "thirdtag": ""}
    return answer


def test_repeated_power_action_succeeds(place: Place) -> None:
    place.make()
    place.machines.begin_start(place.group, "m").result()
    assert place.status("m")[1] == "running"
    for _ in range(2):
        place.machines.begin_power_off(place.group, "m").result()
    assert place.status("m")[1] == "stopped"
    for _ in range(2):
        place.machines.begin_deallocate(place.group, "m").result()
    place.machines.begin_power_off(place.group, "m").result()
    assert place.status("m")[1] == "deallocated"
    assert states(place)[-1] == "deallocated"
    for begin in (place.machines.begin_restart, place.machines.begin_redeploy):
        with pytest.raises(HttpResponseError) as caught:
            begin(place.group, "m").result()
        assert error_of(caught.value).code == "OperationNotAllowed"
    assert place.sandbox.http("POST", place.path("nothing", "/start"))[0] == 404


def test_vm_allows_one_operation_at_a_time(place: Place) -> None:
    place.make()
    place.fault("never-ends", type="virtualMachines", method="POST")
    _, headers, _ = place.sandbox.http("POST", place.path("m", "/restart"))
    for action in ("start", "deallocate", "powerOff", "restart", "reapply"):
        status, _, answer = place.sandbox.http("POST", place.path("m", f"/{action}"))
        assert (status, answer["error"]["code"]) == (409, "Conflict"), action
    assert place.sandbox.http("PATCH", place.path("m"), {"tags": {}})[0] == 409
    place.machines.begin_delete(place.group, "m").result()
    stuck = place.sandbox.http("GET", headers["azure-asyncoperation"].removeprefix(place.sandbox.endpoint))[2]
    assert (stuck["status"], stuck["error"]["code"]) == ("Failed", "OperationPreempted")
    assert "virtualMachines/m" not in place.left()


def test_vm_can_be_deleted_while_it_is_created(place: Place) -> None:
    body = place.body("m")
    place.sandbox.control("POST", "profile", {"profile": "realistic"})
    status, created, _ = place.sandbox.http("PUT", place.path("m"), body)
    assert status == 201
    place.fault("slow", method="DELETE", operation=True, seconds=1000)
    assert place.sandbox.http("DELETE", place.path("m"))[0] == 202
    status, _, answer = place.sandbox.http("POST", place.path("m", "/start"))
    assert (status, answer["error"]["code"]) == (409, "OperationNotAllowed")
    assert "marked for deletion" in answer["error"]["message"]
    place.advance(600)
    assert place.bill()["powerState"] == "creating"
    assert place.sandbox.http("DELETE", place.path("m"))[0] == 202
    place.advance(600)
    assert place.sandbox.http("GET", place.path("m"))[0] == 404
    ended = place.sandbox.http("GET", created["azure-asyncoperation"].removeprefix(place.sandbox.endpoint))[2]
    assert ended["error"]["code"] == "OperationPreempted"
    assert (place.bill()["costUsd"], place.bill()["powerState"]) == (0, "deleted")


def test_failed_allocation_leaves_the_vm_deallocated(place: Place) -> None:
    place.make()
    place.machines.begin_deallocate(place.group, "m").result()
    place.fault("AllocationFailed", type="virtualMachines")
    with pytest.raises(HttpResponseError) as caught:
        place.machines.begin_start(place.group, "m").result()
    assert error_of(caught.value).code == "AllocationFailed"
    assert place.status("m") == ("ProvisioningState/failed/AllocationFailed", "deallocated")
    before = place.bill()["costUsd"]
    place.advance(HOUR)
    assert place.bill()["costUsd"] == before
    place.machines.begin_start(place.group, "m").result()
    assert place.status("m") == ("ProvisioningState/succeeded", "running")


def test_failed_deletion_can_be_repeated(place: Place) -> None:
    place.make()
    place.fault("InternalExecutionError", type="virtualMachines", method="DELETE")
    with pytest.raises(HttpResponseError):
        place.machines.begin_delete(place.group, "m").result()
    assert place.machines.get(place.group, "m").provisioning_state == "Failed"
    place.machines.begin_delete(place.group, "m").result()
    assert "virtualMachines/m" not in place.left()


# Eviction


def test_regular_vm_cannot_be_evicted(place: Place) -> None:
    place.make()
    answer = place.sandbox.http("POST", place.path("m", "/simulateEviction"))
    check_like(recorded("err_409_simulateEviction_OperationNotAllowed"), *answer)
    assert answer[2]["error"]["message"] == "Operation 'simulateEviction' is allowed only for Spot Virtual Machines"


def test_evicted_vm_gets_notice_and_is_deallocated(place: Place) -> None:
    place.spot("s")
    cloud = place.sandbox.server.cloud
    place.machines.simulate_eviction(place.group, "s")
    place.machines.simulate_eviction(place.group, "s")
    told = cloud.store.get(place.id("s"))
    assert told is not None
    (event,) = told.hidden["scheduledEvents"]
    assert (event["EventType"], event["EventStatus"], event["Resources"]) == ("Preempt", "Scheduled", ["s"])
    assert 0 < parsedate_to_datetime(event["NotBefore"]).timestamp() - cloud.clock.now() <= 30
    assert place.status("s")[1] == "running"
    place.advance(30)
    assert place.status("s") == ("ProvisioningState/succeeded", "deallocated")
    evicted = cloud.store.get(place.id("s"))
    assert evicted is not None
    assert "scheduledEvents" not in evicted.hidden
    with pytest.raises(HttpResponseError):
        place.machines.simulate_eviction(place.group, "s")
    place.machines.begin_start(place.group, "s").result()
    assert place.status("s")[1] == "running"


def test_evicted_vm_is_deleted_if_its_policy_is_delete(place: Place) -> None:
    place.spot("s", "Delete")
    check_like(recorded("vm_simulateEviction_204"), *place.sandbox.http("POST", place.path("s", "/simulateEviction")))
    place.advance(30)
    assert "virtualMachines/s" not in place.left()
    assert place.bill("s")["powerState"] == "deleted"


# The guest


class Inner:
    """A cloud without a guest host, so that tests see the orders."""

    def __init__(self, folder: Path) -> None:
        self.cloud = Cloud(folder, SERVICES)
        make_identities(self.cloud.store)
        self.group = f"/subscriptions/{self.cloud.subscription}/resourceGroups/demo"
        self.machine = f"{self.group}/providers/Microsoft.Compute/virtualMachines/m"
        subnet = {"name": "inner", "properties": {"addressPrefix": "10.0.0.0/20"}}
        space = {"addressSpace": {"addressPrefixes": ["10.0.0.0/16"]}, "subnets": [subnet]}
        network = f"{self.group}/providers/Microsoft.Network/virtualNetworks/net"
        self.ask("PUT", self.group, {"location": "eastus"})
        self.ask("PUT", network, {"location": "eastus", "properties": space})
        self.subnet = f"{network}/subnets/inner"

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        with self.cloud.store.transaction():
            answer = call_inside(self.cloud, method, path, body)
        self.cloud.settle()
        return answer

    def orders(self) -> list[str]:
        found = [order["kind"] for order in self.cloud.guest_orders]
        self.cloud.guest_orders.clear()
        return found


@pytest.fixture
def inner(tmp_path: Path) -> Iterator[Inner]:
    made = Inner(tmp_path)
    yield made
    made.cloud.store.close()


def test_guest_is_started_and_stopped_with_its_vm(inner: Inner) -> None:
    inner.ask("PUT", inner.machine, full_body(inner.subnet))
    (order,) = inner.cloud.guest_orders
    machine = inner.cloud.store.get(inner.machine)
    assert machine is not None
    assert order == {"kind": "provision", "vm": inner.machine, "vmId": machine.properties["vmId"]}
    seen = [inner.orders()]
    for action in ("restart", "powerOff", "start", "deallocate", "deallocate", "start", "redeploy"):
        inner.ask("POST", f"{inner.machine}/{action}")
        seen.append(inner.orders())
    assert seen == [
        ["provision"],
        ["stop", "start"],
        ["stop"],
        ["start"],
        ["stop"],
        [],
        ["start"],
        ["stop", "start"],
    ]
    inner.ask("DELETE", inner.machine)
    assert inner.orders() == ["stop", "delete"]


def test_vm_is_provisioned_after_a_later_allocation(inner: Inner) -> None:
    inner.cloud.faults.add({"name": "AllocationFailed"})
    inner.ask("PUT", inner.machine, full_body(inner.subnet))
    assert inner.orders() == []
    inner.ask("PATCH", inner.machine, {"tags": {"again": "yes"}})
    assert inner.orders() == ["provision"]
    inner.ask("PATCH", inner.machine, {"properties": {"hardwareProfile": {"vmSize": "Standard_NC8as_T4_v3"}}})
    assert inner.orders() == ["stop", "start"]


def test_guest_files_stay_with_a_kept_disk(inner: Inner) -> None:
    body = full_body(inner.subnet)
    body["properties"]["storageProfile"]["osDisk"] |= {"deleteOption": "Detach", "name": "system"}
    inner.ask("PUT", inner.machine, body)
    inner.orders()
    inner.ask("DELETE", inner.machine)
    assert inner.orders() == ["stop"]
    inner.ask("DELETE", f"{inner.group}/providers/Microsoft.Compute/disks/system")
    assert inner.orders() == ["delete"]


def test_run_command_waits_for_the_guest(inner: Inner) -> None:
    inner.ask("PUT", inner.machine, full_body(inner.subnet))
    inner.orders()
    parameters = [{"name": "who", "value": "you & me"}]
    command = {"commandId": "RunShellScript", "script": ["echo $1", "exit 3"], "parameters": parameters}
    answer = inner.ask("POST", f"{inner.machine}/runCommand", command)
    assert answer.status == 202
    assert {"Azure-AsyncOperation", "Location"} <= set(answer.headers)
    (order,) = inner.cloud.guest_orders
    assert order["script"] == "export who='you & me'\nset -- 'you & me'\necho $1\nexit 3"
    operation = order["operation"]
    assert inner.cloud.operations.status(operation).body["status"] == "InProgress"
    inner.cloud.operations.complete(operation, result=command_result("you & me\n", ""))
    done = inner.cloud.operations.status(operation).body
    assert done["properties"]["output"]["value"][0]["message"] == "Enable succeeded: \n[stdout]\nyou & me\n\n[stderr]\n"
    file = DATA / "arm-golden" / "vm_runcommand_op_succeeded.json"
    if file.exists():
        assert shape(done) == shape(recorded(file.stem)["response_body"])


def test_run_command_requires_a_running_vm(place: Place) -> None:
    place.make("m", networkProfile=inline(place.subnet), osProfile=profile())
    path = place.path("m", "/runCommand")
    for body in (
        {},
        {"commandId": "RunPowerShellScript", "script": ["x"]},
        {"commandId": "RunShellScript", "script": [1]},
    ):
        assert place.sandbox.http("POST", path, body)[0] == 400
    place.machines.begin_deallocate(place.group, "m").result()
    status, _, answer = place.sandbox.http("POST", path, {"commandId": "RunShellScript", "script": ["true"]})
    assert (status, answer["error"]["code"]) == (409, "OperationNotAllowed")
