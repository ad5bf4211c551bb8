"""Where clients ask how an operation is."""

from __future__ import annotations

from gpuinfra.sandbox.kernel.call import Answer, Call
from gpuinfra.sandbox.kernel.routes import SUBSCRIPTION, Routes
from gpuinfra.sandbox.services.common import require_subscription

routes = Routes()


@routes.add("GET", f"{SUBSCRIPTION}/providers/Microsoft.Compute/locations/{{location}}/operations/{{id}}")
@routes.add("GET", f"{SUBSCRIPTION}/providers/Microsoft.Network/locations/{{location}}/operations/{{id}}")
def get_operation(call: Call) -> Answer:
    """The state of an operation; with `monitor` its result."""
    require_subscription(call)
    if call.query.get("monitor", "").lower() == "true":
        return call.cloud.operations.result(call, call["id"])
    return call.cloud.operations.status(call["id"])


@routes.add("GET", f"{SUBSCRIPTION}/providers/Microsoft.Network/locations/{{location}}/operationResults/{{id}}")
def get_operation_result(call: Call) -> Answer:
    """The result of an operation."""
    require_subscription(call)
    return call.cloud.operations.result(call, call["id"])
