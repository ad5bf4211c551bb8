"""Network interfaces."""

from __future__ import annotations

import uuid
from functools import partial
from typing import Any

from gpuinfra.sandbox.kernel.call import Answer, Call
from gpuinfra.sandbox.kernel.cloud import Cloud, Effects
from gpuinfra.sandbox.kernel.errors import ArmError
from gpuinfra.sandbox.kernel.faults import OPERATION_ERRORS
from gpuinfra.sandbox.kernel.routes import Routes
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services.common import check_conditions, check_tags, require_object, section
from gpuinfra.sandbox.services.network import interface_configurations, public_addresses
from gpuinfra.sandbox.services.network.alike import add_nested_routes, add_routes, path_of
from gpuinfra.sandbox.services.network.answers import (
    Show,
    with_etag,
)
from gpuinfra.sandbox.services.network.fields import bad_request, boolean, choice, only_known, reference, text, texts
from gpuinfra.sandbox.services.network.references import Uses, keep
from gpuinfra.sandbox.services.network.tracked import (
    SUCCEEDED,
    Kind,
    add_effects,
    begin,
    check_idle,
    find,
    put_location,
    require_reference,
    set_state,
)

routes = Routes()
effects = Effects()

KIND = Kind("networkInterfaces", "NetworkInterface", "nic", retry_after=(1, 2))
add_effects(effects, KIND)

_OWNED = ("macAddress", "primary", "virtualMachine")
_KNOWN = (
    "ipConfigurations",
    "networkSecurityGroup",
    "enableAcceleratedNetworking",
    "enableIPForwarding",
    "disableTcpStateTracking",
    "dnsSettings",
    # Read-only, or with the one value that is modelled.
    *_OWNED,
    "allowPort25Out",
    "nicAuxiliarySkuBillingNotificationType",
    "nicType",
    "provisioningState",
    "resourceGuid",
    "vnetEncryptionSupported",
)
# Since this version a new interface is there at once, with no operation to ask after.
_AT_ONCE = "2023-11-01"


@routes.add("PUT", path_of(KIND))
def put_interface(call: Call) -> Answer:
    """Create or replace an interface."""
    own_id, existing = find(call, KIND, for_write=True)
    location = put_location(call, KIND, existing)
    check_conditions(call, existing)
    check_idle(call, existing, own_id)
    interface = build(call.cloud, own_id, location, require_object(call), existing)
    if existing is None and call.api_version >= _AT_ONCE and not _fault_waits(call, own_id, location):
        keep(call.cloud, interface)
        return Answer(201, show(call.cloud, interface, {}))
    operation = begin(call, KIND, interface, "put")
    if existing is None:
        set_state(interface, SUCCEEDED)
        keep(call.cloud, interface)
    elif owner(call.cloud, interface):
        for address_id in addresses_of(interface):
            public_addresses.assign(call.cloud, address_id)
    body = show(call.cloud, interface, {})
    return call.cloud.operations.created(call, operation, body, new=existing is None)


def _fault_waits(call: Call, own_id: str, location: str) -> bool:
    """Whether a fault would hit the operation: then there has to be one."""
    faults = call.cloud.faults
    names = [
        fault["name"]
        for fault in faults.all()
        if fault.get("operation") or fault["name"] in OPERATION_ERRORS or fault["name"] == "never-ends"
    ]
    return any(faults.look(name, resource_id=own_id, region=location) for name in names)


def build(cloud: Cloud, own_id: str, location: str, body: dict[str, Any], existing: Resource | None) -> Resource:
    """An interface from what was sent; it has its addresses and is ready."""
    interface = Resource(own_id, location, {}, dict(existing.hidden) if existing else {})
    sent, path = section(body, "properties"), "properties"
    only_known(sent, _KNOWN, path)
    properties: dict[str, Any] = {
        "provisioningState": SUCCEEDED,
        "resourceGuid": existing.properties["resourceGuid"] if existing else str(uuid.uuid4()),
        "ipConfigurations": interface_configurations.build(cloud, interface, sent, existing),
        "dnsSettings": _dns_settings(sent, existing),
        "enableAcceleratedNetworking": boolean(sent, "enableAcceleratedNetworking", path),
        "vnetEncryptionSupported": False,
        "enableIPForwarding": boolean(sent, "enableIPForwarding", path),
        "disableTcpStateTracking": boolean(sent, "disableTcpStateTracking", path),
    }
    if group := reference(sent, "networkSecurityGroup", path, "networkSecurityGroups"):
        found = require_reference(cloud, group, location, own_id)
        properties["networkSecurityGroup"] = {"id": found["id"]}
    if existing:
        properties |= {name: existing.properties[name] for name in _OWNED if name in existing.properties}
    properties |= {
        "hostedWorkloads": [],
        "tapConfigurations": [],
        "nicType": choice(sent, "nicType", path, ("Standard",), "Standard"),
        "allowPort25Out": True,
        "auxiliaryMode": "None",
        "auxiliarySku": "None",
    }
    interface.body = {
        "name": interface.name,
        "id": own_id,
        **({"tags": check_tags(body)} if body.get("tags") is not None else {}),
        "properties": properties,
        "type": KIND.full_type,
        "location": location,
        "kind": "Regular",
    }
    interface.hidden["addressDeleteOptions"] = interface_configurations.delete_options(sent)
    set_state(interface, SUCCEEDED)
    return interface


def _dns_settings(sent: dict[str, Any], existing: Resource | None) -> dict[str, Any]:
    path, settings = "properties.dnsSettings", section(sent, "dnsSettings")
    before = existing.properties["dnsSettings"] if existing else {}
    suffix = before.get("internalDomainNameSuffix") or f"{uuid.uuid4().hex[:26]}.bx.internal.cloudapp.net"
    servers = texts(settings, "dnsServers", path)
    shown: dict[str, Any] = {"dnsServers": servers, "appliedDnsServers": servers}
    if label := text(settings, "internalDnsNameLabel", path):
        shown |= {"internalDnsNameLabel": label, "internalFqdn": f"{label}.{suffix}"}
    return {**shown, "internalDomainNameSuffix": suffix}


# What machines know of interfaces


def owner(cloud: Cloud, interface: Resource) -> str | None:
    """The id of the machine that an interface belongs to, as long as that machine is there."""
    machine_id = interface.properties.get("virtualMachine", {}).get("id")
    return str(machine_id) if machine_id and cloud.store.get(machine_id) else None


def in_use(interface: Resource, machine_id: str) -> ArmError:
    """An interface that belongs to a machine."""
    return bad_request(
        "NicInUse",
        f"Network Interface {interface.id} is used by existing resource {machine_id}. In order to delete the network "
        "interface, it must be dissociated from the resource. To learn more, see aka.ms/deletenic.",
    )


def hardware_address(interface: Resource) -> str:
    """A MAC address in the range that Azure has, the interface's own."""
    digits = str(interface.properties["resourceGuid"]).upper()
    return f"00-0D-3A-{digits[0:2]}-{digits[2:4]}-{digits[4:6]}"


def addresses_of(interface: Resource) -> list[str]:
    """The ids of the public addresses of an interface."""
    configurations = [item["properties"] for item in interface.properties["ipConfigurations"]]
    return [item["publicIPAddress"]["id"] for item in configurations if "publicIPAddress" in item]


def primary_configuration(interface: Resource | None) -> dict[str, Any]:
    """The properties of the primary IP configuration; nothing where there is no interface."""
    for item in interface.properties["ipConfigurations"] if interface else []:
        if item["properties"]["primary"]:
            return dict(item["properties"])
    return {}


# Reading and deleting


def show(cloud: Cloud, interface: Resource, _uses: Uses) -> dict[str, Any]:
    """An interface as it is answered."""
    body = with_etag(interface)
    if owner(cloud, interface) is None:
        for name in _OWNED:
            body["properties"].pop(name, None)
    return body


def _show(call: Call) -> Show:
    return partial(show, call.cloud)


def _check_unused(cloud: Cloud, interface: Resource) -> None:
    if machine_id := owner(cloud, interface):
        raise in_use(interface, machine_id)


add_routes(routes, KIND, _show, _check_unused)
add_nested_routes(routes, KIND, interface_configurations.KIND, _show)
