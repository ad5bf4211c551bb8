"""What the caller may do: as it is listed, and as it is enforced for a client that is a Reader only."""

import uuid
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError

from tests.integration.sandbox.machine_help import Place, error_of
from tests.integration.sandbox.servers import Sandbox
from tests.integration.sandbox.services.test_identity import API, CONTRIBUTOR, READER, Roles

LISTED = f"/providers/Microsoft.Authorization/permissions?{API}"


@pytest.fixture
def roles(sandbox: Sandbox) -> Roles:
    return Roles(sandbox)


def entry(*actions: str, without: tuple[str, ...] = ()) -> dict[str, list[str]]:
    return {"actions": list(actions), "notActions": list(without), "dataActions": [], "notDataActions": []}


def test_client_has_all_permissions(roles: Roles) -> None:
    for scope in (roles.subscription, roles.group, roles.group.replace("/resourceGroups/", "/resourcegroups/")):
        status, _, body = roles.sandbox.http("GET", f"{scope}{LISTED}")
        assert (status, body) == (200, {"value": [entry("*")]})


def test_permissions_of_a_missing_scope_return_404(roles: Roles) -> None:
    status, _, body = roles.sandbox.http("GET", f"{roles.group}x{LISTED}")
    assert (status, body["error"]["code"]) == (404, "ResourceGroupNotFound")
    status, _, body = roles.sandbox.http("GET", f"/subscriptions/{uuid.uuid4()}{LISTED}")
    assert (status, body["error"]["code"]) == (404, "SubscriptionNotFound")
    assert roles.sandbox.http("GET", f"{roles.group}{LISTED}", token=False)[0] == 401


def test_identity_has_the_permissions_of_its_roles_at_their_scope(roles: Roles) -> None:
    principal = roles.identity()["properties"]["principalId"]

    def listed(scope: str) -> Any:
        status, body = roles.call(principal, "GET", f"{scope}{LISTED}")
        assert status == 200
        return body["value"]

    assert (listed(roles.subscription), listed(roles.group)) == ([], []), "also who has no role may ask"
    machine = f"{roles.group}/providers/Microsoft.ManagedIdentity/userAssignedIdentities/worker"
    roles.assign(principal, CONTRIBUTOR, machine)
    assert listed(roles.group) == [], "a role further down does not reach up"
    roles.assign(principal, roles.own_role("Microsoft.Compute/*", without=("*/delete",)), roles.group)
    own = entry("Microsoft.Compute/*", without=("*/delete",))
    assert (listed(roles.subscription), listed(roles.group)) == ([], [own])
    roles.assign(principal, READER, roles.subscription)
    assert listed(roles.subscription) == [entry("*/read")]
    assert sorted(listed(roles.group), key=str) == sorted([own, entry("*/read")], key=str)


def test_reader_can_only_read(sandbox: Sandbox) -> None:
    place = Place(sandbox)
    place.make()
    place.fault("read-only")
    groups = sandbox.resource.resource_groups
    assert groups.get("demo").name == "demo"
    assert groups.check_existence("demo")
    assert [machine.name for machine in place.machines.list(place.group)] == ["m"]
    assert place.status("m")[1] == "running"
    before, resources = sandbox.control("GET", "status")["resources"], place.left()
    refused: list[tuple[str, str, Any, str]] = [
        ("PUT", place.path("other"), {}, "Microsoft.Compute/virtualMachines/write"),
        ("PATCH", place.path("m"), {"tags": {}}, "Microsoft.Compute/virtualMachines/write"),
        ("DELETE", place.path("m"), None, "Microsoft.Compute/virtualMachines/delete"),
        ("POST", place.path("m", "/deallocate"), None, "Microsoft.Compute/virtualMachines/deallocate/action"),
    ]
    client = sandbox.server.cloud.store.setting("client-object-id")
    for method, path, body, action in refused:
        status, _, answer = sandbox.http(method, path, body)
        assert (status, answer["error"]["code"]) == (403, "AuthorizationFailed"), path
        scope = path.partition("?")[0].removesuffix("/deallocate")
        assert f"authorization to perform action '{action}' over scope '{scope}'" in answer["error"]["message"]
    with pytest.raises(HttpResponseError) as caught:
        groups.create_or_update("new", {"location": "eastus"})
    assert (caught.value.status_code, error_of(caught.value).code) == (403, "AuthorizationFailed")
    assert f"'{client}'" in str(error_of(caught.value).message)
    assert "'Microsoft.Resources/subscriptions/resourceGroups/write'" in str(error_of(caught.value).message)
    assert (sandbox.control("GET", "status")["resources"], place.left()) == (before, resources)
    for scope in (f"/subscriptions/{sandbox.subscription}", place.id("m").partition("/providers/")[0]):
        assert sandbox.http("GET", f"{scope}{LISTED}")[2] == {"value": [entry("*/read")]}


def test_read_only_applies_until_it_is_cleared(roles: Roles) -> None:
    roles.sandbox.control("POST", "faults", {"name": "read-only"})
    path = f"{roles.subscription}/resourceGroups/new?{API}"
    for _ in range(3):
        assert roles.sandbox.http("PUT", path, {"location": "eastus"})[0] == 403
    roles.sandbox.control("DELETE", "faults")
    assert roles.sandbox.http("PUT", path, {"location": "eastus"})[0] == 201
    assert roles.sandbox.http("GET", f"{roles.group}{LISTED}")[2] == {"value": [entry("*")]}


def test_read_only_does_not_affect_internal_requests(sandbox: Sandbox) -> None:
    place, evicted = Place(sandbox), Place(sandbox, group="evicted")
    place.make()
    evicted.spot("spot")
    sandbox.control("POST", "profile", {"profile": "realistic"})
    group = place.id("m").partition("/providers/")[0]
    assert sandbox.http("DELETE", f"{group}?{API}")[0] == 202
    place.fault("read-only")
    sandbox.control("POST", "faults", {"name": "evict", "resource": "spot"})
    # The deletion started before the fault; most of it is still to do.
    assert "virtualMachines/m" in place.left()
    for _ in range(10):
        place.advance(60)
    assert sandbox.http("GET", f"{group}?{API}")[0] == 404
    assert evicted.status("spot")[1] == "deallocated"


def test_read_only_does_not_affect_identities(roles: Roles) -> None:
    principal = roles.identity()["properties"]["principalId"]
    roles.assign(principal, CONTRIBUTOR, roles.group)
    roles.sandbox.control("POST", "faults", {"name": "read-only"})
    identity = f"{roles.group}/providers/Microsoft.ManagedIdentity/userAssignedIdentities/other"
    assert roles.sandbox.http("PUT", f"{identity}?{API}", {"location": "eastus"})[0] == 403
    assert roles.call(principal, "PUT", identity, {"location": "eastus"})[0] == 201
