"""Network security groups and their rules."""

from __future__ import annotations

import uuid
from typing import Any

from gpuinfra.sandbox.kernel.call import Answer, Call
from gpuinfra.sandbox.kernel.cloud import Cloud, Effects
from gpuinfra.sandbox.kernel.ids import key
from gpuinfra.sandbox.kernel.routes import Routes
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services.common import check_conditions, check_tags, require_object, section
from gpuinfra.sandbox.services.network import security_rules
from gpuinfra.sandbox.services.network.alike import add_nested_routes, add_routes, nested_path_of, path_of
from gpuinfra.sandbox.services.network.answers import (
    answer_put,
    nested_put,
    with_etag,
)
from gpuinfra.sandbox.services.network.fields import bad_request, item_names, items, only_known
from gpuinfra.sandbox.services.network.references import Uses, users_of
from gpuinfra.sandbox.services.network.tracked import (
    UPDATING,
    Kind,
    add_effects,
    check_idle,
    find,
    nested_item,
    put_location,
    require_parent,
)

routes = Routes()
effects = Effects()

KIND = Kind("networkSecurityGroups", "NetworkSecurityGroup", "security-group")
add_effects(effects, KIND)
add_effects(effects, security_rules.KIND)

_KNOWN = (
    "securityRules",
    "defaultSecurityRules",
    "networkInterfaces",
    "subnets",
    "provisioningState",
    "resourceGuid",
)


@routes.add("PUT", path_of(KIND))
def put_group(call: Call) -> Answer:
    """Create or replace a group. Its rules are those that were sent, and no others."""
    own_id, existing = find(call, KIND, for_write=True)
    location = put_location(call, KIND, existing)
    check_conditions(call, existing)
    check_idle(call, existing, own_id)
    group = _build(require_object(call), own_id, location, existing)
    return answer_put(call, KIND, group, new=existing is None, show=show)


def _build(body: dict[str, Any], own_id: str, location: str, existing: Resource | None) -> Resource:
    group = Resource(own_id, location, {}, dict(existing.hidden) if existing else {})
    sent = section(body, "properties")
    only_known(sent, _KNOWN, "properties")
    wanted = items(sent, "securityRules", "properties")
    rules = []
    for place, name in enumerate(item_names(wanted, "properties.securityRules")):
        old = nested_item(existing, security_rules.KIND, name) if existing else None
        path = f"properties.securityRules[{place}].properties"
        rules.append(security_rules.build(group, old["name"] if old else name, wanted[place], path))
    security_rules.check_conflicts(rules)
    group.body = {
        "name": group.name,
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
    return group


def show(group: Resource, uses: Uses) -> dict[str, Any]:
    """A group as it is answered: with the default rules, and with who uses it."""
    body = with_etag(group)
    body["properties"]["defaultSecurityRules"] = security_rules.default_rules(group)
    users = uses.get(key(group.id), [])
    for name, of_interfaces in (("networkInterfaces", True), ("subnets", False)):
        if shown := [{"id": use.user} for use in users if use.is_interface is of_interfaces]:
            body["properties"][name] = shown
    return body


def _check_unused(cloud: Cloud, group: Resource) -> None:
    if users := users_of(cloud, group.id):
        raise bad_request(
            "InUseNetworkSecurityGroupCannotBeDeleted",
            f"Network security group {group.id} cannot be deleted because it is in use by the following resources: "
            f"{', '.join(use.user for use in users)}. In order to delete the Network security group, remove the "
            "association with the resource(s). To learn how to do this, see aka.ms/deletensg.",
        )


add_routes(routes, KIND, lambda _call: show, _check_unused)


@routes.add("PUT", nested_path_of(KIND, security_rules.KIND))
def put_rule(call: Call) -> Answer:
    """Create or replace a rule."""
    group = require_parent(call, KIND, for_write=True)
    old = nested_item(group, security_rules.KIND, call["nested"])
    check_conditions(call, group if old else None)
    name = old["name"] if old else call["nested"]
    rule = security_rules.build(group, name, require_object(call), "properties")
    check_idle(call, group, rule["id"])
    others = [item for item in group.properties["securityRules"] if item["name"].lower() != name.lower()]
    security_rules.check_conflicts([*others, rule])
    return nested_put(call, security_rules.KIND, group, rule, show)


add_nested_routes(routes, KIND, security_rules.KIND, lambda _call: show, lambda _cloud, _rule: None)


@routes.add("GET", f"{path_of(KIND)}/defaultSecurityRules")
def list_default_rules(call: Call) -> Answer:
    """List the rules that every group has."""
    return Answer(200, {"value": security_rules.default_rules(require_parent(call, KIND))})
