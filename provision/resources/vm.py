"""The virtual machine."""

from collections.abc import Iterator
from typing import Any

from gpuinfra.models.images import ALIASES
from gpuinfra.models.json_values import stamp
from gpuinfra.models.plan import Difference, Kind, Resource
from gpuinfra.models.spec import Spec
from gpuinfra.provision import tags
from gpuinfra.provision.lease import hours_to_tag, terms_from_tag, terms_to_tag
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.resources.cloud_init import custom_data
from gpuinfra.provision.resources.common import PlanInput, place, with_others

IDENTITY = {"type": "SystemAssigned"}
"""The system-assigned identity with which the guest agent deallocates the VM: see `agent_role.py`."""


def desired(plan_input: PlanInput) -> Resource:
    """Return the desired VM, including its disk."""
    spec, candidate = plan_input.spec, plan_input.candidate
    interface = {"id": plan_input.id(Kind.NIC), "properties": {"primary": True, "deleteOption": "Delete"}}
    properties = {
        "hardwareProfile": {"vmSize": candidate.size},
        "storageProfile": {"imageReference": image_reference(spec), "osDisk": _disk(plan_input)},
        "osProfile": _system(plan_input),
        "networkProfile": {"networkInterfaces": [interface]},
        "securityProfile": _security(spec),
        **_spot(spec),
    }
    body = {"location": candidate.region, "tags": _tags(plan_input), "identity": IDENTITY, "properties": properties}
    if candidate.zone:
        body["zones"] = [candidate.zone]
    if plan := plan_input.image_plan:
        body["plan"] = {"publisher": plan.publisher, "name": plan.name, "product": plan.product}
    secrets = {"osProfile": {"customData": custom_data(plan_input.host_key, plan_input.terms, spec.admin.username)}}
    return Resource(plan_input.ref(Kind.VM), body, secrets)


def image_reference(spec: Spec) -> dict[str, str]:
    """Return the image in ARM's format."""
    publisher, offer, sku, version = ALIASES.get(spec.image, spec.image).split(":")
    return {"publisher": publisher, "offer": offer, "sku": sku, "version": version}


def _disk(plan_input: PlanInput) -> dict[str, Any]:
    disk = plan_input.spec.disk
    return {
        "name": plan_input.ref(Kind.DISK).name,
        "createOption": "FromImage",
        "caching": "ReadWrite",
        "diskSizeGB": disk.size_gib,
        "managedDisk": {"storageAccountType": disk.sku},
        "deleteOption": "Delete",
    }


def _system(plan_input: PlanInput) -> dict[str, Any]:
    username = plan_input.spec.admin.username
    key = {"path": f"/home/{username}/.ssh/authorized_keys", "keyData": plan_input.public_key}
    return {
        "computerName": plan_input.spec.name,
        "adminUsername": username,
        "linuxConfiguration": {"disablePasswordAuthentication": True, "ssh": {"publicKeys": [key]}},
    }


def _security(spec: Spec) -> dict[str, Any]:
    """Return the security profile. Without it, Azure may choose Secure Boot, which rejects NVIDIA's driver."""
    if spec.security_type == "Standard":
        return {"securityType": "Standard"}
    return {"securityType": spec.security_type, "uefiSettings": {"secureBootEnabled": False, "vTpmEnabled": True}}


def _spot(spec: Spec) -> dict[str, Any]:
    if spec.priority != "spot":
        return {}
    # -1: evict only if capacity is needed, never because of the price.
    price = -1 if spec.spot.max_price is None else spec.spot.max_price
    return {"priority": "Spot", "evictionPolicy": "Deallocate", "billingProfile": {"maxPrice": price}}


def _tags(plan_input: PlanInput) -> dict[str, str]:
    spec, lease = plan_input.spec, plan_input.lease
    found = {
        **spec.tags,
        tags.NAME: spec.name,
        tags.DIGEST: spec.digest(),
        tags.ON_SINCE: stamp(lease.on_since) or "",
        tags.LEASE_UNTIL: stamp(lease.until) or "",
        tags.TERMS: terms_to_tag(plan_input.terms),
        tags.HOST_KEY: plan_input.host_key.public,
        tags.TARGET: spec.target_name,
    }
    hours = hours_to_tag(spec.lifecycle.hours) if spec.lifecycle.hours else None
    return {
        **found,
        **({tags.HOURS: hours} if hours else {}),
        **({tags.REPOSITORY: plan_input.repository} if plan_input.repository else {}),
    }


def differences(wanted: Resource, part: ObservedResource) -> Iterator[Difference]:
    """Yield differences. One that cannot be changed in place replaces the VM with its disk and public IP."""
    yield from place(wanted, part)
    own, found = wanted.body["properties"], part.properties
    old_zone, new_zone = (part.body.get("zones") or [None])[0], (wanted.body.get("zones") or [None])[0]
    if new_zone and old_zone != new_zone:
        yield Difference("zone", old_zone or "none", new_zone, replaces=True)
    old, new = (each["storageProfile"].get("imageReference") or {} for each in (found, own))
    if not _same_image(old, new):
        yield Difference("image", _image(old), _image(new), replaces=True)
    old_user, new_user = (each.get("osProfile", {}).get("adminUsername") for each in (found, own))
    if old_user != new_user:
        yield Difference("username", str(old_user), str(new_user), replaces=True)
    priorities = [str(each.get("priority") or "Regular") for each in (found, own)]
    if priorities[0] != priorities[1]:
        yield Difference("priority", priorities[0].lower(), priorities[1].lower(), replaces=True)
    # Before API version 2025-11-01, Azure omits the type Standard.
    types = [str((each.get("securityProfile") or {}).get("securityType") or "Standard") for each in (found, own)]
    if types[0].casefold() != types[1].casefold():
        yield Difference("security type", types[0], types[1], replaces=True)
    yield from _in_place(wanted, part)


def _in_place(wanted: Resource, part: ObservedResource) -> Iterator[Difference]:
    own, found = wanted.body["properties"], part.properties
    old, new = found["hardwareProfile"]["vmSize"], own["hardwareProfile"]["vmSize"]
    if old.casefold() != new.casefold():
        yield Difference("size", old, new, needs_off=True)
    if own.get("priority") == "Spot" and str(found.get("priority")) == "Spot":
        prices = [(each.get("billingProfile") or {}).get("maxPrice") for each in (found, own)]
        if prices[0] != prices[1]:
            yield Difference("spot price", str(prices[0]), str(prices[1]), needs_off=True)
    if not _has_identity(part):
        yield Difference("identity", str((part.body.get("identity") or {}).get("type") or "none"), "its own")
    for name in sorted({*_ours(wanted), *_outlived(wanted, part)}):
        old_value, value = tags.get(part.tags, name), wanted.body["tags"].get(name, "")
        if old_value != value:
            yield _tag_difference(name, old_value, value)


def _has_identity(part: ObservedResource) -> bool:
    kinds = str((part.body.get("identity") or {}).get("type") or "").casefold()
    return IDENTITY["type"].casefold() in (kind.strip() for kind in kinds.split(","))


def _identity(part: ObservedResource) -> dict[str, Any]:
    """Return the system-assigned identity, with the identities that others added."""
    others = (part.body.get("identity") or {}).get("userAssignedIdentities") or {}
    if not others:
        return dict(IDENTITY)
    return {"type": "SystemAssigned, UserAssigned", "userAssignedIdentities": {name: {} for name in others}}


def _ours(wanted: Resource) -> dict[str, str]:
    """Return our tags, except the host key, which is set only at creation."""
    return {name: value for name, value in wanted.body["tags"].items() if name != tags.HOST_KEY}


def _outlived(wanted: Resource, part: ObservedResource) -> list[str]:
    """Return our tags that the spec no longer needs."""
    return [name for name in (tags.HOURS,) if name not in wanted.body["tags"] and tags.get(part.tags, name)]


def _tag_difference(name: str, old: str, new: str) -> Difference:
    match name:
        case tags.LEASE_UNTIL:
            before, after = tags.parse_moment(old), tags.parse_moment(new)
            is_sooner = before is not None and after is not None and after < before
            return Difference("lease until", old or "none", new, is_sooner=is_sooner, of_lease=True)
        case tags.ON_SINCE:
            return Difference("on since", old or "never", new, of_lease=True)
        case tags.TERMS:
            had, gets = terms_from_tag(old), terms_from_tag(new)
            # The price decides how long the cost cap lasts, and may have changed since the last start.
            is_cap = had and gets and (had.lease, had.idle) == (gets.lease, gets.idle)
            return Difference("terms", old or "none", new, of_lease=bool(is_cap))
        case tags.DIGEST:
            return Difference("spec", old.removeprefix("sha256:")[:8] or "none", new.removeprefix("sha256:")[:8])
        case _:
            return Difference(f"tag {name}", old or "none", new or "none")


def update(wanted: Resource, part: ObservedResource) -> Resource:
    """Return the body of a change in place, without fields that Azure refuses in an update."""
    outlived = {name.casefold() for name in _outlived(wanted, part)}
    kept = {name: value for name, value in with_others(part, _ours(wanted)).items() if name.casefold() not in outlived}
    properties: dict[str, Any] = {}
    own = wanted.body["properties"]
    if own["hardwareProfile"]["vmSize"].casefold() != part.properties["hardwareProfile"]["vmSize"].casefold():
        properties["hardwareProfile"] = own["hardwareProfile"]
    if "billingProfile" in own and own["billingProfile"] != part.properties.get("billingProfile"):
        properties["billingProfile"] = own["billingProfile"]
    body: dict[str, Any] = {"tags": kept}
    if not _has_identity(part):
        body["identity"] = _identity(part)
    return Resource(wanted.ref, {**body, "properties": properties} if properties else body)


def _same_image(old: dict[str, Any], new: dict[str, Any]) -> bool:
    names = ("publisher", "offer", "sku")
    if any(str(old.get(name)).casefold() != str(new.get(name)).casefold() for name in names):
        return False
    # `latest` was resolved at creation. A later version does not justify replacing the VM.
    return new["version"] == "latest" or new["version"] in {old.get("version"), old.get("exactVersion")}


def _image(reference: dict[str, Any]) -> str:
    return ":".join(str(reference.get(name) or "?") for name in ("publisher", "offer", "sku", "version"))
