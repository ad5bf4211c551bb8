"""Microsoft.Network beside recordings of Azure: the same status, operation headers, keys and types."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuinfra.sandbox.services.compute import vm_network_profile as network
from tests.integration.sandbox.recordings import Exchange, recordings
from tests.integration.sandbox.servers import Sandbox
from tests.integration.sandbox.services.test_network import Group

KINDS = "virtualNetworks|virtualNetworks/subnets|networkSecurityGroups|networkSecurityGroups/securityRules"
WANTED = re.compile(
    rf"/resourceGroups/[^/]+/providers/Microsoft\.Network/(?:{KINDS}|publicIPAddresses|networkInterfaces)"
    r"(?:/[^/?]+)(?:/(?:subnets|securityRules)/[^/?]+)?\?",
    re.IGNORECASE,
)
NOT_MODELLED = {
    "ipamPoolPrefixAllocations",  # of one subnet, empty
    "nicAuxiliarySkuBillingNotificationType",  # of one interface of 2022
    "enableVmProtection",  # of one network, by a version of 2018
}
# Parts of recordings that the slice refuses.
REFUSED = (
    "applicationGateway",
    "ApplicationSecurityGroups",
    "extendedLocation",
    "IPv6",
    "loadBalancer",
    "privateIPAddressPrefixLength",
    "serviceEndpoints",
    "virtualNetworkGateways",
)


def _recordings() -> Iterator[Any]:
    for place, recording in enumerate(recordings()):
        if WANTED.search(recording.uri) and recording.method in {"PUT", "GET", "DELETE"}:
            yield pytest.param(recording, id=f"{Path(recording.file).stem}-{place}")


RECORDINGS = list(_recordings())


def _here(value: Any, group: Group) -> Any:
    """Recorded names in this sandbox: subscription, group and location."""
    text = json.dumps(value)
    text = re.sub(r"/subscriptions/[^/\"]+/resourceGroups/[^/\"]+", group.path, text, flags=re.IGNORECASE)
    text = re.sub(r'("domainNameLabel": )"[^"]+"', rf'\1"a{group.name}"', text)
    return json.loads(re.sub(r'("location": )"[^"]+"', r'\1"eastus"', text))


def _prepare(group: Group, value: Any) -> None:
    """Make what a body refers to."""
    for kind in ("networkSecurityGroups", "publicIPAddresses"):
        for name in sorted(set(re.findall(rf'/{kind}/([^/"]+)"', json.dumps(value)))):
            body: dict[str, Any] = {"location": "eastus"}
            if kind == "publicIPAddresses":
                body["sku"] = {"name": "Standard"}
            assert group.http("PUT", f"{kind}/{name}", body)[0] in {200, 201}
    found = set(re.findall(r'/virtualNetworks/([^/"]+)/subnets/([^/"]+)"', json.dumps(value)))
    for name, subnet in sorted(found):
        _put_network(group, name, [{"name": subnet, "properties": {"addressPrefix": "10.0.0.0/24"}}])


def _put_network(group: Group, name: str, subnets: list[dict[str, Any]]) -> None:
    space = {"addressPrefixes": ["10.0.0.0/8", "20.0.0.0/8"]}
    body = {"location": "eastus", "properties": {"addressSpace": space, "subnets": subnets}}
    assert group.http("PUT", f"virtualNetworks/{name}", body)[0] in {200, 201}


def _put_parent(group: Group, path: str) -> None:
    if "/subnets/" in path:
        _put_network(group, path.split("/")[1], [])
    elif "/securityRules/" in path:
        assert group.http("PUT", "/".join(path.split("/")[:2]), {"location": "eastus"})[0] in {200, 201}


def _missing(recorded: Any, ours: Any, path: str) -> Iterator[str]:
    """What was recorded and is not here, or is of another type."""
    if isinstance(recorded, dict) and isinstance(ours, dict):
        for name, value in recorded.items():
            if name not in NOT_MODELLED and name != "tags":
                if name in ours:
                    yield from _missing(value, ours[name], f"{path}.{name}")
                else:
                    yield f"{path}.{name} is missing"
    elif isinstance(recorded, list) and isinstance(ours, list):
        if len(ours) < len(recorded):
            yield f"{path} has {len(ours)} entries, not {len(recorded)}"
        for place, (one, other) in enumerate(zip(recorded, ours, strict=False)):
            yield from _missing(one, other, f"{path}[{place}]")
    elif type(recorded) is not type(ours):
        yield f"{path} is {type(ours).__name__}, not {type(recorded).__name__}"


@pytest.mark.skipif(not RECORDINGS, reason="the recordings are not beside this repository")
def test_every_network_kind_has_recordings() -> None:
    seen = {(param.values[0].method, param.values[0].status) for param in RECORDINGS}
    assert {("PUT", 200), ("PUT", 201), ("GET", 200), ("GET", 404), ("DELETE", 202), ("DELETE", 400)} <= seen


@pytest.mark.parametrize("recording", RECORDINGS)
def test_network_answers_match_recordings(
    sandbox: Sandbox, recording: Exchange, request: pytest.FixtureRequest
) -> None:
    name = re.sub(r"[^a-z0-9]", "", request.node.callspec.id)
    group = Group(sandbox, f"{name[:3]}{name[3:][-45:]}")
    sent, recorded = _here(recording.sent or None, group), _here(recording.body or None, group)
    if any(word in json.dumps([sent, recorded]) for word in REFUSED):
        pytest.skip("it uses properties that the embedded Azure does not model")
    method, status = recording.method, recording.status
    path, _, query = recording.uri.split("/providers/Microsoft.Network/")[1].partition("?")
    (version,) = re.findall(r"api-version=[^&]+", query)
    _set_up(group, method, status, path, sent, recorded)
    answer_status, headers, answer = group.http(method, f"{path}?{version}", sent if method == "PUT" else None)
    assert answer_status == status, answer
    assert {"azure-asyncoperation", "location"} & set(headers) == recording.headers
    if status >= 400:
        assert answer["error"]["code"] == recorded["error"]["code"]
        if "cannot be deleted" not in answer["error"]["message"]:  # names of users were made here
            assert len(answer["error"]["message"].split()) == len(recorded["error"]["message"].split())
    elif recorded is not None:
        assert list(_missing(recorded, answer, "body")) == []


def _set_up(group: Group, method: str, status: int, path: str, sent: Any, recorded: Any) -> None:
    """What has to be there before the recorded request."""
    if status == 404:
        return
    if method == "DELETE":
        _set_up_deletion(group, status, path)
        return
    _put_parent(group, path)
    _prepare(group, sent or recorded)
    if status in {200, 201} and (method == "GET" or status == 200):
        body = sent or recorded
        answer = group.http("PUT", path, body)
        assert answer[0] in {200, 201}, answer
    properties = recorded.get("properties", {}) if status < 300 else {}
    if "virtualMachine" in properties:
        name = properties["virtualMachine"]["id"].rsplit("/", 1)[-1]
        group.inside(network.attach_nic, group.id(path), group.make_machine(name))
    if "ipConfiguration" in properties:
        _put_user(group, "publicIPAddress", path)
    if "/subnets/" in path and "ipConfigurations" in properties:
        _put_user(group, "subnet", path)


def _put_user(group: Group, name: str, path: str) -> None:
    """An interface that uses a resource."""
    if name != "subnet":
        _put_network(group, "users", [{"name": "main", "properties": {"addressPrefix": "10.0.0.0/24"}}])
    subnet = path if name == "subnet" else "virtualNetworks/users/subnets/main"
    inner: dict[str, Any] = {"subnet": {"id": group.id(subnet)}}
    if name != "subnet":
        inner[name] = {"id": group.id(path)}
    body = {"location": "eastus", "properties": {"ipConfigurations": [{"name": "one", "properties": inner}]}}
    answer = group.http("PUT", "networkInterfaces/user", body)
    assert answer[0] in {200, 201}, answer


def _set_up_deletion(group: Group, status: int, path: str) -> None:
    kind = path.split("/")[-2]
    _put_network(group, "net", [{"name": "main", "properties": {"addressPrefix": "10.0.0.0/24"}}])
    bodies: dict[str, Any] = {
        "virtualNetworks": {
            "properties": {
                "addressSpace": {"addressPrefixes": ["10.0.0.0/16"]},
                "subnets": [{"name": "main", "properties": {"addressPrefix": "10.0.0.0/24"}}],
            }
        },
        "subnets": {"properties": {"addressPrefix": "10.0.0.0/24"}},
        "publicIPAddresses": {"sku": {"name": "Standard"}},
        "networkInterfaces": {
            "properties": {
                "ipConfigurations": [
                    {"name": "one", "properties": {"subnet": {"id": group.id("virtualNetworks/net/subnets/main")}}}
                ]
            }
        },
        "securityRules": {
            "properties": {
                "access": "Allow",
                "direction": "Inbound",
                "priority": 100,
                "protocol": "*",
                "sourcePortRange": "*",
                "destinationPortRange": "*",
                "sourceAddressPrefix": "*",
                "destinationAddressPrefix": "*",
            }
        },
    }
    _put_parent(group, path)
    answer = group.http("PUT", path, {"location": "eastus", **bodies.get(kind, {})})
    assert answer[0] == 201, answer
    if status != 400:
        return
    if kind == "networkInterfaces":
        group.inside(network.attach_nic, group.id(path), group.make_machine())
    elif kind == "networkSecurityGroups":
        inner = {"addressPrefix": "10.0.0.0/24", "networkSecurityGroup": {"id": group.id(path)}}
        assert group.http("PUT", "virtualNetworks/net/subnets/main", {"properties": inner})[0] == 200
    else:
        name = "publicIPAddress" if kind == "publicIPAddresses" else "subnet"
        _put_user(group, name, path if name == "publicIPAddress" else f"{path}/subnets/main")
