"""Export a machine as an ARM template: the bodies that `up` sends, with expressions for times and IDs. Pure."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from gpuinfra.models.images import ALIASES
from gpuinfra.models.plan import ARM_TYPES, Candidate, Kind, Resource
from gpuinfra.models.spec import Spec
from gpuinfra.provision import tags
from gpuinfra.provision.lease import BACKSTOP, Lease
from gpuinfra.provision.login import HostKey
from gpuinfra.provision.resources import MODULES, NEEDS
from gpuinfra.provision.resources.cloud_init import public_data
from gpuinfra.provision.resources.common import PlanInput
from gpuinfra.provision.tags import name_of

SCHEMA = "https://schema.management.azure.com/schemas/2019-04-01/deploymentTemplate.json#"
API_VERSIONS = {
    Kind.NSG: "2024-05-01",
    Kind.VNET: "2024-05-01",
    Kind.PUBLIC_IP: "2024-05-01",
    Kind.NIC: "2024-05-01",
    Kind.VM: "2025-11-01",  # the first version in which every subscription may request the security type Standard
    Kind.SHUTDOWN_SCHEDULE: "2018-09-15",
}
"""The kinds in a template. The group exists before the deployment, and the disk is created with the VM."""

_MOMENT = "yyyy-MM-ddTHH:mm:ssZ"
_WHOLE_MINUTE = "yyyy-MM-ddTHH:mm:00Z"
_TIME_OF_DAY = "HHmm"
# The subscription is not known yet. No real ID contains this placeholder.
_SUBSCRIPTION = "{subscription}"

# The agent's role belongs to the subscription. A deployment to a group cannot create it, and the agent needs it.
NO_AGENT = "a template contains Azure's daily schedule, but not the guest agent and its role"


class Expression(str):
    """Text that ARM evaluates. All other text that looks like an expression is escaped."""

    __slots__ = ()


def make_template(spec: Spec, sources: tuple[str, ...], public_key: str) -> dict[str, Any]:
    """Return a machine's template. `sources` may reach SSH, with `auto` resolved to an address.

    The template contains no secret, so no host key: the machine generates its own.
    """
    plan_input = _plan_input(spec, sources, public_key)
    wanted = [MODULES[kind].desired(plan_input) for kind in MODULES if kind in API_VERSIONS]
    address = _resource_id(ARM_TYPES[Kind.PUBLIC_IP], name_of(Kind.PUBLIC_IP, spec.name))
    return {
        "$schema": SCHEMA,
        "contentVersion": "1.0.0.0",
        "metadata": {"description": f"The machine {spec.name}, for resource group {spec.group_name}."},
        "parameters": _parameters(spec),
        "variables": _variables(spec.lifecycle.lease),
        "resources": [_declared(plan_input, resource) for resource in wanted],
        "outputs": {"address": {"type": "string", "value": f"[reference({address}).ipAddress]"}},
    }


def notes(spec: Spec) -> Iterator[str]:
    """Describe what the template cannot do, for the user who deploys it."""
    yield NO_AGENT
    if not _lease(spec).is_daily:
        yield "Azure's daily schedule cannot express a lease of a day or more: nothing in Azure ends this machine"
    if spec.lifecycle.hours:
        yield "a template cannot contain hours: only the lease ends"
    if spec.lifecycle.max_cost:
        yield "a template has no price: the cost cap has no effect"
    if spec.power == "deallocated":
        yield "the spec keeps the machine off, and a template can only create one that is on"
    if spec.image not in ALIASES:
        yield f"if {spec.image} is sold under a plan, add that to the machine as `plan`: only Azure knows it"


def _plan_input(spec: Spec, sources: tuple[str, ...], public_key: str) -> PlanInput:
    zone = _parameter("zone") if spec.zones else None
    return PlanInput(
        spec=spec,
        candidate=Candidate(_parameter("location"), _parameter("vmSize"), zone),
        subscription=_SUBSCRIPTION,
        sources=sources,
        public_key=public_key,
        host_key=HostKey("", ""),
        lease=_lease(spec),
        ready=Expression("[variables('onSince')]"),
    )


def _lease(spec: Spec) -> Lease:
    # Only the length matters: the deployment computes the times.
    since = datetime(2000, 1, 1, tzinfo=UTC)
    return Lease(since, since + spec.lifecycle.lease)


# Values that the deployment computes


def _parameter(name: str) -> Expression:
    return Expression(f"[parameters('{name}')]")


def _parameters(spec: Spec) -> dict[str, Any]:
    """Return the parameters: every candidate in the spec can be chosen, and the first is the default."""
    found = {
        "location": _choice(spec.regions, "The region."),
        "vmSize": _choice(spec.candidate_sizes, "The machine's size."),
        "now": {
            "type": "string",
            # ARM knows the current time only in a parameter default, and can parse the format `u`.
            "defaultValue": "[utcNow('u')]",
            "metadata": {"description": "When the machine is switched on: its lease begins."},
        },
    }
    return {**found, "zone": _choice(spec.zones, "The availability zone.")} if spec.zones else found


def _choice(values: tuple[str, ...], description: str) -> dict[str, Any]:
    return {
        "type": "string",
        "defaultValue": values[0],
        "allowedValues": list(values),
        "metadata": {"description": description},
    }


def _variables(lease: timedelta) -> dict[str, str]:
    """Return the times of the lease, rounded up to a whole minute like `lifecycle.lease` does."""
    rounded_up = lease + timedelta(seconds=59)
    return {
        "onSince": _later(timedelta(), _MOMENT),
        "leaseUntil": _later(rounded_up, _WHOLE_MINUTE),
        "stopsAt": _later(rounded_up + BACKSTOP, _TIME_OF_DAY),
    }


def _later(length: timedelta, pattern: str) -> str:
    return f"[dateTimeAdd(parameters('now'), '{_iso(length)}', '{pattern}')]"


def _iso(length: timedelta) -> str:
    """Return an ISO 8601 duration, such as P1DT4H0M59S."""
    minutes, seconds = divmod(length.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days = f"{length.days}D" if length.days else ""
    return f"P{days}T{hours}H{minutes}M{seconds}S"


# Resources


def _declared(plan_input: PlanInput, resource: Resource) -> dict[str, Any]:
    """Return a resource as a template declares it. Its secrets (`resource.secrets`) are left out."""
    kind = resource.ref.kind
    needed = [plan_input.ref(each) for each in NEEDS[kind] if each in API_VERSIONS]
    return {
        "type": ARM_TYPES[kind],
        "apiVersion": API_VERSIONS[kind],
        "name": resource.ref.name,
        "dependsOn": [f"[{_resource_id(ARM_TYPES[ref.kind], ref.name)}]" for ref in needed],
        **_written(_deferred(kind, resource.body), plan_input),
    }


def _deferred(kind: Kind, body: dict[str, Any]) -> dict[str, Any]:
    """Return the body with times as expressions, and without the host key, which the machine generates itself."""
    if kind is Kind.VM:
        own = {name: value for name, value in body["tags"].items() if name != tags.HOST_KEY}
        moments = {
            tags.ON_SINCE: Expression("[variables('onSince')]"),
            tags.LEASE_UNTIL: Expression("[variables('leaseUntil')]"),
        }
        system = body["properties"]["osProfile"]
        system = {**system, "customData": public_data(system["adminUsername"])}
        return {**body, "tags": {**own, **moments}, "properties": {**body["properties"], "osProfile": system}}
    if kind is Kind.SHUTDOWN_SCHEDULE:
        time = {"time": Expression("[variables('stopsAt')]")}
        return {**body, "properties": {**body["properties"], "dailyRecurrence": time}}
    return body


def _written(value: Any, plan_input: PlanInput) -> Any:
    """Return a JSON value for the template: our IDs become references, and other text is escaped."""
    if isinstance(value, dict):
        # Tags are the user's text: an ID in them stays text.
        return {
            _escaped(name): _plain(item) if name == "tags" else _written(item, plan_input)
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [_written(item, plan_input) for item in value]
    if isinstance(value, str) and not isinstance(value, Expression):
        return _reference(value, plan_input) or _escaped(value)
    return value


def _plain(tags: dict[str, str]) -> dict[str, str]:
    return {_escaped(name): value if isinstance(value, Expression) else _escaped(value) for name, value in tags.items()}


def _reference(text: str, plan_input: PlanInput) -> str | None:
    """Return a resource's ID as an expression that works in any subscription and group; None if it is not our ID."""
    group = f"{plan_input.id(Kind.RESOURCE_GROUP)}/providers/"
    if not text.startswith(group):
        return None
    namespace, *pairs = text.removeprefix(group).split("/")
    return f"[{_resource_id('/'.join([namespace, *pairs[::2]]), *pairs[1::2])}]"


def _resource_id(kind: str, *names: str) -> str:
    words = ", ".join(f"'{word}'" for word in (kind, *names))
    return f"resourceId({words})"


def _escaped(text: str) -> str:
    # ARM evaluates text that begins and ends with a bracket. Text with only one of them needs no escape.
    return f"[{text}" if text.startswith("[") and text.endswith("]") else text
