"""What the caller may do at a scope: Microsoft.Authorization/permissions, which everybody may ask."""

from __future__ import annotations

from gpuinfra.sandbox.kernel.call import Answer, Call
from gpuinfra.sandbox.kernel.cloud import Effects
from gpuinfra.sandbox.kernel.routes import GROUP, SUBSCRIPTION, Routes
from gpuinfra.sandbox.services.common import require_group, require_subscription
from gpuinfra.sandbox.web.authorization import NAMESPACE, PERMISSIONS, permissions_of

routes = Routes()
effects = Effects()

_ALL = f"/providers/{NAMESPACE}/{PERMISSIONS}"


@routes.add("GET", f"{SUBSCRIPTION}{_ALL}")
def list_for_subscription(call: Call) -> Answer:
    """What the caller may do in all of the subscription."""
    require_subscription(call)
    scope = f"/subscriptions/{call.cloud.subscription}"
    return Answer(200, {"value": permissions_of(call.cloud, call.principal, scope)})


@routes.add("GET", f"{GROUP}{_ALL}")
def list_for_group(call: Call) -> Answer:
    """What the caller may do in all of a group."""
    group = require_group(call)
    return Answer(200, {"value": permissions_of(call.cloud, call.principal, group.id)})
