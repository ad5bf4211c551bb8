"""What Azure refuses before anything of a machine is made."""

import base64
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError

from gpuinfra.sandbox.kernel.call import Answer
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.errors import ArmError
from gpuinfra.sandbox.kernel.internal_calls import call_inside
from gpuinfra.sandbox.services.registry import SERVICES
from gpuinfra.sandbox.web.authority import make_identities
from tests.integration.sandbox.machine_help import (
    A100,
    GENERATION_1,
    KEYS,
    LOGIN,
    STORAGE,
    SYSTEM,
    T4,
    VERSION,
    Place,
    error_of,
    full_body,
    settings,
)
from tests.integration.sandbox.servers import Sandbox, Servers


@pytest.fixture(scope="module")
def shared(servers: Servers) -> Iterator[Place]:
    """A place in which nothing is left."""
    with servers.lend() as lent:
        lent.make_room()
        yield Place(lent, group="shared")


@pytest.fixture(scope="module")
def plain(shared: Place) -> Any:
    """The body of a machine that could be made."""
    return shared.body("refused")


def sshd_key(kind: bytes, *parts: bytes) -> str:
    blob = b"".join(len(part).to_bytes(4, "big") + part for part in (kind, *parts))
    return f"{kind.decode()} {base64.b64encode(blob).decode()}"


NETWORK = "properties.networkProfile"
REFUSED: list[tuple[str, Any, str]] = [
    ("location", None, "LocationRequired"),
    ("location", "atlantis", "LocationNotAvailableForResourceType"),
    ("properties.hardwareProfile", None, "InvalidParameter"),
    ("properties.hardwareProfile.vmSize", "Standard_NC6", "InvalidParameter"),
    ("properties.hardwareProfile.vmSize", "Standard_NCC40ads_H100_v5", "SkuNotAvailable"),
    ("zones", ["4"], "InvalidAvailabilityZone"),
    ("zones", ["1", "2"], "InvalidParameter"),
    ("zones", [1], "InvalidAvailabilityZone"),
    (STORAGE, None, "InvalidParameter"),
    (f"{STORAGE}.imageReference", None, "InvalidParameter"),
    (f"{STORAGE}.imageReference.sku", "2504", "PlatformImageNotFound"),
    (f"{STORAGE}.imageReference.version", "1.2.3", "PlatformImageNotFound"),
    (f"{STORAGE}.imageReference.id", "/subscriptions/x/images/y", "ImageNotFound"),
    (f"{SYSTEM}.createOption", None, "InvalidParameter"),
    (f"{SYSTEM}.diskSizeGB", 30, "OperationNotAllowed"),
    (f"{SYSTEM}.diskSizeGB", 5000, "InvalidParameter"),
    (f"{SYSTEM}.managedDisk.storageAccountType", "Floppy", "InvalidParameter"),
    (f"{SYSTEM}.name", "-disk", "InvalidParameter"),
    (f"{STORAGE}.dataDisks", [{"lun": 0, "createOption": "Empty"}], "InvalidParameter"),
    (
        f"{STORAGE}.dataDisks",
        [{"lun": n, "createOption": "Empty", "diskSizeGB": 1} for n in range(9)],
        "OperationNotAllowed",
    ),
    (f"{STORAGE}.dataDisks", [{"lun": 0, "createOption": "Empty", "diskSizeGB": 1}] * 2, "InvalidParameter"),
    (
        f"{STORAGE}.dataDisks",
        [
            {
                "lun": 0,
                "createOption": "Attach",
                "managedDisk": {"id": "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/disks/d"},
            }
        ],
        "NotFound",
    ),
    (LOGIN, None, "InvalidParameter"),
    (f"{LOGIN}.computerName", "under_score", "InvalidParameter"),
    (f"{LOGIN}.computerName", "x" * 65, "InvalidParameter"),
    (f"{LOGIN}.adminUsername", "root", "InvalidParameter"),
    (f"{LOGIN}.adminUsername", "a b", "InvalidParameter"),
    (f"{LOGIN}.adminPassword", "simple", "InvalidParameter"),
    (f"{LOGIN}.customData", "not base64", "InvalidParameter"),
    (f"{LOGIN}.customData", "QUJD" * 22000, "InvalidParameter"),
    (f"{LOGIN}.windowsConfiguration", {}, "InvalidParameter"),
    (KEYS, None, "InvalidParameter"),
    (f"{KEYS}.publicKeys", [{"keyData": sshd_key(b"ecdsa-sha2-nistp256", b"nistp256", b"x" * 65)}], "InvalidParameter"),
    (f"{KEYS}.publicKeys", [{"keyData": sshd_key(b"ssh-rsa", b"\1\0\1", b"\xff" * 128)}], "InvalidParameter"),
    (f"{KEYS}.publicKeys", [{"keyData": "ssh-ed25519 AAAA"}], "InvalidParameter"),
    (f"{KEYS}.publicKeys", [{"path": "/root/.ssh/authorized_keys", "keyData": "x"}], "InvalidParameter"),
    (NETWORK, None, "InvalidParameter"),
    (f"{NETWORK}.networkInterfaces", [], "InvalidParameter"),
    (f"{NETWORK}.networkInterfaces", [{"id": "/subscriptions/nowhere"}], "InvalidResourceReference"),
    ("properties.evictionPolicy", "Delete", "EvictionPolicyCanBeSetOnlyOnAzureSpotVirtualMachines"),
    ("properties.billingProfile", {"maxPrice": 1}, "InvalidParameter"),
    ("properties.priority", "Urgent", "InvalidParameter"),
    ("plan", {"name": "a", "publisher": "b", "product": "c"}, "VMMarketplaceInvalidInput"),
    ("tags", {"x": "y" * 257}, "InvalidTagValue"),
    ("identity", {"type": "Passport"}, "InvalidParameter"),
    ("identity", {"type": "UserAssigned", "userAssignedIdentities": {"/missing": {}}}, "FailedIdentityOperation"),
    ("properties.availabilitySet", {"id": "x"}, "NotInSandbox"),
]


@pytest.mark.parametrize(("path", "value", "code"), REFUSED, ids=lambda part: str(part)[:40])
def test_invalid_vm_body_is_refused(shared: Place, plain: Any, path: str, value: Any, code: str) -> None:
    shared.refused("refused", settings(plain, path, value), code)


@pytest.mark.parametrize("name", ["_m", "m-", "m.", "a b", "m*", "m" * 81])
def test_invalid_vm_name_is_refused(shared: Place, plain: Any, name: str) -> None:
    status, _, answer = shared.sandbox.http("PUT", shared.path(name.replace(" ", "%20")), plain)
    assert (status, answer["error"]["code"], answer["error"]["target"]) == (400, "InvalidParameter", "vmName")


def test_zone_is_refused_in_a_region_without_zones(server: Sandbox) -> None:
    place = Place(server, "northcentralus", "north")
    place.refused("m", {**place.body("m"), "zones": ["1"]}, "ResourceTypeNotSupportAvailabilityZones")


def test_unknown_size_error_lists_valid_sizes(shared: Place, plain: Any) -> None:
    body = settings(plain, "properties.hardwareProfile.vmSize", "Standard_Foo")
    error = shared.refused("refused", body, "InvalidParameter")
    assert (error.status_code, error_of(error).target) == (400, "vmSize")
    assert T4 in error_of(error).message
    assert "NCC40" not in error_of(error).message


def test_size_requires_an_image_of_its_generation(shared: Place, plain: Any) -> None:
    body = settings(plain, f"{STORAGE}.imageReference", GENERATION_1)
    error = shared.refused("refused", settings(body, "properties.hardwareProfile.vmSize", A100), "BadRequest")
    assert "cannot boot Hypervisor Generation '1'" in error_of(error).message


def test_nic_of_another_region_is_not_found(server: Sandbox, place: Place) -> None:
    elsewhere = Place(server, "westus2", "elsewhere")
    reference = {"networkInterfaces": [{"id": elsewhere.interface("far")}]}
    place.refused("m", place.body("m", networkProfile=reference), "InvalidResourceReference")


def test_nic_belongs_to_one_vm(place: Place) -> None:
    used = {"networkInterfaces": [{"id": place.interface("only")}]}
    place.make("first", networkProfile=used)
    with pytest.raises(HttpResponseError):
        place.make("second", networkProfile=used)
    assert {name for name in place.left() if "second" in name} == set()


def test_existing_disk_name_is_refused(place: Place) -> None:
    body = settings(place.body("m"), f"{SYSTEM}.name", "system")
    place.put("m", body)
    other = settings(place.body("n"), f"{SYSTEM}.name", "SYSTEM")
    error = place.refused("n", other, "ConflictingUserInput")
    assert "Only CreateOption.Attach is supported" in error_of(error).message


def test_vm_can_have_several_nics(place: Place) -> None:
    ids = [place.interface(f"nic-{number}") for number in range(3)]
    three: list[Any] = [{"id": one} for one in ids]
    place.refused("m", place.body("m", networkProfile={"networkInterfaces": three}), "NetworkInterfaceCountExceeded")
    code = "VirtualMachineMustHaveOneNetworkInterfaceAsPrimary"
    place.refused("m", place.body("m", networkProfile={"networkInterfaces": three[:2]}), code)
    three[1]["properties"] = {"primary": True}
    place.make("m", networkProfile={"networkInterfaces": three[:2]})
    flags = [place.sandbox.network.network_interfaces.get(place.group, f"nic-{number}").primary for number in range(2)]
    assert flags == [False, True]


def test_restricted_size_is_refused(place: Place) -> None:
    place.fault("restricted", resource=T4, region="eastus", count=0)
    error = place.refused("m", place.body("m"), "SkuNotAvailable")
    assert error.status_code == 409
    assert "aka.ms/azureskunotavailable" in error_of(error).message


def test_quota_is_enforced(alone: Place) -> None:
    alone.sandbox.control("POST", "quota", {"region": "eastus", "family": "Standard NCASv3_T4 Family", "limit": 8})
    alone.make("one")
    alone.make("two")
    error = alone.refused("three", alone.body("three"), "OperationNotAllowed")
    assert error.status_code == 409
    message = error_of(error).message
    assert "exceeding approved Standard NCASv3_T4 Family Cores quota" in message
    assert "Current Limit: 8, Current Usage: 8, Additional Required: 4, (Minimum) New Limit Required: 12" in message
    alone.machines.begin_deallocate(alone.group, "one").result()
    alone.make("three")
    with pytest.raises(HttpResponseError) as caught:
        alone.machines.begin_start(alone.group, "one").result()
    assert error_of(caught.value).code == "OperationNotAllowed"
    assert alone.status("one")[1] == "deallocated"
    alone.spot("four")


def test_image_with_a_plan_requires_plan_and_terms(place: Place) -> None:
    plan = {"publisher": "fortinet", "product": "fortinet_fortigate-vm_v5", "name": "fortinet_fg-vm_payg"}
    image = {"publisher": "fortinet", "offer": plan["product"], "sku": plan["name"], "version": "latest"}
    body = settings(place.body("m"), f"{STORAGE}.imageReference", image)
    place.refused("m", body, "VMMarketplaceInvalidInput")
    place.refused("m", {**body, "plan": {**plan, "name": "other"}}, "VMMarketplaceInvalidInput")
    place.refused("m", {**body, "plan": plan}, "MarketplacePurchaseEligibilityFailed")
    terms = (
        f"/subscriptions/{place.sandbox.subscription}/providers/Microsoft.MarketplaceOrdering/offerTypes/virtualmachine"
        f"/publishers/fortinet/offers/{plan['product']}/plans/{plan['name']}/agreements/current?{VERSION}"
    )
    assert place.sandbox.http("PUT", terms, {"properties": {"accepted": True}})[0] == 200
    made = place.put("m", {**body, "plan": plan})
    assert made.plan.name == plan["name"]


def test_spot_settings_are_validated(place: Place) -> None:
    cheap = place.body("m", priority="Spot", billingProfile={"maxPrice": 0.1})
    error = place.refused("m", cheap, "SpotPriceGreaterThanProvidedMaxPrice")
    assert "0.1578 USD" in error_of(error).message
    place.refused("m", settings(cheap, "properties.billingProfile.maxPrice", 0), "MaxPriceValueInvalid")
    made = place.put("m", settings(cheap, "properties.billingProfile.maxPrice", 0.2))
    assert (made.priority, made.eviction_policy, made.billing_profile.max_price) == ("Spot", "Deallocate", 0.2)
    change: Any = {"properties": {"billingProfile": {"maxPrice": 0.3}}}
    with pytest.raises(HttpResponseError) as caught:
        place.machines.begin_update(place.group, "m", change).result()
    assert error_of(caught.value).code == "MaxPriceChangeNotAllowedForAllocatedVMs"
    place.machines.begin_deallocate(place.group, "m").result()
    assert place.machines.begin_update(place.group, "m", change).result().billing_profile.max_price == 0.3


def test_no_body_breaks_the_server(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path, SERVICES)
    make_identities(cloud.store)
    base = f"/subscriptions/{cloud.subscription}/resourceGroups/demo"
    subnet = {"name": "inner", "properties": {"addressPrefix": "10.0.0.0/20"}}
    space = {"addressSpace": {"addressPrefixes": ["10.0.0.0/16"]}, "subnets": [subnet]}
    network = f"{base}/providers/Microsoft.Network/virtualNetworks/net"
    ask(cloud, "PUT", base, {"location": "eastus"})
    ask(cloud, "PUT", network, {"location": "eastus", "properties": space})
    machine = f"{base}/providers/Microsoft.Compute/virtualMachines/odd"
    body = full_body(f"{network}/subnets/inner")
    assert ask(cloud, "PUT", machine, body).status == 201
    values: tuple[Any, ...] = (None, 0, "x", [], {}, True, [1], {"x": 1}, "\u0000é" * 50)
    for path in places(body):
        for value in values:
            changed = replaced(body, path, value)
            for method in ("PUT", "PATCH"):
                answer = ask(cloud, method, machine, changed)
                assert answer.status in (200, 400, 404, 409, 501), (method, path, value, answer)
            ask(cloud, "PUT", f"{machine}-{len(path)}", changed)


def ask(cloud: Cloud, method: str, path: str, body: Any) -> Answer:
    """What a request would be answered, without the way there."""
    try:
        with cloud.store.transaction():
            answer = call_inside(cloud, method, path, body)
    except ArmError as error:
        return Answer(error.status, error.envelope())
    cloud.settle()
    return answer


def places(body: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ()
    for name, value in inner:
        yield (*path, name)
        yield from places(value, (*path, name))


def replaced(body: Any, path: tuple[Any, ...], value: Any) -> Any:
    changed = copy.deepcopy(body)
    inner = changed
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    return changed
