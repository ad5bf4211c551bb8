"""Security rules, which are stored in the body of their NSG."""

import ipaddress
import re
from collections.abc import Sequence
from typing import Any

from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services.network.fields import bad_request, integer, text, texts
from gpuinfra.sandbox.services.network.network_resource import Kind, new_item

KIND = Kind("networkSecurityGroups/securityRules", "SecurityRule", "rule")

_KNOWN = (
    "description protocol sourcePortRange sourcePortRanges destinationPortRange destinationPortRanges "
    "sourceAddressPrefix sourceAddressPrefixes destinationAddressPrefix destinationAddressPrefixes access priority "
    "direction provisioningState"
).split()
_PROTOCOLS = ("Tcp", "Udp", "Icmp", "Esp", "Ah", "*")
# https://learn.microsoft.com/azure/virtual-network/service-tags-overview: those an NSG for VMs may need.
_SERVICE_TAGS = frozenset(
    "actiongroup apimanagement appconfiguration applicationinsightsavailability appservice azureactivedirectory "
    "azureadvancedthreatprotection azurearcinfrastructure azurebackup azurecloud azurecontainerregistry azurecosmosdb "
    "azuredatabricks azuredatalake azuredevops azureeventgrid azurefrontdoor.backend azurefrontdoor.firstparty "
    "azurefrontdoor.frontend azurekeyvault azureloadbalancer azuremachinelearning azuremonitor azureplatformdns "
    "azureplatformimds azureplatformlkm azureresourcemanager azuresiterecovery azuretrafficmanager "
    "azureupdatedelivery batchnodemanagement cognitiveservicesmanagement datafactory eventhub gatewaymanager "
    "guestandhybridmanagement hdinsight internet logicapps microsoftcontainerregistry microsoftdefenderforendpoint "
    "powerbi servicebus servicefabric sql sqlmanagement storage storagesyncservice virtualnetwork".split()
)

_VNET = "VirtualNetwork"
# Name, description, source, destination, access, priority.
_DEFAULTS = {
    "Inbound": (
        ("AllowVnetInBound", "Allow inbound traffic from all VMs in VNET", _VNET, _VNET, "Allow", 65000),
        (
            *("AllowAzureLoadBalancerInBound", "Allow inbound traffic from azure load balancer"),
            *("AzureLoadBalancer", "*", "Allow", 65001),
        ),
        ("DenyAllInBound", "Deny all inbound traffic", "*", "*", "Deny", 65500),
    ),
    "Outbound": (
        ("AllowVnetOutBound", "Allow outbound traffic from all VMs to all VMs in VNET", _VNET, _VNET, "Allow", 65000),
        ("AllowInternetOutBound", "Allow outbound traffic from all VMs to Internet", "*", "Internet", "Allow", 65001),
        ("DenyAllOutBound", "Deny all outbound traffic", "*", "*", "Deny", 65500),
    ),
}


def default_rules(group: Resource) -> list[dict[str, Any]]:
    """Return the six rules that every NSG has."""
    return [
        {
            "name": name,
            "id": f"{group.id}/defaultSecurityRules/{name}",
            "etag": group.etag,
            "type": "Microsoft.Network/networkSecurityGroups/defaultSecurityRules",
            "properties": {
                "provisioningState": group.properties["provisioningState"],
                "description": description,
                "protocol": "*",
                "sourcePortRange": "*",
                "destinationPortRange": "*",
                "sourceAddressPrefix": source,
                "destinationAddressPrefix": destination,
                "access": access,
                "priority": priority,
                "direction": direction,
                "sourcePortRanges": [],
                "destinationPortRanges": [],
                "sourceAddressPrefixes": [],
                "destinationAddressPrefixes": [],
            },
        }
        for direction, rules in _DEFAULTS.items()
        for name, description, source, destination, access, priority in rules
    ]


def build(_cloud: Cloud, group: Resource, name: str, given: dict[str, Any], path: str) -> dict[str, Any]:
    """Return a rule's body from a request's."""
    rule, sent = new_item(KIND, group, name, given, path, _KNOWN)
    properties = rule["properties"]
    if description := text(sent, "description", path):
        if len(description) > 140:
            raise bad_request(
                "SecurityRuleInvalidDescription",
                "Security rule has invalid Description. It is longer than 140 characters.",
            )
        properties["description"] = description
    properties["protocol"] = _one_of(sent, "protocol", path, _PROTOCOLS, "Protocol")
    lists: dict[str, Any] = {}
    for side in ("source", "destination"):
        for single, plural, check in _RANGES:
            one, several = text(sent, f"{side}{single}", path), texts(sent, f"{side}{plural}", path)
            for value in [*([] if one is None else [one]), *several]:
                check(value)
            if one is None and not several:
                raise bad_request(
                    "SecurityRuleParameterMissing",
                    f"Required security rule parameters are missing for security rule with Id: {rule['id']}. Security "
                    f"rule must specify {side.capitalize()}{single} or {side.capitalize()}{plural}.",
                )
            if one is not None:
                properties[f"{side}{single}"] = one
            lists[f"{side}{plural}"] = several
    properties["access"] = _one_of(sent, "access", path, ("Allow", "Deny"), "Access type")
    properties["priority"] = _priority(sent, path)
    properties["direction"] = _one_of(sent, "direction", path, ("Inbound", "Outbound"), "Direction")
    properties.update(lists)
    return rule


def check_conflicts(rules: Sequence[dict[str, Any]]) -> None:
    """Check that no two rules of one direction have the same priority."""
    seen: dict[tuple[str, int], str] = {}
    for rule in rules:
        place = (rule["properties"]["direction"], rule["properties"]["priority"])
        if place in seen:
            raise bad_request(
                "SecurityRuleConflict",
                f"Security rule {seen[place]} conflicts with rule {rule['name']}. Rules cannot have the same Priority "
                "and Direction. To learn more, see aka.ms/nsgrules.",
            )
        seen[place] = rule["name"]


def _one_of(sent: dict[str, Any], name: str, path: str, allowed: Sequence[str], title: str) -> str:
    value = text(sent, name, path, "") or ""
    for known in allowed:
        if known.lower() == value.lower():
            return known
    raise bad_request(
        f"SecurityRuleInvalid{title.title().replace(' ', '')}",
        f"Security rule has invalid {title}. Value provided: {value} Allowed values: {','.join(allowed)}.",
    )


def _priority(sent: dict[str, Any], path: str) -> int:
    priority = integer(sent, "priority", path, 0)
    if not 100 <= priority <= 4096:
        raise bad_request(
            "SecurityRuleInvalidPriority",
            f"Security rule has invalid Priority. Value provided: {priority} Allowed range 100-4096.",
        )
    return priority


def _check_ports(value: str) -> None:
    if value == "*":
        return
    found = re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", value)
    low, high = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
    if not 0 <= low <= high <= 65535:
        raise bad_request(
            "SecurityRuleInvalidPortRange",
            f"Security rule has invalid Port range. Value provided: {value}. Value should be an integer OR integer "
            "range with '-' delimiter. Valid range 0-65535.",
        )


def _check_prefix(value: str) -> None:
    tag = value.lower()
    if value == "*" or tag in _SERVICE_TAGS or tag.split(".")[0] in _SERVICE_TAGS:
        return
    # A plain number is an IPv4 address to Azure, as recordings show.
    if re.fullmatch(r"[0-9]{1,10}", value) and int(value) < 2**32:
        return
    try:
        ipaddress.ip_network(value)
    except ValueError:
        raise bad_request(
            "SecurityRuleInvalidAddressPrefix", f"Security rule has invalid Address prefix. Value provided: {value}"
        ) from None


_RANGES = (("PortRange", "PortRanges", _check_ports), ("AddressPrefix", "AddressPrefixes", _check_prefix))
