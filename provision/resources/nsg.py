"""The network security group: allows SSH from the addresses in the spec, and nothing else."""

from collections.abc import Iterator, Mapping
from typing import Any

from gpuinfra.models.plan import Difference, Kind, Resource
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.resources.common import PlanInput, missing_tags, place, resource, whole_update

RULE = "ssh"
_RULE = {
    "priority": 100,
    "direction": "Inbound",
    "access": "Allow",
    "protocol": "Tcp",
    "sourcePortRange": "*",
    "destinationAddressPrefix": "*",
    "destinationPortRange": "22",
}

update = whole_update


def desired(plan_input: PlanInput) -> Resource:
    """Return the desired NSG with one rule. Azure's default rules deny everything else."""
    rule = {**_RULE, "sourceAddressPrefixes": list(plan_input.sources)}
    return resource(plan_input, Kind.NSG, {"securityRules": [{"name": RULE, "properties": rule}]})


def has_own_rule(part: ObservedResource) -> bool:
    """Return whether it contains our rule, with any sources."""
    rules = {rule["name"]: rule["properties"] for rule in part.properties.get("securityRules") or []}
    return RULE in rules and _rest(rules[RULE], _RULE) == _rest(_RULE, _RULE)


def is_as_created(part: ObservedResource) -> bool:
    """Return whether it contains only our rule, with any sources."""
    return has_own_rule(part) and len(part.properties["securityRules"]) == 1


def users(part: ObservedResource) -> list[dict[str, Any]]:
    """Return the NICs and subnets that use it."""
    return [*(part.properties.get("networkInterfaces") or []), *(part.properties.get("subnets") or [])]


def differences(wanted: Resource, part: ObservedResource) -> Iterator[Difference]:
    """Yield differences: other sources, a changed rule, or rules added by hand."""
    yield from place(wanted, part)
    rules = {rule["name"]: rule["properties"] for rule in part.properties.get("securityRules") or []}
    (own,) = (rule["properties"] for rule in wanted.body["properties"]["securityRules"])
    found = rules.pop(RULE, None)
    old, new = sources_of(found), sources_of(own)
    if old != new:
        yield Difference("ssh from", ", ".join(old) or "nowhere", ", ".join(new))
    elif found is not None and _rest(found, own) != _rest(own, own):
        yield Difference("rule ssh", "changed by hand", "as the spec says")
    for name in sorted(rules):
        yield Difference(f"rule {name}", "added by hand", "removed")
    yield from missing_tags(wanted, part)


def sources_of(rule: Mapping[str, Any] | None) -> list[str]:
    """Return the sources of a rule, each address as a range; an empty list without a rule."""
    if rule is None:
        return []
    one = rule.get("sourceAddressPrefix")
    many = list(rule.get("sourceAddressPrefixes") or []) or ([one] if one else [])
    return sorted(text if "/" in text or not text[:1].isdigit() else f"{text}/32" for text in many)


def _rest(rule: dict[str, Any], wanted: dict[str, Any]) -> dict[str, str]:
    return {name: str(rule.get(name)).casefold() for name in wanted if not name.startswith("sourceAddress")}
