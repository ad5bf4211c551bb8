"""Network security groups (NSGs) and their rules."""

from typing import Any

from gpuinfra.sandbox.kernel.call import Answer, Call
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.routes import Service, key
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services.network import nsg_rules
from gpuinfra.sandbox.services.network.fields import bad_request
from gpuinfra.sandbox.services.network.handlers import add_kind, add_nested_kind, path_of, require_parent, with_etag
from gpuinfra.sandbox.services.network.network_resource import Kind, Uses, build_items, new_resource, users_of

service = Service()

KIND = Kind("networkSecurityGroups", "NetworkSecurityGroup", "security-group")

_KNOWN = "securityRules defaultSecurityRules networkInterfaces subnets provisioningState resourceGuid".split()


def _build(cloud: Cloud, own_id: str, location: str, body: dict[str, Any], existing: Resource | None) -> Resource:
    """Return an NSG. Rules that the body omits are removed."""
    nsg, sent = new_resource(KIND, own_id, location, body, existing, _KNOWN)
    rules = build_items(nsg_rules.KIND, sent, existing, lambda *item: nsg_rules.build(cloud, nsg, *item))
    nsg_rules.check_conflicts(rules)
    nsg.properties["securityRules"] = rules
    return nsg


def _show(_cloud: Cloud, nsg: Resource, uses: Uses) -> dict[str, Any]:
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


def _check_rules(_cloud: Cloud, _nsg: Resource, _old: dict[str, Any] | None, rules: list[dict[str, Any]]) -> None:
    nsg_rules.check_conflicts(rules)


add_kind(service, KIND, build=_build, show=_show, check_unused=_check_unused)
add_nested_kind(service, KIND, nsg_rules.KIND, build=nsg_rules.build, show=_show, check=_check_rules)


@service.route("GET", f"{path_of(KIND)}/defaultSecurityRules")
def _list_default_rules(call: Call) -> Answer:
    return Answer(200, {"value": nsg_rules.default_rules(require_parent(call, KIND))})
