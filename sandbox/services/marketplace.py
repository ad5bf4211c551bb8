"""Marketplace images' terms: read, accepted, taken back."""

from __future__ import annotations

from gpuinfra.sandbox.catalogue.images import Plan, find_plan, terms_body
from gpuinfra.sandbox.kernel.call import Answer, Call
from gpuinfra.sandbox.kernel.clock import stamp
from gpuinfra.sandbox.kernel.cloud import Effects
from gpuinfra.sandbox.kernel.errors import ArmError
from gpuinfra.sandbox.kernel.routes import SUBSCRIPTION, Routes
from gpuinfra.sandbox.services.common import require_object, require_subscription

routes = Routes()
effects = Effects()

_PLAN = (
    f"{SUBSCRIPTION}/providers/Microsoft.MarketplaceOrdering/offerTypes/virtualmachine/publishers/{{publisher}}/offers/"
    "{offer}/plans/{plan}/agreements/current"
)


def terms_setting(plan: Plan) -> str:
    """The name under which consent to a plan's terms is kept."""
    return f"terms:{plan.publisher}:{plan.product}:{plan.name}".lower()


def _plan(call: Call) -> Plan:
    require_subscription(call)
    plan = find_plan(call["publisher"], call["offer"], call["plan"])
    if plan is None:
        message = f"Unable to find legal terms for this offer: {call['publisher']}:{call['offer']}:{call['plan']}."
        raise ArmError(400, "BadRequest", message)
    return plan


@routes.add("GET", _PLAN)
def get_terms(call: Call) -> Answer:
    """The terms, and whether they were accepted."""
    plan = _plan(call)
    accepted = bool(call.cloud.store.setting(terms_setting(plan), False))
    return Answer(200, terms_body(plan, call.cloud.subscription, accepted, stamp(call.cloud.now)))


@routes.add("PUT", _PLAN)
def put_terms(call: Call) -> Answer:
    """Accept the terms, or take consent back."""
    plan = _plan(call)
    properties = require_object(call).get("properties") or {}
    accepted = properties.get("accepted")
    if not isinstance(accepted, bool):
        raise ArmError(400, "BadRequest", "The property 'accepted' must be true or false.")
    call.cloud.store.set_setting(terms_setting(plan), accepted)
    return Answer(200, terms_body(plan, call.cloud.subscription, accepted, stamp(call.cloud.now)))
