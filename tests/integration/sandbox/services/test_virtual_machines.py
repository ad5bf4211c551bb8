"""Machines as the real SDK makes, changes, lists and deletes them."""

import base64
import json
from typing import Any

import pytest
from azure.core import MatchConditions
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError

from gpuinfra.sandbox.catalogue.catalogue import Gpu
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services.compute.virtual_machines import guest_facts
from tests.integration.sandbox.machine_help import (
    KEYS,
    LOGIN,
    PASSWORD,
    STORAGE,
    SYSTEM,
    Place,
    check_like,
    error_of,
    inline,
    profile,
    recorded,
    settings,
)
from tests.integration.sandbox.servers import Sandbox
from tests.variants import variant

T4_PRICE = 0.526
"""Of an hour in eastus."""


# Making


def test_create_answer_has_state_creating(place: Place) -> None:
    secret = base64.b64encode(b"#cloud-config\n").decode()
    body = place.body("m", osProfile=profile(customData=secret, adminPassword=PASSWORD))
    status, headers, answer = place.sandbox.http("PUT", place.path("m"), body)
    assert status == 201
    assert "/providers/Microsoft.Compute/locations/eastus/operations/" in headers["azure-asyncoperation"]
    assert "location" not in headers
    properties = answer["properties"]
    assert properties["provisioningState"] == "Creating"
    assert properties["storageProfile"]["imageReference"]["exactVersion"] == "25.06.18"
    disk = properties["storageProfile"]["osDisk"]
    assert disk == {
        "osType": "Linux",
        "createOption": "FromImage",
        "caching": "ReadWrite",
        "managedDisk": {"storageAccountType": "StandardSSD_LRS"},
        "deleteOption": "Detach",
        "diskSizeGB": 150,
    }
    assert answer["etag"] == headers["etag"]
    found: Any = place.machines.get(place.group, "M", expand="instanceView")
    assert found.provisioning_state == "Succeeded"
    assert found.vm_id == properties["vmId"]
    assert found.name == "m"
    assert found.storage_profile.os_disk.managed_disk.id.endswith(f"/disks/{found.storage_profile.os_disk.name}")
    assert found.instance_view.statuses[-1].display_status == "VM running"
    for text in (answer, found.as_dict(), place.sandbox.http("GET", place.path("m"))[2]):
        assert secret not in json.dumps(text)
        assert PASSWORD not in json.dumps(text)


def test_guest_facts_have_all_that_the_guest_host_needs(place: Place) -> None:
    secret = base64.b64encode(b"hello").decode()
    place.make("m", networkProfile=inline(place.subnet), osProfile=profile(customData=secret))
    facts = guest_facts(place.sandbox.server.cloud, place.id("M"))
    assert facts["username"] == "ada"
    assert facts["authorizedKeys"][0].startswith("ssh-ed25519 AAAA")
    assert facts["customData"] == secret
    addresses = list(place.sandbox.network.public_ip_addresses.list(place.group))
    assert facts["publicAddress"] == addresses[0].ip_address is not None
    assert facts["gpu"] == Gpu("T4", "Tesla T4", 1, 15360)


def test_update_answer_has_state_updating(place: Place) -> None:
    made = place.make()
    body = place.body("m")
    body["tags"] = {"owner": "you"}
    status, headers, answer = place.sandbox.http("PUT", place.path("m"), body)
    assert (status, answer["properties"]["provisioningState"]) == (200, "Updating")
    assert "azure-asyncoperation" in headers
    again = place.put("m", place.machines.get(place.group, "m"))
    assert again.tags == {"owner": "you"}
    assert again.vm_id == made.vm_id
    assert again.provisioning_state == "Succeeded"
    assert place.left() == {
        "virtualMachines/m",
        "networkInterfaces/m-nic",
        f"disks/{made.storage_profile.os_disk.name}",
    }


def test_if_none_match_refuses_an_existing_vm(place: Place) -> None:
    body, only_new = place.body("m"), {"If-None-Match": "*"}
    answers = [place.sandbox.http("PUT", place.path("m"), body, headers=only_new) for _ in range(2)]
    assert [status for status, _, _ in answers] == [201, 412]
    etag = place.machines.get(place.group, "m")["etag"]
    assert place.sandbox.http("PATCH", place.path("m"), {"tags": {}}, headers={"If-Match": '"other"'})[0] == 412
    assert place.sandbox.http("PATCH", place.path("m"), {"tags": {}}, headers={"If-Match": etag})[0] == 200


def test_if_none_match_refuses_a_vm_that_is_being_created(place: Place) -> None:
    body, only_new = place.body("m"), {"If-None-Match": "*"}
    place.sandbox.control("POST", "profile", {"profile": "realistic"})
    try:
        assert place.sandbox.http("PUT", place.path("m"), body, headers=only_new)[0] == 201
        for state in ("Creating", "Succeeded"):
            assert place.sandbox.http("GET", place.path("m"))[2]["properties"]["provisioningState"] == state
            status, _, answer = place.sandbox.http("PUT", place.path("m"), body, headers=only_new)
            assert (status, answer["error"]["code"]) == (412, "PreconditionFailed")
            with pytest.raises(ResourceExistsError):
                place.machines.begin_create_or_update(place.group, "m", body, match_condition=MatchConditions.IfMissing)
            place.advance(600)
    finally:
        place.sandbox.control("POST", "profile", {"profile": "instant"})


# Failing on the way


def test_vm_without_capacity_stays_failed_and_unbilled(place: Place) -> None:
    place.fault("AllocationFailed", type="virtualMachines")
    with pytest.raises(HttpResponseError) as caught:
        place.make()
    assert error_of(caught.value).code == "AllocationFailed"
    found: Any = place.machines.get(place.group, "m", expand="instanceView")
    assert found.provisioning_state == "Failed"
    assert found.instance_view.statuses[0].code == "ProvisioningState/failed/AllocationFailed"
    assert found.instance_view.statuses[0].level == "Error"
    assert len(place.left()) == 3
    place.advance(3600)
    assert (place.bill()["billedSeconds"], place.bill()["costUsd"]) == (0, 0)
    place.put("m", place.body("m"))
    assert place.status("m") == ("ProvisioningState/succeeded", "running")
    place.advance(3600)
    assert place.bill()["costUsd"] == pytest.approx(T4_PRICE, rel=0.01)


def test_vm_whose_os_times_out_is_billed(place: Place) -> None:
    place.fault("OSProvisioningTimedOut", type="virtualMachines")
    with pytest.raises(HttpResponseError):
        place.make()
    place.advance(3600)
    assert place.machines.get(place.group, "m").provisioning_state == "Failed"
    assert place.bill()["costUsd"] == pytest.approx(T4_PRICE, rel=0.01)


# Reading


def test_missing_vm_returns_404(place: Place) -> None:
    with pytest.raises(ResourceNotFoundError) as caught:
        place.machines.get(place.group, "nothing")
    assert error_of(caught.value).code == "ResourceNotFound"
    status, _, answer = place.sandbox.http("GET", place.path("m").replace(f"/{place.group}/", "/nowhere/"))
    assert (status, answer["error"]["code"]) == (404, "ResourceGroupNotFound")
    assert place.sandbox.http("DELETE", place.path("nothing"))[0] == 204
    assert place.sandbox.http("GET", place.path("m", query="&$expand=everything"))[0] in (400, 404)


def test_vms_are_listed_by_group_subscription_and_region(sandbox: Sandbox, alone: Place) -> None:
    other = Place(sandbox, "westus2", "other")
    alone.make("here")
    other.make("there")
    alone.machines.begin_deallocate(alone.group, "here").result()
    assert [machine.name for machine in alone.machines.list(alone.group)] == ["here"]
    assert {machine.name for machine in alone.machines.list_all()} == {"here", "there"}
    assert [machine.name for machine in alone.machines.list_by_location("westus2")] == ["there"]
    states = {}
    for machine in alone.machines.list_all(status_only="true"):
        view: Any = machine.instance_view
        states[machine.name] = view.statuses[-1].code
    assert states == {"here": "PowerState/deallocated", "there": "PowerState/running"}
    assert all(machine.instance_view is None for machine in alone.machines.list_all())


def test_vm_lists_are_paged(alone: Place) -> None:
    alone.make("m0000")

    def fill(cloud: Cloud) -> None:
        template = cloud.store.get(alone.id("m0000"))
        assert template is not None
        for number in range(1, 600):
            name = f"m{number:04}"
            body = {**template.body, "id": alone.id(name), "name": name}
            cloud.store.put(Resource(alone.id(name), "eastus", body, template.hidden), 1.0)

    alone.sandbox.inside(fill)
    pages = [list(page) for page in alone.machines.list_all(status_only="true").by_page()]
    assert [len(page) for page in pages] == [250, 250, 100]
    assert [machine.name for page in pages for machine in page] == [f"m{number:04}" for number in range(600)]
    assert all(machine.instance_view for page in pages for machine in page)
    assert len(list(alone.machines.list(alone.group))) == 600


# Changing


@variant
def test_fixed_properties_cannot_change(place: Place) -> None:
    place.make()
    cases: list[tuple[str, Any, str]] = [
        (f"{LOGIN}.adminUsername", "eve", "adminUsername"),
        (f"{LOGIN}.customData", "QUJD", "customData"),
        (f"{KEYS}.publicKeys", [], "linuxConfiguration.ssh.publicKeys"),
        (f"{STORAGE}.imageReference.sku", "2204", "imageReference"),
        (f"{SYSTEM}.name", "other", "osDisk.name"),
        (f"{SYSTEM}.createOption", "Attach", "osDisk.createOption"),
        ("zones", ["1"], "zones"),
    ]
    body = place.body("m")
    for path, value, target in cases:
        error = place.refused("m", settings(body, path, value), "PropertyChangeNotAllowed")
        assert (error.status_code, error_of(error).target) == (409, target)
    place.refused("m", {**body, "location": "westus2"}, "InvalidResourceLocation")
    place.refused("m", settings(body, "properties.priority", "Spot"), "VMPriorityCannotBeApplied")


def test_resize_changes_the_price(place: Place) -> None:
    place.make()
    place.advance(3600)
    larger: Any = {"properties": {"hardwareProfile": {"vmSize": "standard_nc8as_t4_v3"}}}
    changed = place.machines.begin_update(place.group, "m", larger).result()
    assert changed.hardware_profile is not None
    assert changed.hardware_profile.vm_size == "Standard_NC8as_T4_v3"
    place.advance(3600)
    assert place.bill()["costUsd"] == pytest.approx(T4_PRICE + 0.752, rel=0.01)
    too_large = "Standard_NC144ds_xl_RTXPRO6000BSE_v6"
    for size, code in (("Standard_Foo", "InvalidParameter"), (too_large, "OperationNotAllowed")):
        wanted: Any = {"properties": {"hardwareProfile": {"vmSize": size}}}
        with pytest.raises(HttpResponseError) as caught:
            place.machines.begin_update(place.group, "m", wanted).result()
        assert error_of(caught.value).code == code


def test_deallocated_vm_can_be_resized(place: Place) -> None:
    place.make()
    place.machines.begin_deallocate(place.group, "m").result()
    larger: Any = {"properties": {"hardwareProfile": {"vmSize": "Standard_NC8as_T4_v3"}}}
    changed: Any = place.machines.begin_update(place.group, "m", larger).result()
    assert changed.hardware_profile.vm_size == "Standard_NC8as_T4_v3"
    assert place.status("m") == ("ProvisioningState/succeeded", "deallocated")
    before = place.bill()["costUsd"]
    place.advance(3600)
    assert place.bill()["costUsd"] == before
    place.machines.begin_start(place.group, "m").result()
    place.advance(3600)
    assert place.bill()["costUsd"] - before == pytest.approx(0.752, rel=0.01)


@pytest.mark.parametrize("power", ["running", "deallocated"])
def test_tags_change_quickly_in_any_power_state(place: Place, power: str) -> None:
    made = place.make()
    if power == "deallocated":
        place.machines.begin_deallocate(place.group, "m").result()
    place.sandbox.control("POST", "profile", {"profile": "realistic"})
    try:
        status, _, answer = place.sandbox.http("PATCH", place.path("m"), {"tags": {"lease": "tomorrow"}})
        assert (status, answer["tags"]) == (200, {"lease": "tomorrow"})
        place.advance(5)
        found: Any = place.machines.get(place.group, "m")
        assert (found.provisioning_state, found.tags) == ("Succeeded", {"lease": "tomorrow"})
        # Another change of the machine takes longer.
        place.sandbox.http("PATCH", place.path("m"), {"tags": {}, "identity": {"type": "SystemAssigned"}})
        assert place.machines.get(place.group, "m").provisioning_state == "Updating"
        place.advance(200)
    finally:
        place.sandbox.control("POST", "profile", {"profile": "instant"})
    assert place.status("m") == ("ProvisioningState/succeeded", power)
    assert place.machines.get(place.group, "m").vm_id == made.vm_id


def test_identities(place: Place) -> None:
    place.make()
    given: Any = {"identity": {"type": "SystemAssigned"}}
    identity: Any = place.machines.begin_update(place.group, "m", given).result().identity
    assert identity.tenant_id == place.sandbox.server.cloud.tenant
    again: Any = place.put("m", place.machines.get(place.group, "m")).identity
    assert again.principal_id == identity.principal_id
    stored = place.sandbox.server.cloud.store.get(place.id("m"))
    assert stored is not None
    assert stored.hidden["principalId"] == identity.principal_id
    nothing: Any = {"identity": {"type": "None"}}
    assert place.machines.begin_update(place.group, "m", nothing).result().identity is None


# Deleting


def test_deletion_deletes_resources_with_delete_option(place: Place) -> None:
    disks = [{"lun": 0, "createOption": "Empty", "diskSizeGB": 4, "name": "data", "deleteOption": "Delete"}]
    body = place.body("m", networkProfile=inline(place.subnet))
    body = settings(settings(body, f"{SYSTEM}.deleteOption", "Delete"), f"{STORAGE}.dataDisks", disks)
    place.put("m", body)
    assert len(place.left()) == 5
    status, headers, answer = place.sandbox.http("DELETE", place.path("m", query="&forceDeletion=true"))
    assert (status, answer) == (202, None)
    assert "azure-asyncoperation" in headers
    assert "monitor=true" in headers["location"]
    assert place.left() == set()
    assert place.bill()["powerState"] == "deleted"


def test_deletion_keeps_other_resources(place: Place) -> None:
    disks = [{"lun": 0, "createOption": "Empty", "diskSizeGB": 4, "name": "data"}]
    profile_of_network = {"networkInterfaces": [{"id": place.interface("nic", "ip")}]}
    body = place.body("m", networkProfile=profile_of_network)
    place.put("m", settings(settings(body, f"{SYSTEM}.name", "system"), f"{STORAGE}.dataDisks", disks))
    place.machines.begin_delete(place.group, "m").result()
    assert place.left() == {"disks/system", "disks/data", "networkInterfaces/nic", "publicIPAddresses/ip"}
    assert place.sandbox.network.network_interfaces.get(place.group, "nic").virtual_machine is None
    assert {disk.disk_state for disk in place.disks.list_by_resource_group(place.group)} == {"Unattached"}
    kept: Any = {
        "osType": "Linux",
        "createOption": "Attach",
        "managedDisk": {"id": place.disks.get(place.group, "system").id},
    }
    again = settings(settings(body, SYSTEM, kept), LOGIN, None)
    del again["properties"]["storageProfile"]["imageReference"]
    place.put("again", again)
    assert place.disks.get(place.group, "system").managed_by == place.id("again")
    assert guest_facts(place.sandbox.server.cloud, place.id("again"))["username"] == "ada"


def test_inline_public_ip_can_be_kept(place: Place) -> None:
    place.make("m", networkProfile=inline(place.subnet, address_delete="Detach"))
    place.machines.begin_delete(place.group, "m").result()
    assert {name.split("/")[0] for name in place.left()} == {"publicIPAddresses", "disks"}


def test_name_can_be_reused_after_deletion(place: Place) -> None:
    first = place.make()
    place.advance(3600)
    place.machines.begin_delete(place.group, "m").result()
    second = place.make()
    assert second.vm_id != first.vm_id
    lives = place.lives("m")
    assert [life["powerState"] for life in lives] == ["deleted", "running"]
    assert lives[0]["costUsd"] == pytest.approx(T4_PRICE, rel=0.01)


# As recorded


def test_vm_answers_match_recordings(place: Place) -> None:
    http = place.sandbox.http
    machines = place.path("m").replace("/virtualMachines/m", "/virtualMachines")
    check_like(recorded("vm_list_200"), *http("GET", machines))
    disks = [{"lun": number, "createOption": "Empty", "diskSizeGB": 1023} for number in range(2)]
    body = settings(place.body("m"), f"{STORAGE}.dataDisks", disks)
    body = settings(body, f"{SYSTEM}.name", "system")
    check_like(recorded("vm_put_201"), *http("PUT", place.path("m"), body))
    check_like(recorded("vm_get_after_create"), *http("GET", place.path("m")))
    place.sandbox.server.cloud.guests_ready.add(place.id("m").lower())
    check_like(recorded("vm_instance_view_running"), *http("GET", place.path("m", "/instanceView")))
    patch = recorded("vm_patch_200")
    patch["response_headers"]["Azure-AsyncOperation"] = "sometimes none"
    del patch["response_body"]["identity"]
    check_like(patch, *http("PATCH", place.path("m"), {"properties": {}}))
    assign = recorded("vm_identity_assign")
    check_like(assign, *http("PATCH", place.path("m"), assign["request_body"]))
    check_like(recorded("vm_delete_202"), *http("DELETE", place.path("m")))


def test_spot_vm_answers_match_recordings(place: Place) -> None:
    place.spot("s")
    place.sandbox.server.cloud.guests_ready.add(place.id("s").lower())
    view = place.path("s", query="&$expand=instanceView")
    check_like(recorded("vm_get_spot_expand_instanceview"), *place.sandbox.http("GET", view))
    body = place.sandbox.http("GET", place.path("s"))[2]
    del body["properties"]["storageProfile"]["imageReference"]
    check_like(recorded("vm_put_update_spot_200"), *place.sandbox.http("PUT", place.path("s"), body))
