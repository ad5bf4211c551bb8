"""What all network resources share: their kinds, bodies and references.

Nested resources (subnets, security rules) are stored in the body of their parent and share its ETag, as in Azure.
References are stored with the user, not with what is used, so they disappear together with the user.
"""

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.errors import ArmError
from gpuinfra.sandbox.kernel.routes import key, parse_id
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services.common import check_name, check_tags, section
from gpuinfra.sandbox.services.network.fields import bad_request, item_names, items, only_known, wrong_value

NAMESPACE = "Microsoft.Network"
UPDATING, SUCCEEDED, FAILED, DELETING = "Updating", "Succeeded", "Failed", "Deleting"
NESTED = ("subnets", "securityRules", "ipConfigurations")


@dataclass(frozen=True)
class Kind:
    """A type of network resource. `latency` is also the prefix of its operations' effects: `network-put`."""

    type: str
    title: str
    latency: str
    retry_after: tuple[int, int] = (10, 10)
    longest_name: int = 80

    @property
    def full_type(self) -> str:
        return f"{NAMESPACE}/{self.type}"

    @property
    def list_name(self) -> str:
        """The property of the parent that lists nested resources of this kind."""
        return self.type.rsplit("/", 1)[-1]

    def check_name(self, name: str) -> None:
        """Raise Azure's error for an invalid name."""
        length = self.longest_name
        check_name(
            name,
            rf"[A-Za-z0-9](?:[A-Za-z0-9_.-]{{0,{length - 2}}}[A-Za-z0-9_])?",
            f"The name can be up to {length} characters long. It must begin with a word character, and it must end "
            "with a word character or with '_'. The name may contain word characters or '.', '-', '_'.",
        )


# Bodies


def new_resource(
    kind: Kind, own_id: str, location: str, body: dict[str, Any], existing: Resource | None, known: Sequence[str]
) -> tuple[Resource, dict[str, Any]]:
    """Return a resource with what every kind has, and the `properties` of the request, which are all `known`."""
    resource = Resource(own_id, location, {}, dict(existing.hidden) if existing else {})
    sent = section(body, "properties")
    only_known(sent, known, "properties")
    resource.body = {
        "name": resource.name,
        "id": own_id,
        "type": kind.full_type,
        "location": location,
        **({"tags": check_tags(body)} if body.get("tags") is not None else {}),
        "properties": {
            "provisioningState": UPDATING,
            "resourceGuid": existing.properties["resourceGuid"] if existing else str(uuid.uuid4()),
        },
    }
    return resource, sent


def new_item(
    kind: Kind, parent: Resource, name: str, given: dict[str, Any], path: str, known: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a nested resource with what every kind has, and the `properties` of the request, which are all `known`."""
    kind.check_name(name)
    sent = given.get("properties") or {}
    if not isinstance(sent, dict):
        raise wrong_value(sent, "Object", path)
    only_known(sent, known, path)
    own_id = f"{parent.id}/{kind.list_name}/{name}"
    return {"name": name, "id": own_id, "type": kind.full_type, "properties": {"provisioningState": UPDATING}}, sent


def build_items(
    kind: Kind,
    sent: dict[str, Any],
    existing: Resource | None,
    build: Callable[[str, dict[str, Any], str], dict[str, Any]],
) -> list[dict[str, Any]]:
    """Build the nested resources in a request. One that exists keeps the spelling of its name."""
    wanted, path, built = items(sent, kind.list_name, "properties"), f"properties.{kind.list_name}", []
    for place, name in enumerate(item_names(wanted, path)):
        old = nested_item(existing, kind, name) if existing else None
        built.append(build(old["name"] if old else name, wanted[place], f"{path}[{place}].properties"))
    return built


def nested_item(resource: Resource, kind: Kind, name: str) -> dict[str, Any] | None:
    """Return a nested resource by its name."""
    found = (item for item in resource.properties[kind.list_name] if item["name"].lower() == name.lower())
    return next(found, None)


def set_state(resource: Resource, state: str, nested: tuple[str, str] | None = None) -> None:
    """Set the provisioning state of a nested resource, or of the resource and everything nested in it."""
    if nested is None:
        resource.properties["provisioningState"] = state
    for list_name in NESTED:
        for item in resource.properties.get(list_name, []):
            if nested is None or (list_name, item["name"].lower()) == (nested[0], nested[1].lower()):
                item["properties"]["provisioningState"] = state


# References


@dataclass(frozen=True, slots=True)
class Use:
    """One use: `user` is an id, `address` its private address in a subnet."""

    user: str
    address: str | None

    @property
    def is_nic(self) -> bool:
        return "/networkinterfaces/" in self.user.lower()


Uses = dict[str, list[Use]]


def keep(cloud: Cloud, resource: Resource) -> Resource:
    """Store a resource, and what it uses."""
    cloud.store.set_uses(resource.key, _references(resource.body))
    return cloud.store.put(resource, cloud.now)


def _references(body: dict[str, Any]) -> Iterator[tuple[str, str, str | None]]:
    properties = body["properties"]
    for holder in [body, *(item for name in NESTED for item in properties.get(name, []))]:
        inner = holder["properties"]
        for name in ("networkSecurityGroup", "subnet", "publicIPAddress"):
            if name in inner:
                yield key(inner[name]["id"]), holder["id"], inner.get("privateIPAddress") if name == "subnet" else None
    # A public IP uses an address and a DNS name, which must be unique.
    for taken in (properties.get("ipAddress"), properties.get("dnsSettings", {}).get("fqdn")):
        if taken:
            yield taken, body["id"], None


def uses(cloud: Cloud, resource_id: str | None = None) -> Uses:
    """Return uses by the key of what is used: for a resource and what is nested in it, or for all."""
    found: Uses = {}
    for target, user, address in cloud.store.uses(None if resource_id is None else key(resource_id)):
        found.setdefault(target, []).append(Use(user, address))
    return found


def users_of(cloud: Cloud, resource_id: str) -> list[Use]:
    """Return what uses a resource, address or DNS name."""
    return uses(cloud, resource_id).get(key(resource_id), [])


def require_reference(cloud: Cloud, wanted: str, location: str, user: str) -> dict[str, Any]:
    """Return the body of a referenced resource. It has to be in the same region, and provisioned."""
    parsed = parse_id(wanted)
    found = cloud.store.get(str(parsed.parent or parsed))
    body = found.body if found and found.location == location else None
    if body and parsed.parent:
        body = next((item for item in body["properties"]["subnets"] if key(item["id"]) == key(wanted)), None)
    if found is None or body is None:
        raise bad_request(
            "InvalidResourceReference",
            f"Resource {wanted} referenced by resource {user} was not found. Please make sure that the referenced "
            "resource exists, and that both resources are in the same region.",
        )
    state = body["properties"]["provisioningState"]
    if state != SUCCEEDED:
        raise not_provisioned(wanted, user, state, found.hidden.get("operation", {}).get("name", "InternalOperation"))
    return body


def not_provisioned(wanted: str, user: str, state: str, operation: str) -> ArmError:
    """Return the error for a reference to a resource that is being changed. The SDK retries it."""
    message = (
        f"Cannot proceed with operation because resource {wanted} used by resource {user} is not in Succeeded state. "
        f"Resource is in {state} state and the last operation that updated/is updating the resource is {operation}."
    )
    details = [{"code": "ReferencedResourceNotProvisioned", "message": message}]
    return ArmError(429, "RetryableError", "A retryable error occurred.", details=details)
