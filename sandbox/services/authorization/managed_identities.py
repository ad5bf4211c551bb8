"""User-assigned managed identities: Microsoft.ManagedIdentity/userAssignedIdentities."""

import uuid

from gpuinfra.sandbox.kernel.call import Answer, Call
from gpuinfra.sandbox.kernel.routes import GROUP, Service
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services import common

service = Service()

KIND = "Microsoft.ManagedIdentity/userAssignedIdentities"
_ONE = f"{GROUP}/providers/{KIND}/{{name}}"
common.add_reads(service, KIND)


@service.route("PUT", _ONE)
def put_identity(call: Call) -> Answer:
    """Create an identity, or change its tags. It completes at once; `Location` is the identity's own path."""
    common.require_group(call, for_write=True)
    common.check_name(
        call["name"], r"[A-Za-z0-9][\w-]{2,127}", "It has 3 to 128 letters, digits, hyphens and underscores."
    )
    body = common.require_object(call)
    location = common.require_location(call, body, KIND)
    existing = common.find_resource(call, KIND)
    identity = existing or Resource(common.resource_id(call, KIND), location, {})
    # Microsoft.ManagedIdentity writes `resourcegroups` without a capital.
    shown_id = identity.id.replace("/resourceGroups/", "/resourcegroups/", 1)
    identity.body = {
        "location": identity.location,
        "tags": common.check_tags(body),
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
    identity, _ = common.read_patch(call, KIND)
    call.cloud.store.put(identity, call.cloud.now)
    return Answer(200, identity.body)


@service.route("DELETE", _ONE)
def _delete_identity(call: Call) -> Answer:
    common.require_group(call)
    return Answer(200 if call.cloud.store.delete(common.resource_id(call, KIND)) else 204)
