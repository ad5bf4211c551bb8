"""Resource groups: created and changed at once, deleted with everything in them."""

import re
from typing import Any

from gpuinfra.sandbox.kernel.call import Answer, Call
from gpuinfra.sandbox.kernel.errors import ArmError, invalid_content
from gpuinfra.sandbox.kernel.routes import GROUP, SUBSCRIPTION, Service
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services import common
from gpuinfra.sandbox.services.operations import answer_result, job_url
from gpuinfra.sandbox.services.resources.resource_group_deletion import begin_deletion, delete_step, end_deletion

service = Service()

KIND = "Microsoft.Resources/resourceGroups"
_FILTERS = {"tagname", "tagvalue"}


@service.route("PUT", GROUP)
def _put_group(call: Call) -> Answer:
    common.require_subscription(call)
    _check_name(call["group"])
    body = common.require_object(call)
    location = common.require_location(call, body, KIND)
    existing = call.cloud.store.get(common.group_id(call))
    if existing:
        common.require_group(call, for_write=True)
        common.check_same_location(existing, location)
    group = existing or Resource(common.group_id(call), location, {})
    group.body = {"id": group.id, "name": group.name, "type": KIND, "location": location}
    if (managed_by := _managed_by(body)) is not None:
        group.body["managedBy"] = managed_by
    common.set_tags(group, body)
    group.body["properties"] = {"provisioningState": "Succeeded"}
    call.cloud.store.put(group, call.cloud.now)
    return Answer(200 if existing else 201, group.body)


@service.get(GROUP)
def _get_group(call: Call) -> Answer:
    return Answer(200, common.require_group(call).body)


@service.route("PATCH", GROUP)
def patch_group(call: Call) -> Answer:
    """Change tags or `managedBy`; fields that the body omits stay."""
    group = common.require_group(call, for_write=True)
    body = common.require_object(call)
    if body.get("location") is not None:
        common.check_same_location(group, common.require_location(call, body, KIND))
    common.set_tags(group, body)
    if (managed_by := _managed_by(body)) is not None:
        group.body["managedBy"] = managed_by
    call.cloud.store.put(group, call.cloud.now)
    return Answer(200, group.body)


@service.route("GET", f"{SUBSCRIPTION}/resourceGroups", action="Microsoft.Resources/subscriptions/resourceGroups/read")
def _list_groups(call: Call) -> Answer:
    wanted = common.parse_filter(call.query.get("$filter", ""), _FILTERS)
    return common.page(call, kind="", wanted=lambda group: common.has_tag(group.body, wanted))


@service.route("DELETE", GROUP)
def delete_group(call: Call) -> Answer:
    """Delete a group and everything in it: 202, with a `Location` that answers 200 when it is gone."""
    group = common.require_group(call)
    operation_id = begin_deletion(call, group)
    headers = {
        "Location": job_url(call, "RESOURCEGROUPDELETIONJOB", group.name, operation_id, group.location),
        **call.cloud.operations.retry_headers(15),
    }
    return Answer(202, None, headers, operation_id)


@service.route("GET", f"{SUBSCRIPTION}/operationresults/{{id}}")
def _get_result(call: Call) -> Answer:
    common.require_subscription(call)
    return answer_result(call, call["id"])


service.effect("group-delete-step")(delete_step)
# When the shortest time that a deletion takes is over.
service.effect("group-delete")(end_deletion)


def _check_name(name: str) -> None:
    if len(name) > 90:
        message = f"The provided resource group name '{name}' exceeds the maximum length of '90' characters."
        raise ArmError(400, "InvalidResourceGroup", message)
    if not re.fullmatch(r"[\w().-]*[\w()-]", name):
        message = f"The provided resource group name '{name}' has these invalid characters or ends with '.'."
        raise ArmError(400, "InvalidResourceGroup", message)


def _managed_by(body: dict[str, Any]) -> str | None:
    managed_by = body.get("managedBy")
    if managed_by is not None and not isinstance(managed_by, str):
        raise invalid_content("The request content was invalid: 'managedBy' must be a text.")
    common.section(body, "properties")
    return managed_by
