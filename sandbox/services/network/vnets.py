"""Virtual networks (VNets) and their subnets."""

import uuid
from typing import Any

from gpuinfra.sandbox.kernel.call import Answer, Call
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.resource_id import key
from gpuinfra.sandbox.kernel.routes import Service
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services.common import check_conditions, check_tags, require_object, section
from gpuinfra.sandbox.services.network import subnets
from gpuinfra.sandbox.services.network.fields import (
    bad_request,
    boolean,
    choice,
    item_names,
    items,
    only_known,
    text,
    texts,
)
from gpuinfra.sandbox.services.network.handlers import (
    add_nested_routes,
    add_routes,
    answer_put,
    nested_path_of,
    nested_put,
    path_of,
    with_etag,
)
from gpuinfra.sandbox.services.network.network_resource import (
    UPDATING,
    Kind,
    add_effects,
    check_idle,
    check_put,
    nested_item,
    require_parent,
)
from gpuinfra.sandbox.services.network.references import Uses
from gpuinfra.sandbox.services.network.subnets import parse_prefix

service = Service()

KIND = Kind("virtualNetworks", "VirtualNetwork", "network", retry_after=(3, 10), longest_name=64)
add_effects(service, KIND)
add_effects(service, subnets.KIND)

_KNOWN = (
    "addressSpace",
    "subnets",
    "dhcpOptions",
    "encryption",
    "privateEndpointVNetPolicies",
    "provisioningState",
    "resourceGuid",
)


@service.route("PUT", path_of(KIND))
def _put_vnet(call: Call) -> Answer:
    """Create or replace a VNet. Without `subnets` the existing ones stay; an empty list removes them."""
    own_id, existing, location = check_put(call, KIND)
    vnet = _build(call, own_id, location, existing)
    return answer_put(call, KIND, vnet, new=existing is None, show=show)


def _build(call: Call, own_id: str, location: str, existing: Resource | None) -> Resource:
    body = require_object(call)
    vnet = Resource(own_id, location, {}, dict(existing.hidden) if existing else {})
    sent = section(body, "properties")
    only_known(sent, _KNOWN, "properties")
    vnet.body = {
        "name": vnet.name,
        "id": own_id,
        "type": KIND.full_type,
        "location": location,
        **({"tags": check_tags(body)} if body.get("tags") is not None else {}),
        "properties": {
            "provisioningState": UPDATING,
            "resourceGuid": existing.properties["resourceGuid"] if existing else str(uuid.uuid4()),
            "addressSpace": {"addressPrefixes": _address_space(own_id, sent)},
            **_options(own_id, sent),
            "subnets": [],
            "virtualNetworkPeerings": [],
            "enableDdosProtection": False,
        },
    }
    vnet.properties["subnets"] = _inline_subnets(call.cloud, vnet, sent, existing)
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
    before = {item["name"].lower(): item for item in existing.properties["subnets"]} if existing else {}
    if sent.get("subnets") is None:
        return list(before.values())
    wanted = items(sent, "subnets", "properties")
    made = []
    for place, name in enumerate(item_names(wanted, "properties.subnets")):
        old = before.pop(name.lower(), None)
        path = f"properties.subnets[{place}].properties"
        new = subnets.build(cloud, vnet, old["name"] if old else name, wanted[place], path)
        if old:
            subnets.check_change(cloud, old, new)
        made.append(new)
    for left_out in before.values():
        subnets.check_unused(cloud, left_out)
    return made


def show(vnet: Resource, uses: Uses) -> dict[str, Any]:
    """Return a VNet as it is answered; its subnets show what is in them."""
    body = with_etag(vnet)
    for item in body["properties"]["subnets"]:
        if users := uses.get(key(item["id"])):
            item["properties"]["ipConfigurations"] = [{"id": use.user} for use in users]
    return body


def _check_unused(cloud: Cloud, vnet: Resource) -> None:
    for item in vnet.properties["subnets"]:
        subnets.check_unused(cloud, item)


add_routes(service, KIND, lambda _call: show, _check_unused)


@service.route("PUT", nested_path_of(KIND, subnets.KIND))
def _put_subnet(call: Call) -> Answer:
    vnet = require_parent(call, KIND, for_write=True)
    old = nested_item(vnet, subnets.KIND, call["nested"])
    check_conditions(call, vnet if old else None)
    name = old["name"] if old else call["nested"]
    new = subnets.build(call.cloud, vnet, name, require_object(call), "properties")
    check_idle(call, vnet, new["id"])
    if old:
        subnets.check_change(call.cloud, old, new)
    others = [item for item in vnet.properties["subnets"] if item["name"].lower() != name.lower()]
    subnets.check_ranges(vnet, [*others, new])
    return nested_put(call, subnets.KIND, vnet, new, show)


add_nested_routes(service, KIND, subnets.KIND, lambda _call: show, subnets.check_unused)
