"""User-assigned managed identities: Microsoft.ManagedIdentity/userAssignedIdentities."""

import uuid

from gpuinfra.sandbox.kernel.call import Answer, Call
from gpuinfra.sandbox.kernel.routes import GROUP, SUBSCRIPTION, Service
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services.common import (
    check_name,
    check_tags,
    page,
    require_group,
    require_location,
    require_object,
    require_resource,
    require_subscription,
    resource_id,
)

service = Service()

NAMESPACE = "Microsoft.ManagedIdentity"
KIND = f"{NAMESPACE}/userAssignedIdentities"
_ALL = f"{GROUP}/providers/{KIND}"
_ONE = f"{_ALL}/{{name}}"


@service.route("PUT", _ONE)
def put_identity(call: Call) -> Answer:
    """Create an identity, or change its tags. It completes at once; `Location` is the identity's own path."""
    require_group(call, for_write=True)
    check_name(call["name"], r"[A-Za-z0-9][\w-]{2,127}", "It has 3 to 128 letters, digits, hyphens and underscores.")
    body = require_object(call)
    location = require_location(call, body, KIND)
    existing = call.cloud.store.get(_id(call))
    identity = existing or Resource(_id(call), location, {})
    # Microsoft.ManagedIdentity writes `resourcegroups` without a capital.
    shown_id = identity.id.replace("/resourceGroups/", "/resourcegroups/", 1)
    identity.body = {
        "location": identity.location,
        "tags": check_tags(body),
        "id": shown_id,
        "name": identity.name,
        "type": KIND,
        "properties": existing.properties
        if existing
        else {
            "tenantId": call.cloud.tenant,
            "principalId": str(uuid.uuid4()),
            "clientId": str(uuid.uuid4()),
        },
    }
    call.cloud.store.put(identity, call.cloud.now)
    if existing:
        return Answer(200, identity.body)
    return Answer(201, identity.body, {"Location": shown_id})


@service.route("GET", _ONE)
def _get_identity(call: Call) -> Answer:
    return Answer(200, require_resource(call, _id(call), KIND, call["name"]).body)


@service.route("PATCH", _ONE)
def _patch_identity(call: Call) -> Answer:
    require_group(call, for_write=True)
    identity, body = require_resource(call, _id(call), KIND, call["name"]), require_object(call)
    if body.get("tags") is not None:
        identity.body["tags"] = check_tags(body)
    call.cloud.store.put(identity, call.cloud.now)
    return Answer(200, identity.body)


@service.route("DELETE", _ONE)
def _delete_identity(call: Call) -> Answer:
    require_group(call)
    return Answer(200 if call.cloud.store.delete(_id(call)) else 204)


@service.route("GET", _ALL)
def _list_in_group(call: Call) -> Answer:
    return page(call, kind=KIND, group=require_group(call).name, show=lambda identity: identity.body)


@service.route("GET", f"{SUBSCRIPTION}/providers/{KIND}")
def _list_all(call: Call) -> Answer:
    require_subscription(call)
    return page(call, kind=KIND, show=lambda identity: identity.body)


def _id(call: Call) -> str:
    return resource_id(call, NAMESPACE, ("userAssignedIdentities", call["name"]))
