"""Microsoft.MarketplaceOrdering: terms of images with a purchase plan."""

import hashlib
from typing import Any

from gpuinfra.sandbox.kernel.call import Answer, Call
from gpuinfra.sandbox.kernel.clock import stamp
from gpuinfra.sandbox.kernel.errors import ArmError
from gpuinfra.sandbox.kernel.routes import SUBSCRIPTION, Service
from gpuinfra.sandbox.services.common import require_object, require_subscription
from gpuinfra.sandbox.services.compute.images import Plan, image

service = Service()

_PLAN = (
    f"{SUBSCRIPTION}/providers/Microsoft.MarketplaceOrdering/offerTypes/virtualmachine/publishers/{{publisher}}/offers/"
    "{offer}/plans/{plan}/agreements/current"
)


def find_plan(publisher: str, product: str, name: str) -> Plan | None:
    """Return the purchase plan of an image. Images without a plan have no terms."""
    found = image(publisher, product, name)
    return found.plan if found else None


def terms_body(plan: Plan, subscription_id: str, accepted: bool, now: str) -> dict[str, Any]:
    """Return the terms of a plan, and whether the subscription has accepted them. `now` is in ISO 8601."""
    base = f"/subscriptions/{subscription_id}/providers/Microsoft.MarketplaceOrdering/offerTypes/VirtualMachine"
    terms = f"https://example.invalid/marketplace/{plan.publisher}/{plan.product}/{plan.name}"
    whose = "00000000-0000-0000-0000-000000000000"
    return {
        "id": f"{base}/publishers/{plan.publisher}/offers/{plan.product}/plans/{plan.name}/agreements/current",
        "name": plan.name,
        "type": "Microsoft.MarketplaceOrdering/offertypes",
        "properties": {
            "publisher": plan.publisher,
            "product": plan.product,
            "plan": plan.name,
            "licenseTextLink": f"{terms}/license.txt",
            "privacyPolicyLink": f"{terms}/privacy.txt",
            "marketplaceTermsLink": f"{terms}/terms.txt",
            "retrieveDatetime": now,
            "signature": hashlib.sha256(terms.encode()).hexdigest().upper(),
            "accepted": accepted,
        },
        "systemData": {
            "createdBy": whose,
            "createdByType": "ManagedIdentity",
            "createdAt": now,
            "lastModifiedBy": whose,
            "lastModifiedByType": "ManagedIdentity",
            "lastModifiedAt": now,
        },
    }


def terms_setting(plan: Plan) -> str:
    """Return the name of the setting with the consent to a plan's terms."""
    return f"terms:{plan.publisher}:{plan.product}:{plan.name}".lower()


def _plan(call: Call) -> Plan:
    require_subscription(call)
    plan = find_plan(call["publisher"], call["offer"], call["plan"])
    if plan is None:
        message = f"Unable to find legal terms for this offer: {call['publisher']}:{call['offer']}:{call['plan']}."
        raise ArmError(400, "BadRequest", message)
    return plan


def _answer(call: Call, plan: Plan) -> Answer:
    accepted = bool(call.cloud.store.setting(terms_setting(plan), False))
    return Answer(200, terms_body(plan, call.cloud.subscription, accepted, stamp(call.cloud.now)))


@service.route("GET", _PLAN)
def _get_terms(call: Call) -> Answer:
    return _answer(call, _plan(call))


@service.route("PUT", _PLAN)
def _put_terms(call: Call) -> Answer:
    plan = _plan(call)
    properties = require_object(call).get("properties") or {}
    accepted = properties.get("accepted")
    if not isinstance(accepted, bool):
        raise ArmError(400, "BadRequest", "The property 'accepted' must be true or false.")
    call.cloud.store.set_setting(terms_setting(plan), accepted)
    return _answer(call, plan)
