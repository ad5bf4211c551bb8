"""Resource groups, lists of resources and tags, through the SDK where it has the operation."""

import json
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError

from tests.integration.sandbox.servers import Sandbox

GOLDEN = Path(__file__).parents[5] / "shared" / "data" / "arm-golden"
API = "api-version=2024-11-01"


def group_path(sandbox: Sandbox, name: str) -> str:
    return f"/subscriptions/{sandbox.subscription}/resourcegroups/{name}"


def make_group(sandbox: Sandbox, name: str, **more: Any) -> None:
    sandbox.resource.resource_groups.create_or_update(name, {"location": "southcentralus", **more})


def make_identity(sandbox: Sandbox, group: str, name: str, tags: dict[str, str] | None = None) -> Any:
    status, _, body = sandbox.http(
        "PUT",
        f"{group_path(sandbox, group)}/providers/Microsoft.ManagedIdentity/userAssignedIdentities/{name}?{API}",
        {"location": "southcentralus", "tags": tags or {}},
    )
    assert status in {200, 201}, body
    return body


def make_network(sandbox: Sandbox, group: str, name: str) -> None:
    subnet = {"name": "inner", "properties": {"addressPrefix": "10.0.0.0/24"}}
    body = {
        "location": "southcentralus",
        "properties": {"addressSpace": {"addressPrefixes": ["10.0.0.0/16"]}, "subnets": [subnet]},
    }
    sandbox.network.virtual_networks.begin_create_or_update(group, name, body).result()  # type: ignore[call-overload]


def make_interface(sandbox: Sandbox, group: str, name: str, network: str) -> None:
    subnet = f"{group_path(sandbox, group)}/providers/Microsoft.Network/virtualNetworks/{network}/subnets/inner"
    configuration = {"name": "one", "properties": {"subnet": {"id": subnet}}}
    body = {"location": "southcentralus", "properties": {"ipConfigurations": [configuration]}}
    sandbox.network.network_interfaces.begin_create_or_update(group, name, body).result()  # type: ignore[call-overload]


def code(caught: pytest.ExceptionInfo[HttpResponseError]) -> str:
    assert caught.value.error is not None
    return str(caught.value.error.code)


def test_group_can_be_created_read_changed_and_found_by_tag(sandbox: Sandbox) -> None:
    groups = sandbox.resource.resource_groups
    make_group(sandbox, "One", tags={"Team": "ml", "empty": ""}, managedBy="worker")
    make_group(sandbox, "two", tags={"team": "web"})
    make_group(sandbox, "three")
    assert groups.check_existence("ONE")
    assert not groups.check_existence("four")
    read = groups.get("one")
    assert (read.name, read.managed_by, dict(read.tags or {})) == ("One", "worker", {"Team": "ml", "empty": ""})
    assert groups.update("one", {"tags": {"a": "b"}}).managed_by == "worker"
    assert [each.name for each in groups.list(filter="tagName eq 'team'")] == ["two"]
    assert [each.name for each in groups.list(filter="tagname eq 'A' and tagvalue eq 'b'")] == ["One"]
    assert [each.name for each in groups.list(filter="tagName eq 'A' and tagValue eq 'B'")] == []
    assert [each.name for each in groups.list(top=1)] == ["One", "three", "two"]


def test_group_answer_matches_azure(sandbox: Sandbox) -> None:
    file = GOLDEN / "rg_put_201.json"
    if not file.exists():
        pytest.skip("the recorded traffic is not here")
    recorded = json.loads(file.read_text())
    path = f"{group_path(sandbox, 'recorded')}?{API}"
    status, headers, body = sandbox.http("PUT", path, recorded["request_body"])
    assert status == recorded["status"]
    assert {name: type(value) for name, value in body.items()} == {
        name: type(value) for name, value in recorded["response_body"].items()
    }
    assert sandbox.http("PUT", path, recorded["request_body"])[0] == 200
    assert sandbox.http("HEAD", path)[0] == 204
    status, headers, body = sandbox.http("DELETE", path)
    assert (status, body) == (202, None)
    assert "/operationresults/ey" in headers["location"]
    assert "azure-asyncoperation" not in headers
    status, _, body = sandbox.http("GET", headers["location"].removeprefix(sandbox.endpoint))
    assert (status, body) == (200, None)
    assert sandbox.http("HEAD", path)[0] == 404


def test_names_follow_the_rules(sandbox: Sandbox) -> None:
    for name in ("a" * 91, "dot.", "no%20space", "%24money", "a%2Fb"):
        status, _, body = sandbox.http("PUT", f"{group_path(sandbox, name)}?{API}", {"location": "eastus"})
        assert (status, body["error"]["code"]) == (400, "InvalidResourceGroup"), name
    make_group(sandbox, "a" * 89 + ")")


def test_group_cannot_change_its_location(sandbox: Sandbox) -> None:
    make_group(sandbox, "demo")
    with pytest.raises(HttpResponseError) as caught:
        sandbox.resource.resource_groups.create_or_update("demo", {"location": "eastus"})
    assert code(caught) == "InvalidResourceGroupLocation"


def test_invalid_body_is_refused(sandbox: Sandbox) -> None:
    bad: list[Any] = [
        None,
        [],
        {},
        {"location": 3},
        {"location": "eastus", "tags": []},
        {"location": "eastus", "managedBy": 3},
    ]
    for body in bad:
        assert sandbox.http("PUT", f"{group_path(sandbox, 'demo')}?{API}", body)[0] == 400, body


def test_invalid_filter_is_refused(sandbox: Sandbox) -> None:
    for text in ("name", "tagValue eq 'x'", "tagName eq x", "tagName eq 'x' or tagName eq 'y'", "a eq 'b'"):
        with pytest.raises(HttpResponseError) as caught:
            list(sandbox.resource.resource_groups.list(filter=text))
        assert code(caught) == "InvalidFilterInQueryString", text


def test_group_deletion_deletes_its_resources(sandbox: Sandbox) -> None:
    make_group(sandbox, "demo")
    make_group(sandbox, "other")
    make_network(sandbox, "demo", "net")
    make_interface(sandbox, "demo", "card", "net")
    make_identity(sandbox, "demo", "worker")
    make_identity(sandbox, "other", "worker")
    sandbox.resource.resource_groups.begin_delete("DEMO").result()
    with pytest.raises(ResourceNotFoundError):
        sandbox.resource.resource_groups.get("demo")
    assert [each.name for each in sandbox.resource.resources.list()] == ["worker"]
    make_group(sandbox, "demo")
    assert list(sandbox.resource.resources.list_by_resource_group("demo")) == []


def test_group_refuses_writes_while_it_is_deleted(sandbox: Sandbox) -> None:
    make_group(sandbox, "demo")
    make_network(sandbox, "demo", "net")
    make_interface(sandbox, "demo", "card", "net")
    sandbox.control("POST", "profile", {"profile": "realistic"})
    path = f"{group_path(sandbox, 'demo')}?{API}"
    _, headers, _ = sandbox.http("DELETE", path)
    first = headers["location"].removeprefix(sandbox.endpoint)
    assert headers["retry-after"] == "15"
    status, headers, _ = sandbox.http("GET", first)
    assert status == 202
    assert headers["location"].removeprefix(sandbox.endpoint) != first
    assert sandbox.resource.resource_groups.get("demo").properties.provisioning_state == "Deleting"  # type: ignore[union-attr]
    assert sandbox.http("PUT", path, {"location": "southcentralus"})[2]["error"]["code"] == "ResourceGroupBeingDeleted"
    assert sandbox.http("DELETE", path)[0] == 202
    sandbox.control("POST", "clock", {"advance": 5})
    kinds = [each.type for each in sandbox.resource.resources.list_by_resource_group("demo")]
    assert kinds == ["Microsoft.Network/networkInterfaces", "Microsoft.Network/virtualNetworks"]
    sandbox.control("POST", "clock", {"advance": 15})
    kinds = [each.type for each in sandbox.resource.resources.list_by_resource_group("demo")]
    assert kinds == ["Microsoft.Network/virtualNetworks"], "the card goes before the network it is in"
    sandbox.control("POST", "clock", {"advance": 300})
    assert sandbox.http("GET", first)[0] == 200
    assert not sandbox.resource.resource_groups.check_existence("demo")


def test_group_stays_if_a_resource_cannot_be_deleted(sandbox: Sandbox) -> None:
    make_group(sandbox, "demo")
    make_network(sandbox, "demo", "net")
    make_identity(sandbox, "demo", "worker")
    fault = {"name": "ScopeLocked", "method": "DELETE", "type": "virtualNetworks", "count": 0}
    sandbox.control("POST", "faults", fault)
    poller = sandbox.resource.resource_groups.begin_delete("demo")
    for _ in range(4):
        sandbox.control("POST", "clock", {"advance": 60})
    with pytest.raises(HttpResponseError) as caught:
        poller.result()
    assert code(caught) == "ResourceGroupDeletionBlocked"
    assert "virtualNetworks/net" in caught.value.message
    assert sandbox.resource.resource_groups.get("demo").properties.provisioning_state == "Succeeded"  # type: ignore[union-attr]
    assert [each.name for each in sandbox.resource.resources.list_by_resource_group("demo")] == ["net"]
    sandbox.control("DELETE", "faults")
    sandbox.resource.resource_groups.begin_delete("demo").result()
    assert not sandbox.resource.resource_groups.check_existence("demo")


def test_endless_operation_does_not_block_the_server(sandbox: Sandbox) -> None:
    make_group(sandbox, "demo")
    make_network(sandbox, "demo", "net")
    sandbox.control("POST", "faults", {"name": "never-ends", "method": "DELETE", "type": "virtualNetworks"})
    _, headers, _ = sandbox.http("DELETE", f"{group_path(sandbox, 'demo')}?{API}")
    sandbox.control("POST", "clock", {"advance": 30 * 86400})
    status, _, body = sandbox.http("GET", headers["location"].removeprefix(sandbox.endpoint))
    assert (status, body["error"]["code"]) == (409, "ResourceGroupDeletionBlocked")


def test_resources_are_listed_with_filters_and_pages(sandbox: Sandbox) -> None:
    make_group(sandbox, "one")
    make_group(sandbox, "two")
    for number in range(5):
        make_identity(sandbox, "one", f"some{number}", {"half": str(number % 2)})
    make_network(sandbox, "two", "net")
    resources = sandbox.resource.resources
    assert len(list(resources.list())) == 6
    assert len(list(resources.list(top=2))) == 6, "pages hold all"
    kind = "Microsoft.Network/VirtualNetworks"
    assert [each.name for each in resources.list(filter=f"resourceType eq '{kind}'")] == ["net"]
    found = resources.list_by_resource_group("ONE", filter="tagName eq 'half' and tagValue eq '1'")
    assert [each.name for each in found] == ["some1", "some3"]
    assert [each.name for each in resources.list(filter="resourceType eq 'a/b' and name eq 'net'")] == []
    assert [each.name for each in resources.list(filter="name eq 'NET'")] == ["net"]
    expanded = next(iter(resources.list(filter="name eq 'net'", expand="createdTime,changedTime,provisioningState")))
    assert (expanded.provisioning_state, expanded.created_time is not None) == ("Succeeded", True)
    with pytest.raises(HttpResponseError):
        list(resources.list(expand="everything"))


def test_resources_are_found_by_tag(sandbox: Sandbox) -> None:
    ours = {"gpuinfra:name": "x", "other": "tag"}
    make_group(sandbox, "ours", tags=ours)
    make_group(sandbox, "another", tags={"gpuinfra:name": "y"})
    make_group(sandbox, "foreign", tags={"name": "x"})
    make_identity(sandbox, "ours", "first", ours)
    make_identity(sandbox, "another", "second", {"GPUINFRA:NAME": "x"})
    make_identity(sandbox, "another", "third", {"gpuinfra:name": "y"})
    make_identity(sandbox, "foreign", "fourth", {"name": "x"})
    make_identity(sandbox, "foreign", "fifth")
    groups, resources = sandbox.resource.resource_groups, sandbox.resource.resources
    one, managed = "tagName eq 'gpuinfra:name' and tagValue eq 'x'", "tagName eq 'gpuinfra:name'"
    assert {each.name for each in groups.list(filter=one)} == {"ours"}
    assert {each.name for each in groups.list(filter=managed)} == {"ours", "another"}
    assert {each.name for each in resources.list(filter=one)} == {"first", "second"}
    assert {each.name for each in resources.list(filter=managed)} == {"first", "second", "third"}
    assert {each.name for each in resources.list(filter="tagName eq 'gpuinfra:name' and tagValue eq 'it''s'")} == set()
    assert [each.tags for each in resources.list(filter=one)] == [None, None], "Azure leaves them out as well"
    tagged = {each.name: dict(each.tags or {}) for each in resources.list(filter=managed)}
    assert tagged["first"] == ours
    assert dict(next(iter(groups.list(filter=one))).tags or {}) == ours
    for wrong in ("tagValue eq 'x'", "tagName eq 'a' or tagName eq 'b'", "tagName ne 'a'"):
        with pytest.raises(HttpResponseError) as caught:
            list(resources.list(filter=wrong))
        assert code(caught) == "InvalidFilterInQueryString"


def test_head_reports_whether_a_resource_exists(sandbox: Sandbox) -> None:
    make_group(sandbox, "demo")
    made = make_identity(sandbox, "demo", "worker")
    make_network(sandbox, "demo", "net")

    def exists(resource_id: str) -> bool:
        return sandbox.resource.resources.check_existence_by_id(resource_id, api_version="2024-01-01")

    assert exists(made["id"].strip("/"))
    assert not exists(made["id"].strip("/") + "x")
    network = f"{group_path(sandbox, 'demo')}/providers/Microsoft.Network/virtualNetworks/net".strip("/")
    assert exists(f"{network}/subnets/inner")
    assert not exists(f"{network}/subnets/outer")


def test_tags_can_be_merged_replaced_and_deleted(sandbox: Sandbox) -> None:
    make_group(sandbox, "demo", tags={"a": "1"})
    made = make_identity(sandbox, "demo", "worker", {"a": "1"})
    for scope in (group_path(sandbox, "demo").strip("/"), made["id"].strip("/")):
        tags = sandbox.resource.tags

        def patch(operation: str, given: dict[str, str], scope: str = scope) -> dict[str, str]:
            body = {"operation": operation, "properties": {"tags": given}}
            shown = sandbox.resource.tags.begin_update_at_scope(scope, body).result()
            return dict(shown.properties.tags or {})

        assert dict(tags.get_at_scope(scope).properties.tags or {}) == {"a": "1"}
        assert patch("Merge", {"A": "2", "b": "3"}) == {"A": "2", "b": "3"}
        assert patch("Delete", {"a": "2", "b": "other"}) == {"b": "3"}
        assert patch("Replace", {"c": "4"}) == {"c": "4"}
        body = {"properties": {"tags": {"d": "5"}}}
        tags.begin_create_or_update_at_scope(scope, body).result()
        assert dict(tags.get_at_scope(scope).properties.tags or {}) == {"d": "5"}
    assert dict(sandbox.resource.resource_groups.get("demo").tags or {}) == {"d": "5"}
    with pytest.raises(HttpResponseError) as caught:
        patch("Forget", {})
    assert code(caught) == "InvalidTagsPatchOperation"
