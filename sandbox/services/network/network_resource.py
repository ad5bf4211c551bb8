"""What all network resources share: names, regions, references, and operations that write and delete them.

Nested resources (subnets, security rules) are stored in the body of their parent and share its ETag, as in Azure.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpuinfra.sandbox.kernel.call import Call
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.errors import ArmError, parent_not_found
from gpuinfra.sandbox.kernel.long_running_operations import IN_PROGRESS, Operation
from gpuinfra.sandbox.kernel.resource_id import key, parse_id
from gpuinfra.sandbox.kernel.routes import Service
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services.common import (
    check_conditions,
    check_name,
    check_same_location,
    find_resource,
    require_group,
    require_location,
    require_object,
    require_resource,
    resource_id,
)
from gpuinfra.sandbox.services.network.fields import bad_request, only_known
from gpuinfra.sandbox.services.network.references import keep

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
        """The type with its provider."""
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


# Find


def find(call: Call, kind: Kind, *, for_write: bool = False) -> tuple[str, Resource | None]:
    """Return the id that the call names, in the spelling of the first write, and the resource if it exists."""
    require_group(call, for_write=for_write)
    if call.method == "PUT":
        kind.check_name(call["name"])
    existing = find_resource(call, kind.full_type)
    return (existing.id if existing else resource_id(call, kind.full_type)), existing


def require_parent(call: Call, kind: Kind, *, for_write: bool = False) -> Resource:
    """Return the parent of a nested resource, or raise 404."""
    require_group(call, for_write=for_write)
    if for_write and find_resource(call, kind.full_type) is None:
        raise parent_not_found(call["name"])
    return require_resource(call, kind.full_type)


def nested_item(resource: Resource, kind: Kind, name: str) -> dict[str, Any] | None:
    """Return a nested resource by its name."""
    for item in resource.properties[kind.list_name]:
        if item["name"].lower() == name.lower():
            return dict(item)
    return None


def check_put(call: Call, kind: Kind) -> tuple[str, Resource | None, str]:
    """Return id, existing resource and location of a PUT, after the checks that all kinds share."""
    own_id, existing = find(call, kind, for_write=True)
    body = require_object(call)
    location = require_location(call, body, kind.full_type)
    only_known({"extendedLocation": body.get("extendedLocation")}, (), kind.type)
    if existing is not None:
        check_same_location(existing, location)
    check_conditions(call, existing)
    check_idle(call, existing, own_id)
    return own_id, existing, location


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


# Errors


def not_provisioned(wanted: str, user: str, state: str, operation: str) -> ArmError:
    """Return the error for a reference to a resource that is being changed. The SDK retries it."""
    message = (
        f"Cannot proceed with operation because resource {wanted} used by resource {user} is not in Succeeded state. "
        f"Resource is in {state} state and the last operation that updated/is updating the resource is {operation}."
    )
    details = [{"code": "ReferencedResourceNotProvisioned", "message": message}]
    return ArmError(429, "RetryableError", "A retryable error occurred.", details=details)


def check_idle(call: Call, resource: Resource | None, target: str) -> None:
    """Raise if another operation runs on the resource or on what is nested in it.

    A second PUT of the same resource supersedes the first, as in Azure.
    """
    running = resource.hidden.get("operation") if resource else None
    state = call.cloud.store.get_operation(running["id"]) if running else None
    if (
        running
        and state
        and state["status"] == IN_PROGRESS
        and (running["target"] != key(target) or running["deletes"])
    ):
        uri = (
            f"{call.base_url}/subscriptions/{call.cloud.subscription}/providers/{NAMESPACE}/locations/"
            f"{state['location']}/operations/{running['id']}?api-version={call.api_version}"
        )
        raise ArmError(
            409,
            "AnotherOperationInProgress",
            "Another operation on this or dependent resource is in progress. To retrieve status of the operation use "
            f"uri: {uri}.",
            details=[],
        )


# Operations


def begin(call: Call, kind: Kind, resource: Resource, verb: str, nested: str | None = None) -> Operation:
    """Start the operation of a PUT or DELETE and store the resource in its intermediate state."""
    path = f"/{kind.list_name}/{nested}" if nested else ""
    set_state(resource, UPDATING if verb == "put" else DELETING, (kind.list_name, nested) if nested else None)
    operation = call.cloud.operations.begin(
        call,
        resource,
        "write" if verb == "put" else "delete",
        latency=f"{kind.latency}-{verb}",
        payload={"guid": resource.properties["resourceGuid"], "nested": nested},
        retry_after=kind.retry_after if verb == "put" else (10, 10),
        nested=path,
    )
    resource.hidden["operation"] = {
        "id": operation.id,
        "target": key(f"{resource.id}{path}"),
        "name": f"{verb.capitalize()}{kind.title}Operation",
        "deletes": verb == "delete",
    }
    keep(call.cloud, resource)
    return operation


def set_state(resource: Resource, state: str, nested: tuple[str, str] | None = None) -> None:
    """Set the provisioning state of a nested resource, or of the resource and everything nested in it."""
    if nested is None:
        resource.properties["provisioningState"] = state
    for list_name in NESTED:
        for item in resource.properties.get(list_name, []):
            if nested is None or (list_name, item["name"].lower()) == (nested[0], nested[1].lower()):
                item["properties"]["provisioningState"] = state


def add_effects(service: Service, kind: Kind, finish: Callable[[Cloud, Resource], None] | None = None) -> None:
    """Register what ends the operations of this kind; `finish` changes the resource after a successful PUT."""

    def settle(cloud: Cloud, payload: dict[str, Any]) -> None:
        resource = cloud.store.get(payload["id"])
        if resource is None or resource.hidden.get("operation", {}).get("id") != payload["operation"]:
            raise _superseded(kind, payload["operation"])
        if finish and "failure" not in payload:
            finish(cloud, resource)
        end(cloud, kind, resource, payload)

    def remove(cloud: Cloud, payload: dict[str, Any]) -> None:
        resource = cloud.store.get(payload["id"])
        # A resource created again under the same name is another one.
        if resource is None or resource.properties["resourceGuid"] != payload["guid"]:
            return
        if "failure" in payload:
            end(cloud, kind, resource, payload)
        elif payload["nested"] is None:
            cloud.store.delete(resource.id)
        else:
            name, rest = payload["nested"].lower(), resource.properties[kind.list_name]
            resource.properties[kind.list_name] = [item for item in rest if item["name"].lower() != name]
            resource.hidden.pop("operation", None)
            keep(cloud, resource)

    service.effect(f"{kind.latency}-put")(settle)
    service.effect(f"{kind.latency}-delete")(remove)


def end(cloud: Cloud, kind: Kind, resource: Resource, payload: dict[str, Any]) -> None:
    """Set the final provisioning state and store the resource."""
    nested = payload.get("nested")
    state = FAILED if "failure" in payload else SUCCEEDED
    set_state(resource, state, (kind.list_name, nested) if nested else None)
    resource.hidden.pop("operation", None)
    keep(cloud, resource)


def _superseded(kind: Kind, operation: str) -> ArmError:
    message = f"Operation Put{kind.title}Operation ({operation}) was canceled and superseded by another operation."
    details = [{"code": "CanceledAndSupersededDueToAnotherOperation", "message": message}]
    return ArmError(409, "Canceled", "Operation was canceled.", details=details)
