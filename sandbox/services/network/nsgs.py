"""Network security groups (NSGs) and their rules."""

import uuid
from typing import Any

from gpuinfra.sandbox.kernel.call import Answer, Call
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.resource_id import key
from gpuinfra.sandbox.kernel.routes import Service
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services.common import check_conditions, check_tags, require_object, section
from gpuinfra.sandbox.services.network import nsg_rules
from gpuinfra.sandbox.services.network.fields import bad_request, item_names, items, only_known
from gpuinfra.sandbox.services.network.handlers import (
    add_nested_routes,
    add_routes,
    answer_put,
    nested_path_of,
    nested_put,
    path_of,
    with_etag,
)
from gpuinfra.sandbox.services.network.network_resource import (
    UPDATING,
    Kind,
    add_effects,
    check_idle,
    check_put,
    nested_item,
    require_parent,
)
from gpuinfra.sandbox.services.network.references import Uses, users_of

service = Service()

KIND = Kind("networkSecurityGroups", "NetworkSecurityGroup", "security-group")
add_effects(service, KIND)
add_effects(service, nsg_rules.KIND)

_KNOWN = (
    "securityRules",
    "defaultSecurityRules",
    "networkInterfaces",
    "subnets",
    "provisioningState",
    "resourceGuid",
)


@service.route("PUT", path_of(KIND))
def _put_nsg(call: Call) -> Answer:
    """Create or replace an NSG. Rules that the body omits are removed."""
    own_id, existing, location = check_put(call, KIND)
    nsg = _build(require_object(call), own_id, location, existing)
    return answer_put(call, KIND, nsg, new=existing is None, show=show)


def _build(body: dict[str, Any], own_id: str, location: str, existing: Resource | None) -> Resource:
    nsg = Resource(own_id, location, {}, dict(existing.hidden) if existing else {})
    sent = section(body, "properties")
    only_known(sent, _KNOWN, "properties")
    wanted = items(sent, "securityRules", "properties")
    rules = []
    for place, name in enumerate(item_names(wanted, "properties.securityRules")):
        old = nested_item(existing, nsg_rules.KIND, name) if existing else None
        path = f"properties.securityRules[{place}].properties"
        rules.append(nsg_rules.build(nsg, old["name"] if old else name, wanted[place], path))
    nsg_rules.check_conflicts(rules)
    nsg.body = {
        "name": nsg.name,
        "id": own_id,
        "type": KIND.full_type,
        "location": location,
        **({"tags": check_tags(body)} if body.get("tags") is not None else {}),
        "properties": {
            "provisioningState": UPDATING,
            "resourceGuid": existing.properties["resourceGuid"] if existing else str(uuid.uuid4()),
            "securityRules": rules,
        },
    }
    return nsg


def show(nsg: Resource, uses: Uses) -> dict[str, Any]:
    """Return an NSG as it is answered: with default rules and with what uses it."""
    body = with_etag(nsg)
    body["properties"]["defaultSecurityRules"] = nsg_rules.default_rules(nsg)
    users = uses.get(key(nsg.id), [])
    for name, of_interfaces in (("networkInterfaces", True), ("subnets", False)):
        if shown := [{"id": use.user} for use in users if use.is_nic is of_interfaces]:
            body["properties"][name] = shown
    return body


def _check_unused(cloud: Cloud, nsg: Resource) -> None:
    if users := users_of(cloud, nsg.id):
        raise bad_request(
            "InUseNetworkSecurityGroupCannotBeDeleted",
            f"Network security group {nsg.id} cannot be deleted because it is in use by the following resources: "
            f"{', '.join(use.user for use in users)}. In order to delete the Network security group, remove the "
            "association with the resource(s). To learn how to do this, see aka.ms/deletensg.",
        )


add_routes(service, KIND, lambda _call: show, _check_unused)


@service.route("PUT", nested_path_of(KIND, nsg_rules.KIND))
def _put_rule(call: Call) -> Answer:
    nsg = require_parent(call, KIND, for_write=True)
    old = nested_item(nsg, nsg_rules.KIND, call["nested"])
    check_conditions(call, nsg if old else None)
    name = old["name"] if old else call["nested"]
    rule = nsg_rules.build(nsg, name, require_object(call), "properties")
    check_idle(call, nsg, rule["id"])
    others = [item for item in nsg.properties["securityRules"] if item["name"].lower() != name.lower()]
    nsg_rules.check_conflicts([*others, rule])
    return nested_put(call, nsg_rules.KIND, nsg, rule, show)


add_nested_routes(service, KIND, nsg_rules.KIND, lambda _call: show, lambda _cloud, _rule: None)


@service.route("GET", f"{path_of(KIND)}/defaultSecurityRules")
def _list_default_rules(call: Call) -> Answer:
    return Answer(200, {"value": nsg_rules.default_rules(require_parent(call, KIND))})
