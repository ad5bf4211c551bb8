"""What services share: required resources, names, regions, tags, conditional requests, pages, filters."""

import re
from collections.abc import Callable, Set
from typing import Any
from urllib.parse import quote

from gpuinfra.sandbox.kernel.call import Answer, Call
from gpuinfra.sandbox.kernel.errors import (
    ArmError,
    group_not_found,
    invalid_content,
    invalid_parameter,
    resource_not_found,
)
from gpuinfra.sandbox.kernel.routes import GROUP, SUBSCRIPTION, ResourceId, Service, parse_id
from gpuinfra.sandbox.kernel.store import Resource

PAGE = 250
# What ARM's lists support of OData's `$filter`: comparisons joined by `and`.
_COMPARISON = re.compile(r"\s*([A-Za-z]+)\s+eq\s+'((?:[^']|'')*)'\s*", re.IGNORECASE)


def require_object(call: Call) -> dict[str, Any]:
    """Return the body, which has to be an object; its `properties`, if present, too."""
    if not isinstance(call.body, dict):
        raise invalid_content("The request content was invalid: a JSON object is expected.")
    properties = call.body.get("properties")
    if properties is not None and not isinstance(properties, dict):
        raise invalid_content("The request content was invalid: 'properties' must be an object.")
    return call.body


def section(mapping: dict[str, Any], name: str, kind: type = dict) -> Any:
    """Return a nested object or list; an empty one if it is absent or null. Raises if it has another type."""
    value = mapping.get(name)
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise invalid_content(
            f"The request content was invalid: '{name}' must be {'a list' if kind is list else 'an object'}."
        )
    return value


def group_id(call: Call) -> str:
    """Return the id of the call's resource group."""
    return str(ResourceId(call.cloud.subscription, call["group"], "", ()))


def require_subscription(call: Call) -> None:
    """Raise ARM's 404 unless the call names the one subscription."""
    if call["subscription"].lower() != call.cloud.subscription.lower():
        raise ArmError(404, "SubscriptionNotFound", f"The subscription '{call['subscription']}' could not be found.")


def require_group(call: Call, *, for_write: bool = False) -> Resource:
    """Return the call's resource group. While it is deleted, writes are refused; deletions are not."""
    require_subscription(call)
    group = call.cloud.store.get(group_id(call))
    if group is None:
        raise group_not_found(call["group"])
    if for_write and call.method != "DELETE" and group.properties.get("provisioningState") == "Deleting":
        message = f"The resource group '{group.name}' is in deprovisioning state and cannot perform this operation."
        raise ArmError(409, "ResourceGroupBeingDeleted", message)
    return group


def check_scope(call: Call) -> Resource | None:
    """Return the resource or resource group that a path begins with, or None for the subscription. It has to exist."""
    if "group" not in call.parameters:
        require_subscription(call)
        return None
    group = require_group(call)
    if "resource" not in call.parameters:
        return group
    wanted = ResourceId(call.cloud.subscription, group.name, call["namespace"], ((call["type"], call["resource"]),))
    resource = call.cloud.store.get(str(wanted))
    if resource is None:
        raise resource_not_found(wanted.type, wanted.name, call["group"])
    return resource


def scope_id(call: Call) -> str:
    """Return the id of the scope that a path begins with, which has to exist."""
    scope = check_scope(call)
    return scope.id if scope else f"/subscriptions/{call.cloud.subscription}"


def resource_id(call: Call, kind: str) -> str:
    """Return the id of the resource that a call names, in the resource group's own spelling. `kind` is a full type."""
    group = call.cloud.store.get(group_id(call))
    namespace, _, own_type = kind.partition("/")
    name = group.name if group else call["group"]
    return str(ResourceId(call.cloud.subscription, name, namespace, ((own_type, call["name"]),)))


def find_resource(call: Call, kind: str) -> Resource | None:
    """Return the resource that a call names, if it exists."""
    return call.cloud.store.get(resource_id(call, kind))


def find_to_delete(call: Call, kind: str) -> Resource | None:
    """Return the resource that a DELETE names, if it exists. Raises if a condition of the request does not hold."""
    require_group(call)
    found = find_resource(call, kind)
    if found is not None:
        check_conditions(call, found)
    return found


def require_resource(call: Call, kind: str) -> Resource:
    """Return the resource that a call names, or raise ARM's 404 for the resource group or the resource."""
    require_group(call)
    found = find_resource(call, kind)
    if found is None:
        raise resource_not_found(kind, call["name"], call["group"])
    return found


def require_location(call: Call, body: dict[str, Any], kind: str) -> str:
    """Return the body's location in Azure's own spelling."""
    wanted = body.get("location")
    if not isinstance(wanted, str) or not wanted:
        raise ArmError(400, "LocationRequired", "The location property is required for this definition.")
    region = call.cloud.catalogue.region(wanted)
    if region is None:
        raise ArmError(
            400,
            "LocationNotAvailableForResourceType",
            f"The provided location '{wanted}' is not available for resource type '{kind}'.",
        )
    return str(region.name)


def check_put(call: Call, kind: str) -> tuple[dict[str, Any], Resource | None, str]:
    """Return body, existing resource and location of a PUT, after the checks that resources share."""
    require_group(call, for_write=True)
    body = require_object(call)
    existing = find_resource(call, kind)
    check_conditions(call, existing)
    location = require_location(call, body, kind)
    if existing is not None:
        check_same_location(existing, location)
    return body, existing, location


def check_same_location(existing: Resource, location: str) -> None:
    """Check that a request does not move an existing resource or resource group."""
    if existing.location == location:
        return
    where = f"already exists in location '{existing.location}'"
    if not parse_id(existing.id).pairs:
        message = f"Invalid resource group location '{location}'. The Resource group {where}."
        raise ArmError(409, "InvalidResourceGroupLocation", message)
    raise ArmError(
        409,
        "InvalidResourceLocation",
        f"The resource '{existing.name}' {where} in resource group '{existing.group}'. A resource with the same name "
        f"cannot be created in location '{location}'. Please select a new resource name.",
    )


def require_region(call: Call) -> str:
    """Return the region in the path of a call to Microsoft.Compute, in Azure's own spelling."""
    require_subscription(call)
    region = call.cloud.catalogue.region(call["location"])
    if region is None:
        message = f"The provided location '{call['location']}' is not available for resource type 'Microsoft.Compute'."
        raise ArmError(400, "NoRegisteredProviderFound", message)
    return region.name


def check_name(name: str, pattern: str, what: str) -> None:
    """Raise ARM's error unless the name matches the pattern."""
    if not re.fullmatch(pattern, name):
        raise ArmError(400, "InvalidResourceName", f"Resource name {name} is invalid. {what}", details=[])


def check_tags(body: dict[str, Any]) -> dict[str, str]:
    """Return the tags: at most 50, with names up to 512 and values up to 256 characters."""
    tags = section(body, "tags")
    if len(tags) > 50:
        raise ArmError(400, "InvalidTagCount", f"The tag count '{len(tags)}' exceeds the maximum of 50.")
    if len({name.lower() for name in tags}) < len(tags):
        raise ArmError(400, "InvalidTagNames", "The tag names must be unique, without regard to case.")
    for name, value in tags.items():
        if not 0 < len(name) <= 512 or re.search(r"[<>%&\\?/\x00-\x1f]", name):
            raise ArmError(
                400, "InvalidTagNameCharacters", f"The tag name '{name}' has reserved characters or a wrong length."
            )
        if not isinstance(value, str):
            raise invalid_content(f"The value of the tag '{name}' must be a text.")
        if len(value) > 256:
            raise ArmError(400, "InvalidTagValue", f"The value of the tag '{name}' is longer than 256 characters.")
    return dict(tags)


def set_tags(resource: Resource, body: dict[str, Any]) -> None:
    """Replace the tags of a resource if a request has any."""
    if body.get("tags") is not None:
        resource.body["tags"] = check_tags(body)


def read_patch(call: Call, kind: str) -> tuple[Resource, dict[str, Any]]:
    """Return the resource that a PATCH names, with the tags of the request, and the body."""
    require_group(call, for_write=True)
    resource, body = require_resource(call, kind), require_object(call)
    set_tags(resource, body)
    return resource, body


def next_link(call: Call, token: str | int) -> str:
    """Return the URL of the next page of a list."""
    kept = "&".join(f"{quote(name)}={quote(value)}" for name, value in call.query.items() if name != "$skiptoken")
    return f"{call.base_url}{call.path}?{kept}&$skiptoken={quote(str(token), safe='')}"


def check_conditions(call: Call, existing: Resource | None) -> None:
    """Raise 412 if `If-Match` or `If-None-Match` does not hold."""
    unless, only = call.headers.get("if-none-match"), call.headers.get("if-match")
    failed = (unless == "*" and existing is not None) or (
        only is not None and (existing is None or (only != "*" and only.strip('"W/') != existing.etag.strip('"W/')))
    )
    if failed or (unless and existing is not None and unless.strip('"W/') == existing.etag.strip('"W/')):
        raise ArmError(
            412, "PreconditionFailed", "The condition specified using HTTP conditional header(s) is not met."
        )


def add_reads(service: Service, kind: str) -> None:
    """Register GET of a resource, and its lists in a resource group and in the subscription."""
    service.get(f"{GROUP}/providers/{kind}/{{name}}")(lambda call: Answer(200, require_resource(call, kind).body))
    for scope in (GROUP, SUBSCRIPTION):
        service.route("GET", f"{scope}/providers/{kind}")(lambda call: page(call, kind=kind))


def page(
    call: Call,
    *,
    kind: str | None = None,
    group: str | None = None,
    show: Callable[[Resource], Any] = lambda resource: resource.body,
    wanted: Callable[[Resource], bool] | None = None,
) -> Answer:
    """Return a page of the resources in the call's scope, with a `nextLink` if there are more.

    `group` narrows a list of the whole subscription; `$top` makes pages smaller.
    """
    if (scope := check_scope(call)) is not None:
        group = scope.name
    top = call.query.get("$top", str(PAGE))
    if not top.isdigit() or int(top) < 1:
        raise invalid_parameter("$top", f"The value '{top}' of the query parameter $top is invalid.")
    size, after = min(int(top), PAGE), call.query.get("$skiptoken", "")
    value: list[Any] = []
    while len(value) < size:
        batch = call.cloud.store.resources(kind=kind, group=group, after=after, limit=PAGE + 1)
        for resource in batch:
            if len(value) == size:
                break
            after = resource.key
            if wanted is None or wanted(resource):
                value.append(show(resource))
        if len(batch) <= PAGE:
            more = bool(batch) and batch[-1].key != after
            break
    else:
        more = bool(call.cloud.store.resources(kind=kind, group=group, after=after, limit=1))
    body: dict[str, Any] = {"value": value}
    if more:
        body["nextLink"] = next_link(call, after)
    return Answer(200, body)


def parse_filter(text: str, fields: Set[str]) -> dict[str, str]:
    """Return names in lower case and values of `tagName eq 'x' and tagValue eq 'y'`. Raises ARM's 400 otherwise."""
    wanted: dict[str, str] = {}
    position = 0
    while text.strip():
        found = _COMPARISON.match(text, position)
        if found is None or found[1].lower() not in fields or found[1].lower() in wanted:
            raise invalid_filter(text)
        wanted[found[1].lower()] = found[2].replace("''", "'")
        position = found.end()
        if position == len(text):
            break
        joint = re.compile(r"and\s", re.IGNORECASE).match(text, position)
        if joint is None:
            raise invalid_filter(text)
        position = joint.end()
    if "tagvalue" in wanted and "tagname" not in wanted:
        raise invalid_filter(text)
    return wanted


def invalid_filter(text: str) -> ArmError:
    """Return the error for a filter that the list does not support."""
    return ArmError(400, "InvalidFilterInQueryString", f"Invalid $filter '{text}' specified in the query string.")


def has_tag(body: dict[str, Any], wanted: dict[str, str]) -> bool:
    """Whether the tags match a filter's `tagname` and `tagvalue`, if present. Only values are case-sensitive."""
    if "tagname" not in wanted:
        return True
    tags = {name.lower(): value for name, value in (body.get("tags") or {}).items()}
    name = wanted["tagname"].lower()
    return name in tags and ("tagvalue" not in wanted or tags[name] == wanted["tagvalue"])
