"""Which network resource uses which: what cannot be deleted, and the back references that bodies show.

References are stored with the user, not with what is used, so they disappear together with the user.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.resource_id import key
from gpuinfra.sandbox.kernel.store import Resource

_NESTED = ("subnets", "ipConfigurations")
_PROPERTIES = ("networkSecurityGroup", "subnet", "publicIPAddress")


@dataclass(frozen=True, slots=True)
class Use:
    """One use: `user` is an id, `address` its private address in a subnet."""

    user: str
    address: str | None

    @property
    def is_nic(self) -> bool:
        """Whether the user is a NIC, not a subnet."""
        return "/networkinterfaces/" in self.user.lower()


Uses = dict[str, list[Use]]


def keep(cloud: Cloud, resource: Resource) -> Resource:
    """Store a resource, and what it uses."""
    cloud.store.set_uses(resource.key, _references(resource.body))
    return cloud.store.put(resource, cloud.now)


def _references(body: dict[str, Any]) -> Iterator[tuple[str, str, str | None]]:
    properties = body["properties"]
    for holder in [body, *(item for name in _NESTED for item in properties.get(name, []))]:
        inner = holder["properties"]
        for name in _PROPERTIES:
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
