"""Identities, roles, what tokens of machines may do, and the metadata that a guest sees."""

import http.client
import json
import uuid
from typing import Any

import pytest

from gpuinfra.remote import registry_login
from gpuinfra.sandbox.web.authority import Authority, new_secret
from tests.integration.sandbox.machine_help import Place
from tests.integration.sandbox.recordings import DATA, shape
from tests.integration.sandbox.servers import WAIT_SECONDS, Sandbox

API = "api-version=2022-04-01"
READER, CONTRIBUTOR = "acdd72a7-3385-48ef-bd42-f606fba81ae7", "b24988ac-6180-42a0-ab88-20f7382dd24c"


class Roles:
    """Identities and what they may do, in a group called demo."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.subscription = f"/subscriptions/{sandbox.subscription}"
        self.group = f"{self.subscription}/resourceGroups/demo"
        sandbox.resource.resource_groups.create_or_update("demo", {"location": "eastus"})

    def identity(self, name: str = "worker") -> Any:
        path = f"{self.group}/providers/Microsoft.ManagedIdentity/userAssignedIdentities/{name}?{API}"
        return self.sandbox.http("PUT", path, {"location": "eastus"})[2]

    def definition(self, name: str) -> str:
        return f"{self.subscription}/providers/Microsoft.Authorization/roleDefinitions/{name}"

    def own_role(self, *actions: str, without: tuple[str, ...] = ()) -> str:
        name = str(uuid.uuid4())
        permission = {"actions": list(actions), "notActions": list(without)}
        properties = {
            "roleName": f"Role {name}",
            "permissions": [permission],
            "assignableScopes": [self.subscription],
        }
        status, _, body = self.sandbox.http("PUT", f"{self.definition(name)}?{API}", {"properties": properties})
        assert status == 201, body
        return name

    def path(self, scope: str, name: str = "") -> str:
        return f"{scope}/providers/Microsoft.Authorization/roleAssignments/{name}".rstrip("/") + f"?{API}"

    def assign(self, principal: str, role: str, scope: str, name: str | None = None) -> tuple[int, Any]:
        body = {"properties": {"principalId": principal, "roleDefinitionId": self.definition(role)}}
        status, _, answer = self.sandbox.http("PUT", self.path(scope, name or str(uuid.uuid4())), body)
        return status, answer

    def call(self, principal: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        cloud = self.sandbox.server.cloud
        token = Authority(cloud.store, cloud.clock).token(principal, "client", owner=False)["access_token"]
        headers = {"Authorization": f"Bearer {token}"}
        query = "" if "?" in path else f"?{API}"
        status, _, answer = self.sandbox.http(method, f"{path}{query}", body, token=False, headers=headers)
        return status, answer


@pytest.fixture
def roles(sandbox: Sandbox) -> Roles:
    return Roles(sandbox)


def metadata(sandbox: Sandbox, path: str, method: str = "GET", body: Any = None, **headers: str) -> tuple[int, Any]:
    """What a guest asks, as plain HTTP."""
    connection = http.client.HTTPConnection(
        "127.0.0.1", sandbox.server.metadata_socket.getsockname()[1], timeout=WAIT_SECONDS
    )
    try:
        sent = {"Metadata": "true", **headers}
        connection.request(method, path, None if body is None else json.dumps(body), sent)
        response = connection.getresponse()
        text = response.read().decode()
    finally:
        connection.close()
    kind = response.headers.get("content-type", "")
    return response.status, json.loads(text) if "json" in kind else text


def recorded(name: str) -> Any:
    file = DATA / "arm-golden" / name
    if not file.exists():
        pytest.skip("the recorded traffic is not here")
    return json.loads(file.read_text())


def test_identity_answer_matches_azure(roles: Roles) -> None:
    there = recorded("user_assigned_identity_put_201.json")
    path = f"{roles.group}/providers/Microsoft.ManagedIdentity/userAssignedIdentities/id1?{API}"
    status, headers, body = roles.sandbox.http("PUT", path, there["request_body"])
    assert (status, shape(body)) == (201, shape(there["response_body"]))
    assert headers["location"] == body["id"]
    assert "azure-asyncoperation" not in headers
    status, _, again = roles.sandbox.http("PUT", path, {"location": "westus", "tags": {"b": "c"}})
    assert (status, again["properties"]) == (200, body["properties"])
    assert roles.sandbox.http("GET", path)[2] == again
    listed = roles.sandbox.http("GET", path.replace("/id1", ""))[2]
    assert listed["value"] == [again]
    assert [roles.sandbox.http("DELETE", path)[0] for _ in range(2)] == [200, 204]
    assert roles.sandbox.http("PUT", path.replace("id1", "x"), {"location": "westus"})[0] == 400


def test_role_assignment_answer_matches_azure(roles: Roles) -> None:
    there = recorded("role_assignment_put_201.json")["response_body"]
    made = roles.identity()
    principal, scope, name = made["properties"]["principalId"], made["id"], str(uuid.uuid4())
    status, body = roles.assign(principal, READER, scope, name)
    assert (status, set(shape(body))) == (201, set(shape(there)))
    assert roles.assign(principal, READER, scope, name)[0] == 200
    assert roles.assign(principal, READER, scope)[1]["error"]["code"] == "RoleAssignmentExists"
    assert roles.assign(principal, CONTRIBUTOR, scope, name)[1]["error"]["code"] == "RoleAssignmentUpdateNotPermitted"
    assert roles.sandbox.http("GET", roles.path(scope, name))[2] == body
    refused = recorded("err_400_role_assignment_PrincipalNotFound.json")["response_body"]["error"]
    status, answer = roles.assign(str(uuid.uuid4()), READER, scope)
    assert (status, answer["error"]["code"]) == (400, refused["code"])
    assert answer["error"]["message"].partition(". Check")[2] == refused["message"].partition(". Check")[2]
    assert [roles.sandbox.http("DELETE", roles.path(scope, name))[0] for _ in range(2)] == [200, 204]


def test_assignments_are_listed_at_above_and_below_a_scope(roles: Roles) -> None:
    one, two = (roles.identity(name)["properties"]["principalId"] for name in ("one", "two"))
    roles.assign(one, READER, roles.subscription)
    roles.assign(one, CONTRIBUTOR, roles.group)
    roles.assign(two, READER, roles.identity("two")["id"])

    def count(scope: str, text: str = "") -> int:
        query = f"&$filter={text.replace(' ', '%20')}" if text else ""
        status, _, body = roles.sandbox.http("GET", f"{roles.path(scope)}{query}")
        assert status == 200, body
        return len(body["value"])

    assert (count(roles.subscription), count(roles.subscription, "atScope()")) == (3, 1)
    assert (count(roles.group), count(roles.group, "atScope()")) == (3, 2)
    assert count(roles.group, f"principalId eq '{one}'") == 2
    assert count(roles.group, f"atScope() and assignedTo('{two}')") == 0
    assert roles.sandbox.http("GET", f"{roles.path(roles.group)}&$filter=x")[0] == 400
    roles.sandbox.resource.resource_groups.begin_delete("demo").result()
    assert count(roles.subscription) == 1, "assignments go with their scope"


def test_role_definitions(roles: Roles) -> None:
    every = f"{roles.subscription}/providers/Microsoft.Authorization/roleDefinitions?{API}"
    listed = roles.sandbox.http("GET", f"{every}&$filter=roleName%20eq%20'Virtual%20Machine%20Contributor'")[2]["value"]
    assert [each["name"] for each in listed] == ["9980e02c-c2be-4d73-94e8-173b1dc7cf3c"]
    own = roles.own_role("Microsoft.Compute/*/read")
    assert len(roles.sandbox.http("GET", every)[2]["value"]) == 5
    path = f"{roles.definition(own)}?{API}"
    assert roles.sandbox.http("GET", path)[2]["properties"]["type"] == "CustomRole"
    name = str(uuid.uuid4())
    roles.assign(roles.identity()["properties"]["principalId"], own, roles.group, name)
    assert roles.sandbox.http("DELETE", path)[2]["error"]["code"] == "RoleDefinitionHasAssignments"
    roles.sandbox.http("DELETE", roles.path(roles.group, name))
    assert [roles.sandbox.http("DELETE", path)[0] for _ in range(2)] == [200, 204]
    assert roles.sandbox.http("DELETE", f"{roles.definition(READER)}?{API}")[0] == 403
    scopes = {"assignableScopes": [roles.subscription]}
    bad: list[Any] = [
        None,
        {"properties": {"roleName": 3, **scopes}},
        {"properties": {"roleName": "x"}},
        {"properties": {"roleName": "x", "assignableScopes": ["/"]}},
        {"properties": {"roleName": "x", "permissions": {}, **scopes}},
        {"properties": {"roleName": "x", "permissions": [{"actions": [3]}], **scopes}},
        {"properties": {"roleName": "x", "permissions": ["*"], **scopes}},
    ]
    for body in bad:
        assert roles.sandbox.http("PUT", path, body)[0] == 400, body
    assert roles.sandbox.http("PUT", f"{roles.definition('no-guid')}?{API}", {"properties": {}})[0] == 400
    taken = {"properties": {"roleName": "owner", **scopes}}
    assert roles.sandbox.http("PUT", path, taken)[2]["error"]["code"] == "RoleDefinitionWithSameNameExists"


def test_role_allows_its_actions_at_its_scope(roles: Roles) -> None:
    principal = roles.identity()["properties"]["principalId"]
    other = f"{roles.subscription}/resourceGroups/demo2"
    roles.sandbox.http("PUT", f"{other}?{API}", {"location": "eastus"})
    status, body = roles.call(principal, "GET", roles.group)
    assert (status, body["error"]["code"]) == (403, "AuthorizationFailed")
    action = "Microsoft.Resources/subscriptions/resourceGroups/read"
    for said in (principal, action, roles.group):
        assert f"'{said}'" in body["error"]["message"]
    roles.assign(principal, READER, roles.group.upper().replace("/SUBSCRIPTIONS", "/subscriptions"))
    assert roles.call(principal, "GET", roles.group)[0] == 200
    assert roles.call(principal, "GET", f"{roles.group}/resources")[0] == 200
    assert roles.call(principal, "GET", other)[0] == 403, "a name that begins alike is another scope"
    assert roles.call(principal, "GET", f"{roles.subscription}/resourceGroups")[0] == 403
    assert roles.call(principal, "DELETE", roles.group)[0] == 403
    identity = f"{roles.group}/providers/Microsoft.ManagedIdentity/userAssignedIdentities/other"
    assert roles.call(principal, "PUT", identity, {"location": "eastus"})[0] == 403
    roles.assign(principal, CONTRIBUTOR, roles.group)
    assert roles.call(principal, "PUT", identity, {"location": "eastus"})[0] == 201
    assigned = roles.path(roles.group, str(uuid.uuid4()))
    assert roles.call(principal, "PUT", assigned, {"properties": {}})[0] == 403, "a contributor gives no roles away"


def test_deployment_has_the_rights_of_its_caller(roles: Roles) -> None:
    principal = roles.identity()["properties"]["principalId"]
    roles.assign(principal, roles.own_role("Microsoft.Resources/deployments/*"), roles.group)
    made = {
        "type": "Microsoft.ManagedIdentity/userAssignedIdentities",
        "name": "smuggled",
        "apiVersion": "2024-01-01",
        "location": "eastus",
    }
    template = {"$schema": "https://x", "contentVersion": "1.0.0.0", "resources": [made]}
    path = f"{roles.group}/providers/Microsoft.Resources/deployments/one"
    body = {"properties": {"mode": "Incremental", "template": template}}
    assert roles.call(principal, "PUT", path, body)[0] == 201
    properties = roles.call(principal, "GET", path)[1]["properties"]
    assert properties["provisioningState"] == "Failed"
    assert "AuthorizationFailed" in properties["error"]["details"][0]["message"]
    assert [each.name for each in roles.sandbox.resource.resources.list()] == ["worker"]


def test_vm_with_a_deallocate_role_can_only_deallocate_itself(roles: Roles) -> None:
    sandbox = roles.sandbox
    place = Place(sandbox)
    for name in ("m", "other"):
        place.put(name, {**place.body(name), "identity": {"type": "SystemAssigned"}})
    machine: Any = place.machines.get(place.group, "m")
    deallocate = "Microsoft.Compute/virtualMachines/deallocate/action"
    assert roles.assign(machine.identity.principal_id, roles.own_role(deallocate), place.id("m"))[0] == 201
    root = f"/{machine['properties']['vmId']}/metadata"
    resource = "https://management.azure.com/"
    status, token = metadata(sandbox, f"{root}/identity/oauth2/token?api-version=2018-02-01&resource={resource}")
    assert status == 200
    assert {type(value) for value in token.values()} == {str}
    assert set(token) == {
        *("access_token", "client_id", "expires_in", "expires_on", "ext_expires_in"),
        *("not_before", "resource", "token_type"),
    }
    headers = {"Authorization": f"Bearer {token['access_token']}"}

    def call(method: str, path: str) -> tuple[int, dict[str, str]]:
        status, received, _ = sandbox.http(method, path, token=False, headers=headers)
        return status, received

    assert call("POST", place.path("other", "/deallocate"))[0] == 403
    assert call("POST", place.path("m", "/start"))[0] == 403
    assert call("GET", place.path("m"))[0] == 403
    assert call("DELETE", place.path("m"))[0] == 403
    status, received = call("POST", place.path("m", "/deallocate"))
    assert status == 202
    assert call("GET", received["azure-asyncoperation"].removeprefix(sandbox.endpoint))[0] == 200
    assert place.status("m")[1] == "deallocated"
    assert metadata(sandbox, f"{root}/instance?api-version=2021-02-01")[0] == 404, "it no longer runs"


def test_identity_token_for_registries_is_refused_by_arm(roles: Roles, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = roles.sandbox
    place = Place(sandbox)
    place.put("m", {**place.body("m"), "identity": {"type": "SystemAssigned"}})
    machine: Any = place.machines.get(place.group, "m")
    deallocate = "Microsoft.Compute/virtualMachines/deallocate/action"
    assert roles.assign(machine.identity.principal_id, roles.own_role(deallocate), place.id("m"))[0] == 201
    port = sandbox.server.metadata_socket.getsockname()[1]
    monkeypatch.setenv("GPUINFRA_IMDS_ENDPOINT", f"http://127.0.0.1:{port}/{machine['properties']['vmId']}/metadata")
    token = registry_login._identity_token()
    assert registry_login._principal(token) == machine.identity.principal_id
    headers = {"Authorization": f"Bearer {token}"}
    assert sandbox.http("POST", place.path("m", "/deallocate"), token=False, headers=headers)[0] == 401
    assert place.status("m")[1] == "running"


def test_instance_metadata_describes_the_vm(roles: Roles) -> None:
    sandbox, place = roles.sandbox, Place(roles.sandbox)
    identity = roles.identity("assigned")
    card = place.interface("card", "address")
    network = {"networkInterfaces": [{"id": card, "properties": {"primary": True}}]}
    body = place.body("m", networkProfile=network, priority="Spot", evictionPolicy="Deallocate")
    place.put("m", {**body, "identity": {"type": "UserAssigned", "userAssignedIdentities": {identity["id"]: {}}}})
    place.make("plain")
    vm_id = place.machines.get(place.group, "m")["properties"]["vmId"]
    root, version = f"/{vm_id}/metadata", "api-version=2021-02-01"
    assert metadata(sandbox, f"{root}/instance?{version}", Metadata="no")[0] == 400
    assert metadata(sandbox, f"{root}/instance")[0] == 400
    assert metadata(sandbox, f"/{uuid.uuid4()}/metadata/instance?{version}")[0] == 404
    status, document = metadata(sandbox, f"{root}/instance?{version}")
    assert status == 200
    compute = document["compute"]
    wanted = {
        "name": "m",
        "vmId": vm_id,
        "vmSize": "Standard_NC4as_T4_v3",
        "location": place.location,
        "resourceGroupName": place.group,
        "subscriptionId": sandbox.subscription,
        "priority": "Spot",
        "osType": "Linux",
        "tags": "owner:me",
        "tagsList": [{"name": "owner", "value": "me"}],
    }
    assert {name: compute[name] for name in wanted} == wanted
    address: Any = sandbox.network.public_ip_addresses.get(place.group, "address")
    ipv4 = document["network"]["interface"][0]["ipv4"]
    assert ipv4["ipAddress"][0]["publicIpAddress"] == address.ip_address
    assert ipv4["ipAddress"][0]["privateIpAddress"].startswith("10.0.")
    assert ipv4["subnet"] == [{"address": "10.0.0.0", "prefix": "20"}]
    assert metadata(sandbox, f"{root}/instance/compute/vmId?{version}&format=text") == (200, vm_id)
    assert metadata(sandbox, f"{root}/instance/compute/absent?{version}&format=text")[0] == 404

    token = f"{root}/identity/oauth2/token?{version}&resource=https://management.azure.com/"
    assert metadata(sandbox, token)[1]["client_id"] == identity["properties"]["clientId"]
    assert metadata(sandbox, f"{token}&client_id={identity['properties']['clientId']}")[0] == 200
    sandbox.control("POST", "faults", {"name": "us-government"})
    assert metadata(sandbox, token)[1]["error"] == "invalid_resource"
    assert metadata(sandbox, token.replace("azure.com", "usgovcloudapi.net"))[0] == 200
    compute = metadata(sandbox, f"{root}/instance/compute?{version}")[1]
    assert compute["azEnvironment"] == "AzureUSGovernmentCloud"
    sandbox.control("DELETE", "faults")
    assert metadata(sandbox, f"{token}&client_id={uuid.uuid4()}")[0] == 400
    plain = place.machines.get(place.group, "plain")["properties"]["vmId"]
    assert metadata(sandbox, token.replace(vm_id, plain))[1]["error_description"] == "Identity not found"


def test_guest_sees_and_approves_its_eviction(roles: Roles) -> None:
    sandbox, place = roles.sandbox, Place(roles.sandbox)
    place.spot("m")
    vm_id = place.machines.get(place.group, "m")["properties"]["vmId"]
    path = f"/{vm_id}/metadata/scheduledevents?api-version=2020-07-01"
    before = metadata(sandbox, path)[1]
    assert before["Events"] == []
    place.machines.simulate_eviction(place.group, "m")
    after = metadata(sandbox, path)[1]
    assert after["DocumentIncarnation"] > before["DocumentIncarnation"]
    assert [(event["EventType"], event["Resources"]) for event in after["Events"]] == [("Preempt", ["m"])]
    bad: list[Any] = [None, [], {}, {"StartRequests": [{"EventId": "x"}]}, {"StartRequests": [{"EventId": []}]}]
    for body in bad:
        assert metadata(sandbox, path, "POST", body)[0] == 400, body
    assert place.status("m")[1] == "running"
    request = {"StartRequests": [{"EventId": after["Events"][0]["EventId"]}]}
    assert metadata(sandbox, path, "POST", request)[0] == 200
    assert place.status("m")[1] == "deallocated", "the eviction does not wait for the end of the notice"


def test_secret_never_begins_with_a_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter(["-first", "second"])
    monkeypatch.setattr("gpuinfra.sandbox.web.authority.secrets.token_urlsafe", lambda _: next(drawn))
    assert new_secret() == "second"
