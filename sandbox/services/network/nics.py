"""Network interfaces (NICs)."""

import uuid
from typing import Any

from gpuinfra.sandbox.kernel.call import Answer, Call
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.errors import ArmError
from gpuinfra.sandbox.kernel.routes import Service
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services.common import section
from gpuinfra.sandbox.services.network import nic_ip_configurations, public_ips
from gpuinfra.sandbox.services.network.fields import bad_request, boolean, choice, reference, text, texts
from gpuinfra.sandbox.services.network.handlers import add_kind, add_nested_kind, begin, check_put, path_of, with_etag
from gpuinfra.sandbox.services.network.network_resource import (
    SUCCEEDED,
    Kind,
    Uses,
    keep,
    new_resource,
    require_reference,
    set_state,
)

service = Service()

KIND = Kind("networkInterfaces", "NetworkInterface", "nic", retry_after=(1, 2))

_OWNED = ("macAddress", "primary", "virtualMachine")
_KNOWN = (
    *"ipConfigurations networkSecurityGroup enableAcceleratedNetworking enableIPForwarding dnsSettings".split(),
    "disableTcpStateTracking",
    # Read-only, or with the one value that is modelled.
    *_OWNED,
    *"allowPort25Out nicAuxiliarySkuBillingNotificationType nicType provisioningState resourceGuid".split(),
    "vnetEncryptionSupported",
)
# Since this version a new NIC exists at once, without an operation.
_AT_ONCE = "2023-11-01"


@service.route("PUT", path_of(KIND))
def _put_nic(call: Call) -> Answer:
    body, existing, own_id, location = check_put(call, KIND)
    nic = build(call.cloud, own_id, location, body, existing)
    if existing is None and call.api_version >= _AT_ONCE and not call.cloud.faults.hits_operation(own_id, location):
        keep(call.cloud, nic)
        return Answer(201, _show(call.cloud, nic, {}))
    operation = begin(call, KIND, nic, "put")
    if existing is None:
        set_state(nic, SUCCEEDED)
        keep(call.cloud, nic)
    elif owner(call.cloud, nic):
        for public_ip_id in public_ip_ids(nic):
            public_ips.assign_address(call.cloud, public_ip_id)
    return call.cloud.operations.created(call, operation, _show(call.cloud, nic, {}), new=existing is None)


def build(cloud: Cloud, own_id: str, location: str, body: dict[str, Any], existing: Resource | None) -> Resource:
    """Return a NIC from its body; it has its addresses and is provisioned."""
    nic, sent = new_resource(KIND, own_id, location, body, existing, _KNOWN)
    path = "properties"
    properties: dict[str, Any] = {
        "ipConfigurations": nic_ip_configurations.build(cloud, nic, sent, existing),
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
    nic.body["kind"] = "Regular"
    nic.properties.update(properties)
    nic.hidden["addressDeleteOptions"] = nic_ip_configurations.delete_options(sent)
    set_state(nic, SUCCEEDED)
    return nic


def _dns_settings(sent: dict[str, Any], existing: Resource | None) -> dict[str, Any]:
    path, settings = "properties.dnsSettings", section(sent, "dnsSettings")
    before = existing.properties["dnsSettings"] if existing else {}
    suffix = before.get("internalDomainNameSuffix") or f"{uuid.uuid4().hex[:26]}.bx.internal.cloudapp.net"
    servers = texts(settings, "dnsServers", path)
    shown: dict[str, Any] = {"dnsServers": servers, "appliedDnsServers": servers}
    if label := text(settings, "internalDnsNameLabel", path):
        shown |= {"internalDnsNameLabel": label, "internalFqdn": f"{label}.{suffix}"}
    return {**shown, "internalDomainNameSuffix": suffix}


# For VMs


def owner(cloud: Cloud, nic: Resource) -> str | None:
    """Return the id of the VM that the NIC is attached to, if that VM exists."""
    vm_id = nic.properties.get("virtualMachine", {}).get("id")
    return str(vm_id) if vm_id and cloud.store.get(vm_id) else None


def in_use(nic: Resource, vm_id: str) -> ArmError:
    """Return the error for deleting an attached NIC."""
    return bad_request(
        "NicInUse",
        f"Network Interface {nic.id} is used by existing resource {vm_id}. In order to delete the network "
        "interface, it must be dissociated from the resource. To learn more, see aka.ms/deletenic.",
    )


def mac_address(nic: Resource) -> str:
    """Return the NIC's MAC address, in Azure's range."""
    digits = str(nic.properties["resourceGuid"]).upper()
    return f"00-0D-3A-{digits[0:2]}-{digits[2:4]}-{digits[4:6]}"


def public_ip_ids(nic: Resource) -> list[str]:
    """Return the ids of the NIC's public IPs."""
    configurations = [item["properties"] for item in nic.properties["ipConfigurations"]]
    return [item["publicIPAddress"]["id"] for item in configurations if "publicIPAddress" in item]


def primary_configuration(nic: Resource | None) -> dict[str, Any]:
    """Return the properties of the primary IP configuration; empty without a NIC."""
    for item in nic.properties["ipConfigurations"] if nic else []:
        if item["properties"]["primary"]:
            return dict(item["properties"])
    return {}


# Read and delete


def _show(cloud: Cloud, nic: Resource, _uses: Uses) -> dict[str, Any]:
    """Return a NIC as it is answered."""
    body = with_etag(nic)
    if owner(cloud, nic) is None:
        for name in _OWNED:
            body["properties"].pop(name, None)
    return body


def _check_unused(cloud: Cloud, nic: Resource) -> None:
    if vm_id := owner(cloud, nic):
        raise in_use(nic, vm_id)


add_kind(service, KIND, show=_show, check_unused=_check_unused)
add_nested_kind(service, KIND, nic_ip_configurations.KIND, show=_show)
