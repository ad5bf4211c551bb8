"""Virtual networks (VNets) and their subnets."""

from typing import Any

from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.routes import Service, key
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services.common import section
from gpuinfra.sandbox.services.network import subnets
from gpuinfra.sandbox.services.network.fields import bad_request, boolean, choice, text, texts
from gpuinfra.sandbox.services.network.handlers import add_kind, add_nested_kind, with_etag
from gpuinfra.sandbox.services.network.network_resource import Kind, Uses, build_items, nested_item, new_resource
from gpuinfra.sandbox.services.network.subnets import parse_prefix

service = Service()

KIND = Kind("virtualNetworks", "VirtualNetwork", "network", retry_after=(3, 10), longest_name=64)

_KNOWN = (
    "addressSpace subnets dhcpOptions encryption privateEndpointVNetPolicies provisioningState resourceGuid".split()
)


def _build(cloud: Cloud, own_id: str, location: str, body: dict[str, Any], existing: Resource | None) -> Resource:
    """Return a VNet. Without `subnets` the existing ones stay; an empty list removes them."""
    vnet, sent = new_resource(KIND, own_id, location, body, existing, _KNOWN)
    vnet.properties.update(
        {
            "addressSpace": {"addressPrefixes": _address_space(own_id, sent)},
            **_options(own_id, sent),
            "subnets": [],
            "virtualNetworkPeerings": [],
            "enableDdosProtection": False,
        }
    )
    vnet.properties["subnets"] = _inline_subnets(cloud, vnet, sent, existing)
    subnets.check_ranges(vnet, vnet.properties["subnets"])
    return vnet


def _address_space(own_id: str, sent: dict[str, Any]) -> list[str]:
    prefixes = texts(section(sent, "addressSpace"), "addressPrefixes", "properties.addressSpace")
    if not prefixes:
        raise bad_request("InvalidAddressPrefixFormat", f"Address prefix of resource {own_id} is missing.")
    for prefix in prefixes:
        parse_prefix(prefix, own_id)
    return prefixes


def _options(own_id: str, sent: dict[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if sent.get("dhcpOptions") is not None:
        options["dhcpOptions"] = {
            "dnsServers": texts(section(sent, "dhcpOptions"), "dnsServers", "properties.dhcpOptions")
        }
    if sent.get("encryption") is not None:
        encryption, path = section(sent, "encryption"), "properties.encryption"
        if encryption.get("enabled") is None or text(encryption, "enforcement", path) is None:
            raise bad_request(
                "MustSpecifyBothEncryptionIntentAndEnforcementPolicy",
                f"Cannot encrypt VirtualNetwork {own_id} unless both encryption intent (Enabled true or false) and "
                "enforcement policy (AllowUnencrypted or DropUnencrypted) are specified.",
            )
        policies = ("AllowUnencrypted", "DropUnencrypted")
        options["encryption"] = {
            "enabled": boolean(encryption, "enabled", path),
            "enforcement": choice(encryption, "enforcement", path, policies, policies[0]),
        }
    options["privateEndpointVNetPolicies"] = choice(
        sent, "privateEndpointVNetPolicies", "properties", ("Disabled", "Basic"), "Disabled"
    )
    return options


def _inline_subnets(
    cloud: Cloud, vnet: Resource, sent: dict[str, Any], existing: Resource | None
) -> list[dict[str, Any]]:
    before = existing.properties["subnets"] if existing else []
    if sent.get("subnets") is None:
        return list(before)
    made = build_items(subnets.KIND, sent, existing, lambda *item: subnets.build(cloud, vnet, *item))
    vnet.properties["subnets"] = made
    for old in before:
        new = nested_item(vnet, subnets.KIND, old["name"])
        if new:
            subnets.check_change(cloud, old, new)
        else:
            subnets.check_unused(cloud, old)
    return made


def _show(_cloud: Cloud, vnet: Resource, uses: Uses) -> dict[str, Any]:
    """Return a VNet as it is answered; its subnets show what is in them."""
    body = with_etag(vnet)
    for item in body["properties"]["subnets"]:
        if users := uses.get(key(item["id"])):
            item["properties"]["ipConfigurations"] = [{"id": use.user} for use in users]
    return body


def _check_unused(cloud: Cloud, vnet: Resource) -> None:
    for item in vnet.properties["subnets"]:
        subnets.check_unused(cloud, item)


def _check_subnets(cloud: Cloud, vnet: Resource, old: dict[str, Any] | None, all_subnets: list[dict[str, Any]]) -> None:
    if old:
        subnets.check_change(cloud, old, all_subnets[-1])
    subnets.check_ranges(vnet, all_subnets)


add_kind(service, KIND, build=_build, show=_show, check_unused=_check_unused)
add_nested_kind(
    service,
    KIND,
    subnets.KIND,
    build=subnets.build,
    show=_show,
    check=_check_subnets,
    check_unused=subnets.check_unused,
)
