"""User-assigned managed identities: Microsoft.ManagedIdentity/userAssignedIdentities."""

import uuid

from gpuinfra.sandbox.kernel.call import Answer, Call
from gpuinfra.sandbox.kernel.routes import GROUP, Service
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services.common import (
    add_reads,
    check_name,
    check_tags,
    find_resource,
    require_group,
    require_location,
    require_object,
    require_resource,
    resource_id,
)

service = Service()

KIND = "Microsoft.ManagedIdentity/userAssignedIdentities"
_ONE = f"{GROUP}/providers/{KIND}/{{name}}"
add_reads(service, KIND)


@service.route("PUT", _ONE)
def put_identity(call: Call) -> Answer:
    """Create an identity, or change its tags. It completes at once; `Location` is the identity's own path."""
    require_group(call, for_write=True)
    check_name(call["name"], r"[A-Za-z0-9][\w-]{2,127}", "It has 3 to 128 letters, digits, hyphens and underscores.")
    body = require_object(call)
    location = require_location(call, body, KIND)
    existing = find_resource(call, KIND)
    identity = existing or Resource(resource_id(call, KIND), location, {})
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


@service.route("PATCH", _ONE)
def _patch_identity(call: Call) -> Answer:
    require_group(call, for_write=True)
    identity, body = require_resource(call, KIND), require_object(call)
    if body.get("tags") is not None:
        identity.body["tags"] = check_tags(body)
    call.cloud.store.put(identity, call.cloud.now)
    return Answer(200, identity.body)


@service.route("DELETE", _ONE)
def _delete_identity(call: Call) -> Answer:
    require_group(call)
    return Answer(200 if call.cloud.store.delete(resource_id(call, KIND)) else 204)
