"""The Retail Prices service, which asks for no token."""

from __future__ import annotations

from gpuinfra.sandbox.catalogue.retail import retail_page
from gpuinfra.sandbox.kernel.call import Answer, Call
from gpuinfra.sandbox.kernel.clock import stamp
from gpuinfra.sandbox.kernel.cloud import Effects
from gpuinfra.sandbox.kernel.errors import ArmError
from gpuinfra.sandbox.kernel.routes import Routes

routes = Routes()
effects = Effects()


@routes.add("GET", "/api/retail/prices")
def list_prices(call: Call) -> Answer:
    """List prices that fit the filter, a page of them."""
    skip = call.query.get("$skip", "0")
    if not skip.isdigit():
        raise ArmError(400, "BadRequest", f"The value '{skip}' of $skip is invalid.")
    try:
        body = retail_page(
            call.cloud.catalogue, call.query.get("$filter", ""), int(skip), call.base_url, stamp(call.cloud.now)
        )
    except ValueError as error:
        raise ArmError(400, "BadRequest", str(error)) from None
    return Answer(200, body)
