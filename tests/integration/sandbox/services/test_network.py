"""Microsoft.Network: networks, subnets, security groups, public addresses, interfaces."""

import ipaddress
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.core.rest import HttpRequest

from gpuinfra.sandbox.kernel.call import Call, Principal
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.errors import ArmError
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services.compute import vm_network_profile as network
from gpuinfra.sandbox.services.registry import SERVICES
from gpuinfra.sandbox.web.authority import make_identities
from tests.integration.sandbox.servers import Sandbox

REGION = "southcentralus"
VERSION = "api-version=2026-03-01"
RULE: dict[str, Any] = {
    "priority": 1000,
    "direction": "Inbound",
    "access": "Allow",
    "protocol": "Tcp",
    "sourcePortRange": "*",
    "destinationPortRange": "22",
    "sourceAddressPrefix": "203.0.113.7/32",
    "destinationAddressPrefix": "*",
}


class Group:
    """A resource group in a sandbox, and short ways to make what tests need."""

    def __init__(self, sandbox: Sandbox, name: str) -> None:
        self.sandbox, self.name = sandbox, name
        self.network: Any = sandbox.network
        sandbox.resource.resource_groups.create_or_update(name, {"location": REGION})
        self.path = f"/subscriptions/{sandbox.subscription}/resourceGroups/{name}"

    def id(self, rest: str) -> str:
        return f"{self.path}/providers/Microsoft.Network/{rest}"

    def http(self, method: str, rest: str, body: Any = None, **headers: str) -> tuple[int, dict[str, str], Any]:
        """A request below Microsoft.Network; with no second try, so that every answer is seen."""
        mark = "&" if "?" in rest else "?"
        url = f"{self.sandbox.endpoint}{self.id(rest)}{mark}{VERSION if 'api-version=' not in rest else ''}"
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        content = {} if body is None else {"json": body}
        answer = self.network.send_request(HttpRequest(method, url, headers=sent, **content), retry_total=0)
        received = {name.lower(): value for name, value in answer.headers.items()}
        return answer.status_code, received, answer.json() if answer.content else None

    def code(self, method: str, rest: str, body: Any = None) -> str:
        status, _, answer = self.http(method, rest, body)
        assert status >= 400, answer
        assert status < 500 or answer["error"]["code"] == "NotInSandbox", answer
        return str(answer["error"]["code"])

    def make_network(self, name: str = "net", space: str = "10.0.0.0/16", **subnets: str) -> Any:
        inline = [{"name": key, "properties": {"addressPrefix": prefix}} for key, prefix in subnets.items()]
        body = {"location": REGION, "properties": {"addressSpace": {"addressPrefixes": [space]}, "subnets": inline}}
        return self.network.virtual_networks.begin_create_or_update(self.name, name, body).result()

    def make_address(self, name: str = "address", **properties: Any) -> Any:
        body = {
            "location": REGION,
            "sku": {"name": "Standard"},
            "properties": {"publicIPAllocationMethod": "Static", **properties},
        }
        return self.network.public_ip_addresses.begin_create_or_update(self.name, name, body).result()

    def make_security_group(self, name: str = "security", **rules: dict[str, Any]) -> Any:
        inline = [{"name": key, "properties": {**RULE, **rule}} for key, rule in rules.items()]
        body = {"location": REGION, "properties": {"securityRules": inline}}
        return self.network.network_security_groups.begin_create_or_update(self.name, name, body).result()

    def interface_body(
        self, subnet: str = "net/subnets/main", address: str | None = None, **more: Any
    ) -> dict[str, Any]:
        inner: dict[str, Any] = {"subnet": {"id": self.id(f"virtualNetworks/{subnet}")}}
        if address:
            inner["publicIPAddress"] = {"id": self.id(f"publicIPAddresses/{address}")}
        configuration = {"name": "primary", "properties": inner}
        return {"location": REGION, "properties": {"ipConfigurations": [configuration], **more}}

    def make_interface(self, name: str = "nic", *args: Any, **more: Any) -> Any:
        body = self.interface_body(*args, **more)
        return self.network.network_interfaces.begin_create_or_update(self.name, name, body).result()

    def inside(self, action: Callable[..., Any], *arguments: Any) -> Any:
        """What `action` returns for the cloud, called where the server calls: it has one thread."""
        return self.sandbox.inside(lambda cloud: action(cloud, *arguments))

    def make_machine(self, name: str = "machine") -> str:
        """A machine as far as the network knows machines."""
        machine_id = f"{self.path}/providers/Microsoft.Compute/virtualMachines/{name}"
        machine = Resource(machine_id, REGION, {"id": machine_id, "name": name, "properties": {}})
        self.inside(lambda cloud: cloud.store.put(machine, cloud.now))
        return machine_id


@pytest.fixture
def group(sandbox: Sandbox, request: pytest.FixtureRequest) -> Group:
    return Group(sandbox, "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:80].strip("-"))


def fails(code: str, action: Callable[[], Any]) -> str:
    """The message of the error that the SDK raises; it has the code."""
    with pytest.raises(HttpResponseError) as raised:
        action()
    assert raised.value.error is not None
    assert raised.value.error.code == code, raised.value
    return str(raised.value.error.message)


# Virtual networks and subnets


def test_vnet_lifecycle(group: Group) -> None:
    made = group.make_network(main="10.0.0.0/24")
    assert (made.provisioning_state, made.location, made.subnets[0].name) == ("Succeeded", REGION, "main")
    assert made.resource_guid
    assert made.subnets[0].etag == made.etag
    assert group.network.virtual_networks.get(group.name.upper(), "NET").id == made.id
    tagged = group.network.virtual_networks.update_tags(group.name, "net", {"tags": {"owner": "me"}})
    assert tagged.tags == {"owner": "me"}
    assert tagged.etag != made.etag
    assert [one.name for one in group.network.virtual_networks.list(group.name)] == ["net"]
    assert made.id in [one.id for one in group.network.virtual_networks.list_all()]
    group.network.virtual_networks.begin_delete(group.name, "net").result()
    fails("ResourceNotFound", lambda: group.network.virtual_networks.get(group.name, "net"))


def test_answers_have_azures_headers_and_states(sandbox: Sandbox) -> None:
    group = Group(sandbox, "realistic")
    sandbox.control("POST", "profile", {"profile": "realistic"})
    body = {"location": "South Central US", "properties": {"addressSpace": {"addressPrefixes": ["10.0.0.0/16"]}}}
    status, headers, answer = group.http("PUT", "virtualNetworks/net", body)
    assert (status, answer["properties"]["provisioningState"]) == (201, "Updating")
    assert f"/providers/Microsoft.Network/locations/{REGION}/operations/" in headers["azure-asyncoperation"]
    assert "location" not in headers
    assert headers["retry-after"] == "3"
    assert group.code("PUT", "virtualNetworks/net/subnets/a", {"properties": {"addressPrefix": "10.0.0.0/24"}}) == (
        "AnotherOperationInProgress"
    )
    sandbox.control("POST", "clock", {"advance": 120})
    status, headers, answer = group.http("GET", "virtualNetworks/net")
    assert (status, answer["properties"]["provisioningState"]) == (200, "Succeeded")
    assert headers["etag"] == answer["etag"]
    assert group.http("PUT", "virtualNetworks/net", body)[0] == 200
    sandbox.control("POST", "clock", {"advance": 120})
    status, headers, answer = group.http("DELETE", "virtualNetworks/net")
    assert (status, answer) == (202, None)
    assert "/operations/" in headers["azure-asyncoperation"]
    assert "/operationResults/" in headers["location"]
    assert group.http("GET", "virtualNetworks/net")[2]["properties"]["provisioningState"] == "Deleting"
    assert group.code("PUT", "virtualNetworks/net", body) == "AnotherOperationInProgress"
    sandbox.control("POST", "clock", {"advance": 120})
    assert group.http("GET", "virtualNetworks/net")[0] == 404
    assert group.http("DELETE", "virtualNetworks/net")[0] == 204


@pytest.mark.parametrize(
    ("space", "subnets", "code"),
    [
        ("10.0.0.0", {}, "InvalidAddressPrefixFormat"),
        ("10.0.0.0/33", {}, "InvalidAddressPrefixFormat"),
        ("10.0.0/16", {}, "InvalidAddressPrefixFormat"),
        ("", {}, "InvalidAddressPrefixFormat"),
        ("10.0.1.0/16", {}, "InvalidCIDRNotation"),
        ("10.0.0.0/16", {"a": "10.1.0.0/24"}, "NetcfgInvalidSubnet"),
        ("10.0.0.0/16", {"a": "10.0.0.0/15"}, "NetcfgInvalidSubnet"),
        ("10.0.0.0/16", {"a": "10.0.0.0/30"}, "NetcfgInvalidSubnet"),
        ("10.0.0.0/16", {"a": "10.0.0.x/24"}, "InvalidAddressPrefixFormat"),
        ("10.0.0.0/16", {"a": "10.0.0.0/24", "b": "10.0.0.128/25"}, "NetcfgSubnetRangesOverlap"),
        ("10.0.0.0/16", {"a": "10.0.9.0/24", "c": "10.0.0.0/24", "b": "10.0.8.0/23"}, "NetcfgSubnetRangesOverlap"),
    ],
)
def test_invalid_ranges_are_refused(sandbox: Sandbox, space: str, subnets: dict[str, str], code: str) -> None:
    group = Group(sandbox, "ranges")
    fails(code, lambda: group.make_network("wrong", space, **subnets))
    fails("ResourceNotFound", lambda: group.network.virtual_networks.get("ranges", "wrong"))


def test_range_errors_have_azures_messages(group: Group) -> None:
    outside = fails("NetcfgInvalidSubnet", lambda: group.make_network("net", a="10.9.0.0/24"))
    assert outside == "Subnet 'a' is not valid in virtual network 'net'."
    overlap = fails("NetcfgSubnetRangesOverlap", lambda: group.make_network("net", a="10.0.0.0/24", b="10.0.0.0/25"))
    assert overlap.startswith("Subnet 'b' is not valid because its IP address range overlaps")


def test_subnet_lifecycle(group: Group) -> None:
    group.make_network(main="10.0.0.0/24")
    security = group.make_security_group()
    subnets = group.network.subnets
    body = {"properties": {"addressPrefix": "10.0.1.0/24", "networkSecurityGroup": {"id": security.id.upper()}}}
    made = subnets.begin_create_or_update(group.name, "net", "second", body).result()
    assert (made.address_prefix, made.provisioning_state) == ("10.0.1.0/24", "Succeeded")
    assert made.network_security_group.id == security.id
    assert group.network.network_security_groups.get(group.name, "security").subnets[0].id == made.id
    assert [one.name for one in subnets.list(group.name, "net")] == ["main", "second"]
    assert subnets.get(group.name, "net", "SECOND").id == made.id
    clash = {"properties": {"addressPrefix": "10.0.1.128/25"}}
    fails(
        "NetcfgSubnetRangesOverlap", lambda: subnets.begin_create_or_update(group.name, "net", "third", clash).result()
    )
    wider = {"properties": {"addressPrefix": "10.0.1.0/25"}}
    changed = subnets.begin_create_or_update(group.name, "net", "second", wider).result()
    assert changed.network_security_group is None  # PUT replaces
    subnets.begin_delete(group.name, "net", "second").result()
    fails("NotFound", lambda: subnets.get(group.name, "net", "second"))
    assert group.http("DELETE", "virtualNetworks/net/subnets/second")[0] == 204


def test_subnet_requires_its_vnet_and_nsg(group: Group) -> None:
    body = {"properties": {"addressPrefix": "10.0.1.0/24"}}
    assert group.code("PUT", "virtualNetworks/net/subnets/a", body) == "ParentResourceNotFound"
    assert group.code("DELETE", "virtualNetworks/net/subnets/a") == "ParentResourceNotFound"
    assert group.code("GET", "virtualNetworks/net/subnets/a") == "ResourceNotFound"
    assert group.code("GET", "virtualNetworks/net/subnets") == "ResourceNotFound"
    group.make_network()
    for wanted, code in (
        (group.id("networkSecurityGroups/none"), "InvalidResourceReference"),
        (group.id("virtualNetworks/net"), "InvalidRequestFormat"),
        ("none", "LinkedInvalidPropertyId"),
        (None, "InvalidRequestFormat"),
    ):
        sent = {"properties": {"addressPrefix": "10.0.1.0/24", "networkSecurityGroup": {"id": wanted}}}
        assert group.code("PUT", "virtualNetworks/net/subnets/a", sent) == code


def test_put_without_subnets_keeps_them_and_empty_list_removes_them(group: Group) -> None:
    group.make_network(main="10.0.0.0/24")
    body: dict[str, Any] = {"location": REGION, "properties": {"addressSpace": {"addressPrefixes": ["10.0.0.0/16"]}}}
    networks = group.network.virtual_networks
    networks.update_tags(group.name, "net", {"tags": {"owner": "me"}})
    kept = networks.begin_create_or_update(group.name, "net", body).result()
    assert [one.name for one in kept.subnets] == ["main"]
    assert not kept.tags  # PUT replaces
    body["properties"]["subnets"] = []
    assert networks.begin_create_or_update(group.name, "net", body).result().subnets == []


def test_subnet_in_use_cannot_be_deleted(group: Group) -> None:
    group.make_network(main="10.0.0.0/24", other="10.0.1.0/24")
    nic = group.make_interface()
    used_by = nic.ip_configurations[0].id
    message = fails(
        "InUseSubnetCannotBeDeleted", lambda: group.network.subnets.begin_delete(group.name, "net", "main").result()
    )
    assert message == (
        f"Subnet main is in use by {used_by} and cannot be deleted. In order to delete the subnet, delete all the "
        "resources within the subnet. See aka.ms/deletesubnet."
    )
    fails("InUseSubnetCannotBeDeleted", lambda: group.network.virtual_networks.begin_delete(group.name, "net").result())
    fails("InUseSubnetCannotBeDeleted", lambda: group.make_network(other="10.0.1.0/24"))
    fails("InUsePrefixCannotBeDeleted", lambda: group.make_network(main="10.0.0.0/25", other="10.0.1.0/24"))
    shown = group.network.subnets.get(group.name, "net", "main")
    assert [one.id for one in shown.ip_configurations] == [used_by]
    group.network.subnets.begin_delete(group.name, "net", "other").result()
    group.network.network_interfaces.begin_delete(group.name, "nic").result()
    group.network.virtual_networks.begin_delete(group.name, "net").result()


# Security groups


def test_nsg_lifecycle(group: Group) -> None:
    made = group.make_security_group(ssh={}, web={"priority": 1001, "destinationPortRange": "80-81"})
    assert [rule.name for rule in made.security_rules] == ["ssh", "web"]
    assert {(rule.direction, rule.priority) for rule in made.default_security_rules} == {
        (direction, priority) for direction in ("Inbound", "Outbound") for priority in (65000, 65001, 65500)
    }
    assert len(made.default_security_rules) == 6
    assert {rule.provisioning_state for rule in [*made.security_rules, *made.default_security_rules]} == {"Succeeded"}
    groups = group.network.network_security_groups
    assert groups.update_tags(group.name, "security", {"tags": {"a": "b"}}).tags == {"a": "b"}
    assert [one.name for one in groups.list(group.name)] == ["security"]
    assert made.id in [one.id for one in groups.list_all()]
    assert len(list(group.network.default_security_rules.list(group.name, "security"))) == 6
    assert group.make_security_group(web={}).security_rules[0].name == "web"  # PUT replaces
    groups.begin_delete(group.name, "security").result()
    assert group.http("DELETE", "networkSecurityGroups/security")[0] == 204


def test_security_rule_lifecycle(group: Group) -> None:
    group.make_security_group()
    rules = group.network.security_rules
    sent = {"properties": {**RULE, "access": "allow", "direction": "inbound", "protocol": "tcp"}}
    made = rules.begin_create_or_update(group.name, "security", "ssh", sent).result()
    assert (made.access, made.direction, made.protocol) == ("Allow", "Inbound", "Tcp")
    assert made.destination_port_ranges == []
    several = {"properties": {**RULE, "destinationPortRange": None, "destinationPortRanges": ["80", "8000-8010"]}}
    changed = rules.begin_create_or_update(group.name, "security", "SSH", several).result()
    assert (changed.name, changed.destination_port_ranges) == ("ssh", ["80", "8000-8010"])
    assert changed.destination_port_range is None
    assert [rule.name for rule in rules.list(group.name, "security")] == ["ssh"]
    rules.begin_delete(group.name, "security", "ssh").result()
    fails("NotFound", lambda: rules.get(group.name, "security", "ssh"))
    assert group.http("DELETE", "networkSecurityGroups/security/securityRules/ssh")[0] == 204
    assert group.code("PUT", "networkSecurityGroups/none/securityRules/ssh", sent) == "ParentResourceNotFound"
    status, headers, _ = group.http("PUT", "networkSecurityGroups/security/securityRules/ssh", sent)
    assert status == 201
    assert "azure-asyncoperation" in headers


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"priority": 99}, "SecurityRuleInvalidPriority"),
        ({"priority": 4097}, "SecurityRuleInvalidPriority"),
        ({"priority": None}, "SecurityRuleInvalidPriority"),
        ({"priority": "100"}, "InvalidRequestFormat"),
        ({"priority": True}, "InvalidRequestFormat"),
        ({"protocol": "Http"}, "SecurityRuleInvalidProtocol"),
        ({"access": "Maybe"}, "SecurityRuleInvalidAccessType"),
        ({"direction": None}, "SecurityRuleInvalidDirection"),
        ({"destinationPortRange": "80,443"}, "SecurityRuleInvalidPortRange"),
        ({"destinationPortRange": "65536"}, "SecurityRuleInvalidPortRange"),
        ({"sourcePortRange": "90-80"}, "SecurityRuleInvalidPortRange"),
        ({"destinationPortRange": 22}, "InvalidRequestFormat"),
        ({"destinationPortRange": None}, "SecurityRuleParameterMissing"),
        ({"sourceAddressPrefix": "AzureBastionSubnet"}, "SecurityRuleInvalidAddressPrefix"),
        ({"sourceAddressPrefix": "203.0.113.7/24"}, "SecurityRuleInvalidAddressPrefix"),
        ({"sourceAddressPrefixes": ["10.0.0.0/8", "x"]}, "SecurityRuleInvalidAddressPrefix"),
        ({"sourceApplicationSecurityGroups": [{"id": "x"}]}, "NotInSandbox"),
    ],
)
def test_invalid_rules_are_refused(sandbox: Sandbox, change: dict[str, Any], code: str) -> None:
    group = Group(sandbox, "rules")
    group.make_security_group()
    body = {"properties": {**RULE, **change}}
    assert group.code("PUT", "networkSecurityGroups/security/securityRules/wrong", body) == code
    inline = {"location": REGION, "properties": {"securityRules": [{"name": "wrong", **body}]}}
    assert group.code("PUT", "networkSecurityGroups/security", inline) == code


@pytest.mark.parametrize("prefix", ["*", "Internet", "virtualnetwork", "Storage.EastUS", "10.1.2.3", "::/0", "789"])
def test_valid_rule_prefixes_are_accepted(sandbox: Sandbox, prefix: str) -> None:
    made = Group(sandbox, "prefixes").make_security_group(one={"sourceAddressPrefix": prefix})
    assert made.security_rules[0].source_address_prefix == prefix


def test_rule_priority_is_unique_per_direction(group: Group) -> None:
    group.make_security_group(ssh={}, out={"direction": "Outbound"})
    second = {"properties": {**RULE, "destinationPortRange": "80"}}
    rules = group.network.security_rules
    message = fails(
        "SecurityRuleConflict", lambda: rules.begin_create_or_update(group.name, "security", "web", second).result()
    )
    assert message == (
        "Security rule ssh conflicts with rule web. Rules cannot have the same Priority and Direction. To learn more, "
        "see aka.ms/nsgrules."
    )
    rules.begin_create_or_update(group.name, "security", "ssh", second).result()
    fails("SecurityRuleConflict", lambda: group.make_security_group(a={}, b={}))


def test_nsg_in_use_cannot_be_deleted(group: Group) -> None:
    security = group.make_security_group()
    reference = {"id": security.id}
    group.make_network(main="10.0.0.0/24")
    nic = group.make_interface(networkSecurityGroup=reference)
    subnet_body = {"properties": {"addressPrefix": "10.0.0.0/24", "networkSecurityGroup": reference}}
    subnet = group.network.subnets.begin_create_or_update(group.name, "net", "main", subnet_body).result()
    shown = group.network.network_security_groups.get(group.name, "security")
    assert [one.id for one in shown.network_interfaces] == [nic.id]
    assert [one.id for one in shown.subnets] == [subnet.id]

    def delete() -> None:
        group.network.network_security_groups.begin_delete(group.name, "security").result()

    message = fails("InUseNetworkSecurityGroupCannotBeDeleted", delete)
    assert message == (
        f"Network security group {security.id} cannot be deleted because it is in use by the following resources: "
        f"{nic.id}, {subnet.id}. In order to delete the Network security group, remove the association with the "
        "resource(s). To learn how to do this, see aka.ms/deletensg."
    )
    group.make_interface()  # PUT replaces: the NSG is removed
    assert subnet.id in fails("InUseNetworkSecurityGroupCannotBeDeleted", delete)
    group.make_network(main="10.0.0.0/24")
    delete()


# Public addresses


def test_public_ip_lifecycle(group: Group) -> None:
    made = group.make_address(dnsSettings={"domainNameLabel": "lives"}, idleTimeoutInMinutes=10)
    assert ipaddress.ip_address(made.ip_address) in ipaddress.ip_network("127.77.0.0/16")
    assert (made.sku.name, made.sku.tier, made.idle_timeout_in_minutes) == ("Standard", "Regional", 10)
    assert made.dns_settings.fqdn == f"lives.{REGION}.cloudapp.azure.com"
    addresses = group.network.public_ip_addresses
    assert addresses.update_tags(group.name, "address", {"tags": {"a": "b"}}).tags == {"a": "b"}
    again = group.make_address()
    assert (again.ip_address, again.dns_settings, again.tags) == (made.ip_address, None, None)
    assert [one.name for one in addresses.list(group.name)] == ["address"]
    assert made.id in [one.id for one in addresses.list_all()]
    addresses.begin_delete(group.name, "address").result()
    fails("ResourceNotFound", lambda: addresses.get(group.name, "address"))


def test_public_ip_has_no_address_until_its_operation_ends(sandbox: Sandbox) -> None:
    group = Group(sandbox, "numbers")
    sandbox.control("POST", "profile", {"profile": "realistic"})
    body = {"location": REGION, "sku": {"name": "Standard"}, "properties": {"publicIPAllocationMethod": "Static"}}
    status, headers, answer = group.http("PUT", "publicIPAddresses/one", body)
    assert (status, answer["properties"]["provisioningState"]) == (201, "Updating")
    assert "azure-asyncoperation" in headers
    assert "ipAddress" not in answer["properties"]
    sandbox.control("POST", "clock", {"advance": 60})
    assert group.http("GET", "publicIPAddresses/one")[2]["properties"]["ipAddress"].startswith("127.77.")


def test_public_ip_addresses_are_unique(group: Group) -> None:
    numbers = [group.make_address(f"address{place}").ip_address for place in range(5)]
    assert len(set(numbers)) == 5
    counter = "network-public-address"
    group.inside(lambda cloud: cloud.store.set_setting(counter, cloud.store.setting(counter) - 3))
    assert group.make_address("late").ip_address not in numbers
    group.inside(lambda cloud: cloud.store.set_setting(counter, 2**16 - 2))
    assert group.make_address("around").ip_address not in numbers


def test_dns_labels_are_unique_per_region(group: Group) -> None:
    group.make_address("one", dnsSettings={"domainNameLabel": "taken"})
    message = fails("DnsRecordInUse", lambda: group.make_address("two", dnsSettings={"domainNameLabel": "taken"}))
    assert message == f"DNS record taken.{REGION}.cloudapp.azure.com is already used by another public IP."
    group.make_address("one", dnsSettings={"domainNameLabel": "taken"})
    fails("InvalidDomainNameLabel", lambda: group.make_address("two", dnsSettings={"domainNameLabel": "Big"}))
    group.make_address("one")
    group.make_address("two", dnsSettings={"domainNameLabel": "taken"})


def test_public_ip_skus_and_allocation_methods(group: Group) -> None:
    def body(sku: str | None, method: str | None, **more: Any) -> dict[str, Any]:
        return {
            "location": REGION,
            "sku": {"name": sku},
            "properties": {"publicIPAllocationMethod": method},
            **more,
        }

    wanted = "publicIPAddresses/one"
    assert (
        group.code("PUT", wanted, body("Standard", "Dynamic"))
        == "StandardAndStandardV2SkuPublicIPAddressesMustBeStatic"
    )
    assert group.code("PUT", wanted, body("Gold", "Static")) == "InvalidRequestFormat"
    assert group.code("PUT", wanted, body("Standard", "Static", zones=["9"])) == "AvailabilityZoneNotSupported"
    assert group.http("PUT", wanted, body("Standard", "Static", zones=["1"]))[2]["zones"] == ["1"]
    assert group.code("PUT", wanted, body("Standard", "Static")) == "ResourceAvailabilityZonesCannotBeModified"
    assert group.code("PUT", wanted, body("Basic", "Static", zones=["1"])) == "PublicIPAddressSkuCannotBeChanged"
    assert group.http("PUT", "publicIPAddresses/dynamic", body(None, None))[0] == 201
    dynamic = group.network.public_ip_addresses.get(group.name, "dynamic")
    assert (dynamic.sku.name, dynamic.public_ip_allocation_method) == ("Basic", "Dynamic")
    assert dynamic.ip_address is None
    group.make_network(main="10.0.0.0/24")
    nic = group.make_interface("nic", address="dynamic")
    group.inside(network.attach_nic, nic.id, group.make_machine())
    assert group.network.public_ip_addresses.get(group.name, "dynamic").ip_address.startswith("127.77.")


def test_public_ip_in_use_cannot_be_deleted(group: Group) -> None:
    address = group.make_address()
    group.make_network(main="10.0.0.0/24")
    nic = group.make_interface(address="address")
    used_by = nic.ip_configurations[0].id
    assert group.network.public_ip_addresses.get(group.name, "address").ip_configuration.id == used_by

    def delete() -> None:
        group.network.public_ip_addresses.begin_delete(group.name, "address").result()

    assert fails("PublicIPAddressCannotBeDeleted", delete) == (
        f"Public IP address {address.id} can not be deleted since it is still allocated to resource {used_by}. In "
        "order to delete the public IP, disassociate/detach the Public IP address from the resource.  To learn how to "
        "do this, see aka.ms/deletepublicip."
    )
    message = fails("PublicIPAddressInUse", lambda: group.make_interface("second", address="address"))
    assert message.endswith(f"already allocated to resource {used_by}.")
    assert group.make_interface(address="address").ip_configurations[0].public_ip_address.id == address.id
    group.make_interface()
    assert group.network.public_ip_addresses.get(group.name, "address").ip_configuration is None
    delete()


# Interfaces


def test_nic_lifecycle(group: Group) -> None:
    group.make_network(main="10.0.0.0/24")
    made = group.make_interface(enableAcceleratedNetworking=True)
    configuration = made.ip_configurations[0]
    assert (configuration.private_ip_address, configuration.primary) == ("10.0.0.4", True)
    assert (made.provisioning_state, made.enable_accelerated_networking) == ("Succeeded", True)
    interfaces = group.network.network_interfaces
    assert interfaces.update_tags(group.name, "nic", {"tags": {"a": "b"}}).tags == {"a": "b"}
    assert [one.name for one in interfaces.list(group.name)] == ["nic"]
    assert made.id in [one.id for one in interfaces.list_all()]
    configurations = group.network.network_interface_ip_configurations
    assert [one.name for one in configurations.list(group.name, "nic")] == ["primary"]
    assert configurations.get(group.name, "nic", "primary").private_ip_address == "10.0.0.4"
    changed = group.make_interface()
    assert changed.enable_accelerated_networking is False
    assert changed.ip_configurations[0].private_ip_address == "10.0.0.4"
    assert changed.resource_guid == made.resource_guid
    interfaces.begin_delete(group.name, "nic").result()
    fails("ResourceNotFound", lambda: interfaces.get(group.name, "nic"))
    assert group.http("DELETE", "networkInterfaces/nic")[0] == 204


def test_nic_is_created_at_once_and_changed_by_an_operation(group: Group) -> None:
    group.make_network(main="10.0.0.0/24")
    body = group.interface_body()
    status, headers, answer = group.http("PUT", "networkInterfaces/nic", body)
    assert (status, answer["properties"]["provisioningState"]) == (201, "Succeeded")
    assert "azure-asyncoperation" not in headers
    status, headers, answer = group.http("PUT", "networkInterfaces/nic", body)
    assert (status, answer["properties"]["provisioningState"]) == (200, "Updating")
    assert "azure-asyncoperation" in headers
    status, headers, answer = group.http("PUT", "networkInterfaces/old?api-version=2022-11-01", body)
    assert (status, answer["properties"]["provisioningState"]) == (201, "Succeeded")
    assert "azure-asyncoperation" in headers


def test_private_addresses_are_unique(group: Group) -> None:
    group.make_network(main="10.0.0.0/28")
    made = [group.make_interface(f"nic{place}") for place in range(11)]
    addresses = [one.ip_configurations[0].private_ip_address for one in made]
    assert sorted(addresses, key=ipaddress.ip_address) == [f"10.0.0.{last}" for last in range(4, 15)]
    fails("SubnetIsFull", lambda: group.make_interface("full"))
    group.network.network_interfaces.begin_delete(group.name, "nic3").result()
    assert group.make_interface("again").ip_configurations[0].private_ip_address == addresses[3]
    assert group.make_interface("nic5").ip_configurations[0].private_ip_address == addresses[5]


@pytest.mark.parametrize(
    ("address", "code"),
    [
        ("10.0.0.9", None),
        ("10.0.0.4", "PrivateIPAddressIsAllocated"),
        ("10.0.0.3", "PrivateIPAddressInReservedRange"),
        ("10.0.0.255", "PrivateIPAddressInReservedRange"),
        ("10.0.1.9", "PrivateIPAddressNotInSubnet"),
        ("ten", "InvalidIPAddress"),
        (None, "InvalidIPAddress"),
        (10, "InvalidRequestFormat"),
    ],
)
def test_static_private_addresses(sandbox: Sandbox, address: Any, code: str | None) -> None:
    group = Group(sandbox, "static")
    group.make_network(main="10.0.0.0/24")
    group.make_interface("first")
    body = group.interface_body()
    inner = body["properties"]["ipConfigurations"][0]["properties"]
    inner.update(privateIPAllocationMethod="Static", privateIPAddress=address)
    if code:
        assert group.code("PUT", "networkInterfaces/wrong", body) == code
    else:
        answer = group.http("PUT", "networkInterfaces/right", body)[2]
        assert answer["properties"]["ipConfigurations"][0]["properties"]["privateIPAddress"] == address


def test_nic_references_must_exist(group: Group) -> None:
    group.make_network(main="10.0.0.0/24")
    wanted = "networkInterfaces/nic"
    assert group.code("PUT", wanted, group.interface_body("net/subnets/none")) == "InvalidResourceReference"
    assert group.code("PUT", wanted, group.interface_body("none/subnets/main")) == "InvalidResourceReference"
    assert group.code("PUT", wanted, group.interface_body(address="none")) == "InvalidResourceReference"
    security = {"id": group.id("networkSecurityGroups/none")}
    assert group.code("PUT", wanted, group.interface_body(networkSecurityGroup=security)) == "InvalidResourceReference"
    elsewhere = {**group.interface_body(), "location": "eastus"}
    assert group.code("PUT", wanted, elsewhere) == "InvalidResourceReference"
    assert group.code("PUT", wanted, {"location": REGION}) == "NetworkInterfaceMustHaveAtLeastOneIpConfiguration"
    no_subnet = {"location": REGION, "properties": {"ipConfigurations": [{"name": "a", "properties": {}}]}}
    assert group.code("PUT", wanted, no_subnet) == "InvalidRequestFormat"


def test_attached_nic_cannot_be_deleted(group: Group) -> None:
    group.make_network(main="10.0.0.0/24")
    address = group.make_address()
    nic = group.make_interface(address="address")
    machine, other = group.make_machine("machine"), group.make_machine("other")
    group.inside(network.attach_nic, nic.id.upper(), machine)
    shown = group.network.network_interfaces.get(group.name, "nic")
    assert (shown.virtual_machine.id, shown.primary) == (machine, True)
    assert shown.mac_address.startswith("00-0D-3A-")
    assert group.make_interface(address="address").virtual_machine.id == machine
    assert group.inside(network.public_ip_of, nic.id) == address.ip_address
    assert shown.ip_configurations[0].private_ip_address == "10.0.0.4"

    def delete() -> None:
        group.network.network_interfaces.begin_delete(group.name, "nic").result()

    assert fails("NicInUse", delete) == (
        f"Network Interface {nic.id} is used by existing resource {machine}. In order to delete the network interface, "
        "it must be dissociated from the resource. To learn more, see aka.ms/deletenic."
    )
    with pytest.raises(ArmError, match="NicInUse"):
        group.inside(network.attach_nic, nic.id, other)
    with pytest.raises(ArmError, match="InvalidParameter"):
        group.inside(network.attach_nic, group.id("networkInterfaces/none"), other)
    group.inside(network.detach_nic, nic.id)
    group.inside(network.attach_nic, nic.id, other)
    group.inside(lambda cloud: cloud.store.delete(other))
    assert group.network.network_interfaces.get(group.name, "nic").virtual_machine is None
    delete()
    assert group.inside(network.public_ip_of, nic.id) is None


def test_inline_nics_and_public_ips(group: Group) -> None:
    group.make_network(main="10.0.0.0/24")
    configuration = {
        "name": "inline",
        "properties": {
            "primary": True,
            "deleteOption": "Delete",
            "ipConfigurations": [
                {
                    "name": "primary",
                    "properties": {
                        "subnet": {"id": group.id("virtualNetworks/net/subnets/main")},
                        "publicIPAddressConfiguration": {
                            "name": "inline-address",
                            "sku": {"name": "Standard", "tier": "Regional"},
                            "properties": {"deleteOption": "Delete", "publicIPAllocationMethod": "Static"},
                        },
                    },
                }
            ],
        },
    }
    made = group.inside(network.create_inline_nic, group.name, REGION, "inline", configuration)
    shown = group.network.network_interfaces.get(group.name, "inline")
    address = group.network.public_ip_addresses.get(group.name, "inline-address")
    assert (shown.id, shown.provisioning_state, address.provisioning_state) == (made, "Succeeded", "Succeeded")
    assert shown.ip_configurations[0].public_ip_address.id == address.id
    assert group.inside(network.public_ip_of, made) == address.ip_address
    group.inside(network.delete_nic, made)
    fails("ResourceNotFound", lambda: group.network.network_interfaces.get(group.name, "inline"))
    fails("ResourceNotFound", lambda: group.network.public_ip_addresses.get(group.name, "inline-address"))


# What they have in common


def test_network_resources_are_deleted_in_dependency_order(group: Group) -> None:
    """Each deletion but the last possible one fails, until the one before it is done."""
    group.make_network(main="10.0.0.0/24")
    group.make_address()
    security = group.make_security_group()
    nic = group.make_interface(address="address", networkSecurityGroup={"id": security.id})
    group.inside(network.attach_nic, nic.id, group.make_machine())
    rest = {
        "publicIPAddresses/address": "PublicIPAddressCannotBeDeleted",
        "networkSecurityGroups/security": "InUseNetworkSecurityGroupCannotBeDeleted",
        "virtualNetworks/net/subnets/main": "InUseSubnetCannotBeDeleted",
        "virtualNetworks/net": "InUseSubnetCannotBeDeleted",
    }
    for wanted, code in rest.items():
        assert group.code("DELETE", wanted) == code
    assert group.code("DELETE", "networkInterfaces/nic") == "NicInUse"
    group.inside(network.detach_nic, nic.id)
    for wanted, code in rest.items():
        assert group.code("DELETE", wanted) == code
    for wanted in ("networkInterfaces/nic", *rest):
        assert group.http("DELETE", wanted)[0] == 202
        assert group.http("GET", wanted)[0] == 404


@pytest.mark.parametrize("kind", ["virtualNetworks", "networkSecurityGroups", "publicIPAddresses", "networkInterfaces"])
def test_etags_names_regions_and_pages(sandbox: Sandbox, kind: str) -> None:
    group = Group(sandbox, f"common-{kind}")
    group.make_network("base", main="10.0.0.0/24")
    bodies: dict[str, dict[str, Any]] = {
        "virtualNetworks": {"location": REGION, "properties": {"addressSpace": {"addressPrefixes": ["10.0.0.0/16"]}}},
        "networkSecurityGroups": {"location": REGION},
        "publicIPAddresses": {"location": REGION},
        "networkInterfaces": group.interface_body("base/subnets/main"),
    }
    body = bodies[kind]
    for name in ("Alpha", "beta", "gamma"):
        assert group.http("PUT", f"{kind}/{name}", body)[0] == 201
    one = f"{kind}/ALPHA"
    _, headers, answer = group.http("GET", one)
    assert (answer["name"], headers["etag"]) == ("Alpha", answer["etag"])
    assert answer["etag"].startswith('W/"')
    assert group.http("PUT", one, body, if_none_match="*")[0] == 412
    assert group.http("PUT", one, body, if_match='W/"another"')[0] == 412
    assert group.http("DELETE", one, if_match='W/"another"')[0] == 412
    assert group.http("PUT", one, body, if_match=answer["etag"])[0] == 200
    assert group.http("PUT", one, body, if_match=answer["etag"])[0] == 412
    assert group.http("GET", one)[2]["name"] == "Alpha"
    assert group.code("PUT", one, {**body, "location": "eastus"}) in {
        "InvalidResourceLocation",
        "InvalidResourceReference",
    }
    assert group.code("PUT", one, {**body, "location": "moon"}) == "LocationNotAvailableForResourceType"
    assert group.code("PUT", one, {**body, "location": None}) == "LocationRequired"
    assert group.code("PUT", one, {**body, "tags": {"a": 1}}) == "InvalidRequestContent"
    assert group.code("PATCH", one, {"tags": {str(number): "" for number in range(51)}}) == "InvalidTagCount"
    assert group.code("PATCH", one, {"properties": {}}) == "InvalidRequestContent"
    assert group.code("PATCH", f"{kind}/none", {"tags": {}}) == "ResourceNotFound"
    for name in ("-a", "a-", "a" * 81, "a%20b", "a%2Fb", "a%2Fb%2Fc", "%C3%A9"):
        assert group.code("PUT", f"{kind}/{name}", body) == "InvalidResourceName"
        assert group.http("GET", f"{kind}/{name}")[0] == 404
    first = group.http("GET", f"{kind}?$top=2")[2]
    own = [one["name"] for one in first["value"]]
    second = sandbox.http("GET", first["nextLink"].removeprefix(sandbox.endpoint))[2]
    names = [*own, *(one["name"] for one in second["value"])]
    assert len(own) == 2
    assert [name for name in names if name != "base"] == ["Alpha", "beta", "gamma"]
    assert sandbox.http("GET", f"{group.path}-none/providers/Microsoft.Network/{kind}?{VERSION}")[0] == 404


JUNK: list[Any] = [
    None,
    True,
    -1,
    1.5,
    "",
    "x",
    "\ud800",
    [],
    [None],
    [[]],
    {},
    {"id": 1},
    {"id": "\ud800"},
    [{"name": 1}],
]


@pytest.fixture
def offline(tmp_path: Path) -> Iterator[Cloud]:
    """The cloud without its server: a thousand requests take a moment."""
    cloud = Cloud(tmp_path, SERVICES)
    make_identities(cloud.store)
    assert put_offline(cloud, f"/subscriptions/{cloud.subscription}/resourceGroups/junk", {"location": REGION}) == 201
    yield cloud
    cloud.store.close()


def put_offline(cloud: Cloud, path: str, body: Any) -> int:
    """The status of a PUT. What is not an error of ARM's is raised."""
    query = {"api-version": "2026-03-01"}
    call = Call(cloud, "PUT", path, {}, query, {}, body, Principal("owner", is_owner=True), "https://localhost", "id")
    try:
        status = cloud.dispatch(call).status
        cloud.settle()
    except ArmError as error:
        json.dumps(error.envelope())
        if error.status < 500 or error.code == "NotInSandbox":
            return error.status
        raise
    return status


@pytest.mark.parametrize("junk", JUNK, ids=repr)
def test_invalid_input_gets_arms_errors(offline: Cloud, junk: Any) -> None:
    start = f"/subscriptions/{offline.subscription}/resourceGroups/junk/providers/Microsoft.Network"
    subnet = {"id": f"{start}/virtualNetworks/net/subnets/main"}
    configuration = {"name": "primary", "properties": {"subnet": subnet, "privateIPAllocationMethod": "Dynamic"}}
    good: dict[str, tuple[dict[str, Any], list[str]]] = {
        "virtualNetworks/net": (
            {
                "addressSpace": {"addressPrefixes": ["10.0.0.0/16"]},
                "subnets": [{"name": "main", "properties": {"addressPrefix": "10.0.0.0/24"}}],
            },
            ["dhcpOptions", "encryption", "privateEndpointVNetPolicies"],
        ),
        "virtualNetworks/net/subnets/main": (
            {"addressPrefix": "10.0.0.0/24"},
            ["addressPrefixes", "networkSecurityGroup", "defaultOutboundAccess", "delegations"],
        ),
        "networkSecurityGroups/group": ({"securityRules": [{"name": "ssh", "properties": RULE}]}, []),
        "networkSecurityGroups/group/securityRules/web": ({**RULE, "priority": 200}, ["description"]),
        "publicIPAddresses/address": (
            {"dnsSettings": {"domainNameLabel": "junk"}, "ddosSettings": {"protectionMode": "Enabled"}},
            ["ipTags", "idleTimeoutInMinutes", "publicIPAddressVersion"],
        ),
        "networkInterfaces/nic": (
            {"ipConfigurations": [configuration], "dnsSettings": {"dnsServers": []}},
            ["networkSecurityGroup", "enableAcceleratedNetworking", "nicType"],
        ),
    }
    bodies = {}
    for wanted, (properties, more) in good.items():
        sku = {"sku": {"name": "Standard"}, "zones": ["1"]} if wanted.startswith("publicIP") else {}
        bodies[wanted] = {"location": REGION, **sku, "properties": {**properties, **dict.fromkeys(more)}}
        assert put_offline(offline, f"{start}/{wanted}", bodies[wanted]) in {200, 201}
    for wanted, body in bodies.items():
        for spoiled in [junk, *_spoiled(body, junk)]:
            put_offline(offline, f"{start}/{wanted}", spoiled)


def _spoiled(value: Any, junk: Any) -> Iterator[Any]:
    """The value with junk in the place of each of its parts."""
    if isinstance(value, dict):
        for name in value:
            yield {**value, name: junk}
            for part in _spoiled(value[name], junk):
                yield {**value, name: part}
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield [*value[:place], junk, *value[place + 1 :]]
            for part in _spoiled(item, junk):
                yield [*value[:place], part, *value[place + 1 :]]


# Operations that end otherwise


def test_failed_operation_leaves_a_failed_resource(sandbox: Sandbox) -> None:
    group = Group(sandbox, "faults")
    sandbox.control("POST", "faults", {"name": "InternalExecutionError", "type": "virtualNetworks"})
    fails("InternalExecutionError", lambda: group.make_network(main="10.0.0.0/24"))
    failed = group.network.virtual_networks.get("faults", "net")
    assert (failed.provisioning_state, failed.subnets[0].provisioning_state) == ("Failed", "Failed")
    assert group.code("PUT", "networkInterfaces/nic", group.interface_body()) == "RetryableError"
    assert group.make_network(main="10.0.0.0/24").provisioning_state == "Succeeded"
    sandbox.control("POST", "faults", {"name": "InternalExecutionError", "type": "networkInterfaces"})
    fails("InternalExecutionError", group.make_interface)
    assert group.make_interface().provisioning_state == "Succeeded"


def test_endless_operation_is_superseded(sandbox: Sandbox) -> None:
    group = Group(sandbox, "stuck")
    sandbox.control("POST", "faults", {"name": "never-ends", "type": "networkSecurityGroups"})
    body = {"location": REGION}
    assert group.http("PUT", "networkSecurityGroups/security", body)[0] == 201
    assert group.http("GET", "networkSecurityGroups/security")[2]["properties"]["provisioningState"] == "Updating"
    rule = "networkSecurityGroups/security/securityRules/ssh"
    assert group.code("PUT", rule, {"properties": RULE}) == "AnotherOperationInProgress"
    assert group.http("PUT", "networkSecurityGroups/security", body)[0] == 200
    assert group.http("PUT", rule, {"properties": RULE})[0] == 201


def test_second_put_supersedes_the_first(sandbox: Sandbox) -> None:
    group = Group(sandbox, "superseded")
    sandbox.control("POST", "profile", {"profile": "realistic"})
    _, first, _ = group.http("PUT", "networkSecurityGroups/security", {"location": REGION})
    assert group.http("PUT", "networkSecurityGroups/security", {"location": REGION, "tags": {"a": "b"}})[0] == 200
    sandbox.control("POST", "clock", {"advance": 60})
    _, _, state = sandbox.http("GET", first["azure-asyncoperation"].removeprefix(sandbox.endpoint))
    assert (state["status"], state["error"]["code"]) == ("Failed", "Canceled")
    shown = group.http("GET", "networkSecurityGroups/security")[2]
    assert (shown["properties"]["provisioningState"], shown["tags"]) == ("Succeeded", {"a": "b"})
