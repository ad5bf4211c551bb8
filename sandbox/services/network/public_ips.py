"""Public IPs. Their addresses are on loopback, where the guest of a VM listens."""

import hashlib
import re
from typing import Any

from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.errors import not_modelled
from gpuinfra.sandbox.kernel.routes import Service, key
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services.common import section
from gpuinfra.sandbox.services.network.fields import bad_request, choice, integer, items, text, texts
from gpuinfra.sandbox.services.network.handlers import add_kind, with_etag
from gpuinfra.sandbox.services.network.network_resource import Kind, Uses, keep, new_resource, users_of

service = Service()

KIND = Kind("publicIPAddresses", "PublicIpAddress", "address", retry_after=(1, 2))

_KNOWN = (
    "publicIPAddressVersion publicIPAllocationMethod idleTimeoutInMinutes dnsSettings ipTags ddosSettings ipAddress "
    "ipConfiguration provisioningState resourceGuid"
).split()
_COUNTER = "network-public-address"
_COUNT = 2**16 - 2  # of 127.77.0.0/16, without its first and its last


def build(cloud: Cloud, own_id: str, location: str, body: dict[str, Any], existing: Resource | None) -> Resource:
    """Return a public IP from its body. Its address is assigned when the operation ends, and then stays."""
    public_ip, sent = new_resource(KIND, own_id, location, body, existing, _KNOWN)
    sku = _sku(section(body, "sku"), existing)
    if choice(sent, "publicIPAddressVersion", "properties", ("IPv4", "IPv6"), "IPv4") == "IPv6":
        raise not_modelled("public IPv6 addresses")
    standard = sku["name"] == "Standard"
    default = "Static" if standard else "Dynamic"
    method = choice(sent, "publicIPAllocationMethod", "properties", ("Static", "Dynamic"), default)
    if standard and method != "Static":
        raise bad_request(
            "StandardAndStandardV2SkuPublicIPAddressesMustBeStatic",
            f"Standard sku publicIp {own_id} must have AllocationMethod set to Static.",
        )
    kept = existing.properties.get("ipAddress") if existing else None
    dns = _dns_settings(cloud, own_id, location, sent)
    public_ip.body |= {**_zones(cloud, own_id, location, body, existing), "sku": sku}
    public_ip.properties.update(
        {
            **({"ipAddress": kept} if kept else {}),
            "publicIPAddressVersion": "IPv4",
            "publicIPAllocationMethod": method,
            "idleTimeoutInMinutes": _idle_timeout(own_id, sent),
            **({"dnsSettings": dns} if dns else {}),
            "ipTags": _ip_tags(sent),
            **({"ddosSettings": _ddos_settings(sent)} if standard else {}),
        }
    )
    return public_ip


def _sku(sent: dict[str, Any], existing: Resource | None) -> dict[str, str]:
    sku = {
        "name": choice(sent, "name", "sku", ("Basic", "Standard"), "Basic"),
        "tier": choice(sent, "tier", "sku", ("Regional",), "Regional"),
    }
    if existing and existing.body["sku"] != sku:
        raise bad_request(
            "PublicIPAddressSkuCannotBeChanged",
            f"Sku property is set at creation time and cannot be changed from {existing.body['sku']['name']} to "
            f"{sku['name']} for resource {existing.id}.",
        )
    return sku


def _zones(
    cloud: Cloud, own_id: str, location: str, body: dict[str, Any], existing: Resource | None
) -> dict[str, list[str]]:
    zones = sorted(set(texts(body, "zones", "")))
    region = cloud.catalogue.region(location)
    unknown = [zone for zone in zones if region is None or zone not in region.zones]
    if unknown:
        raise bad_request(
            "AvailabilityZoneNotSupported",
            f"The zone(s) '{', '.join(unknown)}' for resource '{own_id}' is not supported. The supported zones for "
            f"location '{location}' are '{','.join(region.zones) if region else ''}'",
        )
    before = existing.body.get("zones", []) if existing else zones
    if before != zones:
        raise bad_request(
            "ResourceAvailabilityZonesCannotBeModified",
            f"Resource {own_id} has an existing availability zone constraint {', '.join(before) or 'NoZone'} and the "
            f"request has availability zone constraint {', '.join(zones) or 'NoZone'}, which do not match. Zones "
            "cannot be added/updated/removed once the resource is created. The resource cannot be updated from "
            "regional to zonal or vice-versa.",
        )
    return {"zones": zones} if zones else {}


def _idle_timeout(own_id: str, sent: dict[str, Any]) -> int:
    minutes = integer(sent, "idleTimeoutInMinutes", "properties", 4)
    if not 4 <= minutes <= 30:
        raise bad_request(
            "InvalidIdleTimeoutInMinutes",
            f"The idle timeout of resource {own_id} is {minutes} minutes. It must be between 4 and 30 minutes.",
        )
    return minutes


def _ip_tags(sent: dict[str, Any]) -> list[dict[str, str | None]]:
    names, path = ("ipTagType", "tag"), "properties.ipTags"
    return [{name: text(tag, name, path) for name in names} for tag in items(sent, "ipTags", "properties")]


def _ddos_settings(sent: dict[str, Any]) -> dict[str, str]:
    modes = ("VirtualNetworkInherited", "Enabled", "Disabled")
    settings = section(sent, "ddosSettings")
    return {"protectionMode": choice(settings, "protectionMode", "properties.ddosSettings", modes, modes[0])}


def _dns_settings(cloud: Cloud, own_id: str, location: str, sent: dict[str, Any]) -> dict[str, str] | None:
    path, settings = "properties.dnsSettings", section(sent, "dnsSettings")
    label = text(settings, "domainNameLabel", path)
    if label is None:
        return None
    rule = "^[a-z][a-z0-9-]{1,61}[a-z0-9]$"
    if not re.fullmatch(rule, label):
        raise bad_request(
            "InvalidDomainNameLabel",
            f"The domain name label {label} is invalid. It must conform to the following regular expression: {rule}.",
        )
    scopes = ("TenantReuse", "SubscriptionReuse", "ResourceGroupReuse", "NoReuse")
    scope = settings.get("domainNameLabelScope") and choice(settings, "domainNameLabelScope", path, scopes, "NoReuse")
    # With a scope, a part of the name is specific to the tenant, subscription, resource group or resource.
    part = {"TenantReuse": cloud.tenant, "SubscriptionReuse": cloud.subscription, "NoReuse": own_id}.get(
        scope or "", own_id.rsplit("/providers/", 1)[0]
    )
    middle = f".{hashlib.sha256(f'{label}/{key(part)}'.encode()).hexdigest()[:16]}" if scope else ""
    name = f"{label}{middle}.{location}.cloudapp.azure.com"
    if any(key(use.user) != key(own_id) for use in users_of(cloud, name)):
        raise bad_request("DnsRecordInUse", f"DNS record {name} is already used by another public IP.")
    return {"domainNameLabel": label, **({"domainNameLabelScope": scope} if scope else {}), "fqdn": name}


# Addresses


def assign_address(cloud: Cloud, public_ip_id: str) -> None:
    """Assign an address, if there is none: a dynamic public IP gets it when a VM uses it."""
    public_ip = cloud.store.get(public_ip_id)
    if public_ip is not None and "ipAddress" not in public_ip.properties:
        public_ip.properties["ipAddress"] = _next_address(cloud)
        keep(cloud, public_ip)


def assign_static_address(cloud: Cloud, public_ip: Resource) -> None:
    """Assign an address to a static public IP, if there is none; the caller stores it."""
    if public_ip.properties["publicIPAllocationMethod"] == "Static" and "ipAddress" not in public_ip.properties:
        public_ip.properties["ipAddress"] = _next_address(cloud)


def _next_address(cloud: Cloud) -> str:
    """Return the next unused address of 127.77.0.0/16. The address released last is reused last."""
    number = int(cloud.store.setting(_COUNTER, 0))
    for _ in range(_COUNT):
        number = number % _COUNT + 1
        candidate = f"127.77.{number >> 8}.{number & 255}"
        if not users_of(cloud, candidate):
            cloud.store.set_setting(_COUNTER, number)
            return candidate
    raise bad_request(
        "PublicIPCountLimitReached", f"Cannot create more than {_COUNT} public IP addresses for this subscription."
    )


# Read and delete


def _show(_cloud: Cloud, public_ip: Resource, uses: Uses) -> dict[str, Any]:
    """Return a public IP as it is answered, with what it is attached to."""
    body = with_etag(public_ip)
    if users := uses.get(key(public_ip.id)):
        body["properties"]["ipConfiguration"] = {"id": users[0].user}
    return body


def _check_unused(cloud: Cloud, public_ip: Resource) -> None:
    if users := users_of(cloud, public_ip.id):
        raise bad_request(
            "PublicIPAddressCannotBeDeleted",
            f"Public IP address {public_ip.id} can not be deleted since it is still allocated to resource "
            f"{users[0].user}. In order to delete the public IP, disassociate/detach the Public IP address from the "
            "resource.  To learn how to do this, see aka.ms/deletepublicip.",
        )


add_kind(service, KIND, build=build, show=_show, check_unused=_check_unused, finish=assign_static_address)
