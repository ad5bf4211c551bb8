"""All services: their routes and effects."""

from gpuinfra.sandbox.services import activity_log, marketplace, operations, retail_prices, schedules
from gpuinfra.sandbox.services.authorization import managed_identities, role_assignments
from gpuinfra.sandbox.services.compute import (
    disks,
    images,
    quota,
    run_command,
    skus,
    virtual_machines,
    vm_power_actions,
)
from gpuinfra.sandbox.services.network import nics, nsgs, public_ips, vnets
from gpuinfra.sandbox.services.resources import (
    deployments,
    generic_resources,
    providers,
    resource_groups,
    subscriptions,
)

_WITH_EFFECTS = (
    *(providers, resource_groups, deployments, schedules),
    *(vnets, nsgs, public_ips, nics),
    *(virtual_machines, vm_power_actions, disks, run_command),
)
_WITHOUT_EFFECTS = (
    *(operations, subscriptions, generic_resources, activity_log),
    *(skus, quota, images, marketplace, retail_prices),
    *(managed_identities, role_assignments),
)

ROUTES = tuple(service.routes for service in (*_WITH_EFFECTS, *_WITHOUT_EFFECTS))
EFFECTS = tuple(service.effects for service in _WITH_EFFECTS)
