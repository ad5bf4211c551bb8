"""The instance document of a VM at `/metadata/instance`, API version 2021-02-01."""

from typing import Any

from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.faults import US_GOVERNMENT
from gpuinfra.sandbox.kernel.resource_id import parse_id
from gpuinfra.sandbox.kernel.store import Resource


def instance_document(cloud: Cloud, machine: Resource) -> dict[str, Any]:
    """Return the document. Numbers and booleans are strings in it, as in Azure."""
    return {"compute": _compute(cloud, machine), "network": {"interface": _interfaces(cloud, machine)}}


def environment_of(cloud: Cloud, machine: Resource) -> str:
    """Return which of Azure's clouds the machine is in."""
    is_government = cloud.faults.look(US_GOVERNMENT, resource_id=machine.id, region=machine.location)
    return "AzureUSGovernmentCloud" if is_government else "AzurePublicCloud"


def _compute(cloud: Cloud, machine: Resource) -> dict[str, Any]:
    body, properties = machine.body, machine.properties
    storage = properties.get("storageProfile") or {}
    image = storage.get("imageReference") or {}
    profile = properties.get("osProfile") or {}
    linux = profile.get("linuxConfiguration") or {}
    tags: dict[str, str] = body.get("tags") or {}
    plan = body.get("plan") or {}
    keys = (linux.get("ssh") or {}).get("publicKeys") or []
    return {
        "azEnvironment": environment_of(cloud, machine),
        "customData": "",
        "evictionPolicy": properties.get("evictionPolicy", ""),
        "isHostCompatibilityLayerVm": "false",
        "licenseType": properties.get("licenseType", ""),
        "location": machine.location,
        "name": machine.name,
        "offer": image.get("offer", ""),
        "osProfile": {
            "adminUsername": profile.get("adminUsername", ""),
            "computerName": profile.get("computerName", ""),
            "disablePasswordAuthentication": str(bool(linux.get("disablePasswordAuthentication"))).lower(),
        },
        "osType": (storage.get("osDisk") or {}).get("osType", "Linux"),
        "placementGroupId": "",
        "plan": {name: plan.get(name, "") for name in ("name", "product", "publisher")},
        "platformFaultDomain": "0",
        "platformUpdateDomain": "0",
        "priority": properties.get("priority", ""),
        "provider": "Microsoft.Compute",
        "publicKeys": [{"keyData": key.get("keyData", ""), "path": key.get("path", "")} for key in keys],
        "publisher": image.get("publisher", ""),
        "resourceGroupName": machine.group,
        "resourceId": machine.id,
        "sku": image.get("sku", ""),
        "storageProfile": {"imageReference": image},
        "subscriptionId": cloud.subscription,
        "tags": ";".join(f"{name}:{value}" for name, value in tags.items()),
        "tagsList": [{"name": name, "value": value} for name, value in tags.items()],
        "userData": machine.hidden.get("userData", ""),
        "version": image.get("exactVersion", image.get("version", "")),
        "vmId": properties.get("vmId", ""),
        "vmScaleSetName": "",
        "vmSize": (properties.get("hardwareProfile") or {}).get("vmSize", ""),
        "zone": next(iter(body.get("zones") or []), ""),
    }


def _interfaces(cloud: Cloud, machine: Resource) -> list[dict[str, Any]]:
    references = (machine.properties.get("networkProfile") or {}).get("networkInterfaces") or []
    found = [cloud.store.get(reference["id"]) for reference in references if reference.get("id")]
    return [_interface(cloud, interface) for interface in found if interface is not None]


def _interface(cloud: Cloud, interface: Resource) -> dict[str, Any]:
    configurations = interface.properties.get("ipConfigurations") or []
    parts = [configuration.get("properties") or {} for configuration in configurations]
    return {
        "ipv4": {
            "ipAddress": [
                {"privateIpAddress": part.get("privateIPAddress", ""), "publicIpAddress": _public(cloud, part)}
                for part in parts
            ],
            "subnet": [subnet for part in parts if (subnet := _subnet(cloud, part)) is not None],
        },
        "ipv6": {"ipAddress": []},
        "macAddress": str(interface.properties.get("macAddress", "")).replace("-", "").replace(":", ""),
    }


def _public(cloud: Cloud, part: dict[str, Any]) -> str:
    reference = (part.get("publicIPAddress") or {}).get("id")
    address = cloud.store.get(reference) if reference else None
    return str(address.properties.get("ipAddress", "")) if address else ""


def _subnet(cloud: Cloud, part: dict[str, Any]) -> dict[str, str] | None:
    reference = (part.get("subnet") or {}).get("id")
    if not reference:
        return None
    parsed = parse_id(reference)
    network = cloud.store.get(str(parsed.parent))
    subnets = network.properties["subnets"] if network else []
    own = (each["properties"] for each in subnets if each["name"].lower() == parsed.name.lower())
    properties: dict[str, Any] = next(own, {})
    prefix = properties.get("addressPrefix") or next(iter(properties.get("addressPrefixes") or []), "")
    address, _, length = str(prefix).partition("/")
    return {"address": address, "prefix": length}
