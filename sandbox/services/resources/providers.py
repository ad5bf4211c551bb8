"""Resource providers: their types, API versions and registration."""

from dataclasses import dataclass
from typing import Any

from gpuinfra.sandbox.catalogue.catalogue import Catalogue
from gpuinfra.sandbox.kernel.call import Answer, Call
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.errors import ArmError
from gpuinfra.sandbox.kernel.faults import NO_SCHEDULES
from gpuinfra.sandbox.kernel.routes import SUBSCRIPTION, Service
from gpuinfra.sandbox.services.common import require_subscription

MOVABLE = "CrossResourceGroupResourceMove, CrossSubscriptionResourceMove, SupportsTags, SupportsLocation"
TAGGED = "SupportsTags, SupportsLocation"
PLAIN = "None"
EXTENSION = "SupportsExtension"


@dataclass(frozen=True, slots=True)
class ResourceType:
    """A type in a namespace. `placed` is False for types without a region."""

    name: str
    capabilities: str = PLAIN
    placed: bool = True
    zoned: bool = False


@dataclass(frozen=True, slots=True)
class Namespace:
    """A resource provider with the API versions that programs in use request, newest first."""

    name: str
    api_versions: tuple[str, ...]
    types: tuple[ResourceType, ...]
    free: bool = False
    """Whether it needs no registration."""


COMPUTE = Namespace(
    "Microsoft.Compute",
    (
        *("2026-04-01", "2026-03-02", "2025-11-01", "2025-04-01", "2024-11-01", "2024-07-01", "2024-03-01"),
        *("2023-09-01", "2023-04-02", "2022-11-01", "2022-08-01", "2021-07-01", "2020-12-01", "2019-04-01"),
        "2017-09-01",
    ),
    (
        ResourceType("virtualMachines", f"{MOVABLE}, SystemAssignedResourceIdentity", zoned=True),
        ResourceType("virtualMachines/extensions", TAGGED),
        ResourceType("virtualMachines/runCommands", TAGGED),
        ResourceType("disks", MOVABLE, zoned=True),
        ResourceType("skus", placed=False),
        ResourceType("operations", placed=False),
        ResourceType("locations", placed=False),
        ResourceType("locations/operations"),
        ResourceType("locations/publishers"),
        ResourceType("locations/usages"),
        ResourceType("locations/vmSizes"),
    ),
)
NETWORK = Namespace(
    "Microsoft.Network",
    (
        *("2026-03-01", "2025-05-01", "2024-11-01", "2024-07-01", "2024-05-01", "2024-03-01", "2024-01-01"),
        *("2023-11-01", "2023-09-01", "2022-11-01", "2022-01-01", "2021-08-01", "2021-02-01", "2018-11-01"),
        *("2018-01-01", "2017-10-01", "2015-06-15"),
    ),
    (
        ResourceType("virtualNetworks", MOVABLE),
        ResourceType("virtualNetworks/subnets"),
        ResourceType("publicIPAddresses", MOVABLE, zoned=True),
        ResourceType("networkInterfaces", MOVABLE),
        ResourceType("networkSecurityGroups", MOVABLE),
        ResourceType("networkSecurityGroups/securityRules"),
        ResourceType("locations", placed=False),
        ResourceType("locations/operations"),
        ResourceType("locations/operationResults"),
        ResourceType("locations/usages"),
        ResourceType("operations"),
    ),
)
RESOURCES = Namespace(
    "Microsoft.Resources",
    ("2025-04-01", "2024-11-01", "2024-07-01", "2024-03-01", "2022-12-01", "2022-09-01", "2021-04-01", "2016-02-01"),
    (
        ResourceType("subscriptions", placed=False),
        ResourceType("resourceGroups", placed=False),
        ResourceType("subscriptions/resourceGroups"),
        ResourceType("subscriptions/providers", placed=False),
        ResourceType("deployments", placed=False),
        ResourceType("deployments/operations", placed=False),
        ResourceType("tags", placed=False),
        ResourceType("operations", placed=False),
    ),
    free=True,
)
NAMESPACES = (
    COMPUTE,
    NETWORK,
    RESOURCES,
    Namespace(
        "Microsoft.DevTestLab",
        ("2018-09-15", "2018-10-15-preview", "2016-05-15"),
        (ResourceType("schedules", MOVABLE), ResourceType("labs", MOVABLE), ResourceType("locations", placed=False)),
    ),
    Namespace(
        "Microsoft.ManagedIdentity",
        ("2024-11-30", "2023-01-31", "2022-01-31-preview", "2018-11-30", "2015-08-31-preview"),
        (ResourceType("userAssignedIdentities", TAGGED), ResourceType("identities", EXTENSION, placed=False)),
    ),
    Namespace(
        "Microsoft.Authorization",
        ("2022-04-01", "2020-10-01-preview", "2020-04-01-preview", "2018-09-01-preview", "2018-01-01-preview"),
        (
            ResourceType("roleAssignments", EXTENSION, placed=False),
            ResourceType("roleDefinitions", EXTENSION, placed=False),
            ResourceType("locks", EXTENSION, placed=False),
        ),
        free=True,
    ),
    Namespace(
        "Microsoft.MarketplaceOrdering",
        ("2021-01-01", "2015-06-01"),
        (ResourceType("agreements", placed=False), ResourceType("offertypes", placed=False)),
    ),
    Namespace(
        "Microsoft.Storage",
        ("2025-01-01", "2024-01-01", "2023-05-01", "2022-09-01", "2021-09-01", "2019-06-01"),
        (ResourceType("storageAccounts", MOVABLE), ResourceType("locations", placed=False)),
    ),
)


def provider_body(catalogue: Catalogue, name: str, subscription_id: str, state: str) -> dict[str, Any] | None:
    """Return a provider as ARM shows it; `state` is `Registered`, `Registering` or `NotRegistered`."""
    found = next((each for each in NAMESPACES if each.name.casefold() == name.casefold()), None)
    if found is None:
        return None
    return {
        "id": f"/subscriptions/{subscription_id}/providers/{found.name}",
        "namespace": found.name,
        "authorizations": [],
        "resourceTypes": [_type_body(catalogue, found, kind) for kind in found.types],
        "registrationState": "Registered" if found.free else state,
        "registrationPolicy": "RegistrationFree" if found.free else "RegistrationRequired",
    }


def _type_body(catalogue: Catalogue, within: Namespace, kind: ResourceType) -> dict[str, Any]:
    body: dict[str, Any] = {
        "resourceType": kind.name,
        "locations": [region.display_name for region in catalogue.regions()] if kind.placed else [],
        "apiVersions": list(within.api_versions),
        "defaultApiVersion": next(version for version in within.api_versions if not version.endswith("preview")),
    }
    if kind.zoned:
        body["zoneMappings"] = [
            {"location": region.display_name, "zones": list(region.zones)}
            for region in catalogue.regions()
            if region.zones
        ]
    return {**body, "capabilities": kind.capabilities}


service = Service()

_PROVIDER = f"{SUBSCRIPTION}/providers/{{namespace}}"


def registration(cloud: Cloud, name: str) -> str:
    """Return the registration state; `Registered` unless it was changed."""
    return str(cloud.store.setting(f"provider:{name.lower()}", "Registered"))


def _body(call: Call) -> dict[str, Any]:
    require_subscription(call)
    name = call["namespace"]
    body = provider_body(call.cloud.catalogue, name, call.cloud.subscription, registration(call.cloud, name))
    if body is None:
        raise ArmError(404, "InvalidResourceNamespace", f"The resource namespace '{name}' is invalid.")
    _leave_out(call.cloud, body)
    return body


def _leave_out(cloud: Cloud, body: dict[str, Any]) -> None:
    """Take the regions that a fault names out of the list of a type."""
    for kind in body["resourceTypes"]:
        if (body["namespace"], kind["resourceType"]) == ("Microsoft.DevTestLab", "schedules"):
            names = {region.display_name: region.name for region in cloud.catalogue.regions()}
            kind["locations"] = [
                each
                for each in kind["locations"]
                if not cloud.faults.look(NO_SCHEDULES, resource_id="", region=str(names[each]))
            ]


@service.route("GET", f"{SUBSCRIPTION}/providers")
def _list_providers(call: Call) -> Answer:
    require_subscription(call)
    cloud = call.cloud
    value = [
        provider_body(cloud.catalogue, each.name, cloud.subscription, registration(cloud, each.name))
        for each in NAMESPACES
    ]
    return Answer(200, {"value": value})


@service.route("GET", _PROVIDER)
def _get_provider(call: Call) -> Answer:
    return Answer(200, _body(call))


@service.route("POST", f"{_PROVIDER}/register")
def register(call: Call) -> Answer:
    """Start a registration, which takes a while."""
    body = _body(call)
    cloud, name = call.cloud, body["namespace"]
    if registration(cloud, name) != "Registered":
        cloud.store.set_setting(f"provider:{name.lower()}", "Registering")
        cloud.schedule(
            cloud.now + cloud.latency.seconds("provider-register"), "provider-registered", {"namespace": name}
        )
    return Answer(200, _body(call))


@service.effect("provider-registered")
def _provider_registered(cloud: Cloud, payload: dict[str, Any]) -> None:
    cloud.store.set_setting(f"provider:{payload['namespace'].lower()}", "Registered")


@service.route("POST", f"{_PROVIDER}/unregister")
def _unregister(call: Call) -> Answer:
    body = _body(call)
    call.cloud.store.set_setting(f"provider:{body['namespace'].lower()}", "NotRegistered")
    return Answer(200, _body(call))
