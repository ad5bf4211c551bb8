"""All services of the embedded Azure."""

from gpuinfra.sandbox.services import activity_log, marketplace, operations, retail_prices, schedules
from gpuinfra.sandbox.services.authorization import locks, managed_identities, role_assignments, role_definitions
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
    subscription_deployments,
    subscriptions,
)

_MODULES = (
    *(subscriptions, resource_groups, providers, generic_resources, deployments),
    *(subscription_deployments, operations, activity_log),
    *(virtual_machines, vm_power_actions, run_command, disks, images, skus, quota),
    *(vnets, nsgs, public_ips, nics),
    *(managed_identities, role_assignments, role_definitions, locks, schedules, marketplace, retail_prices),
)
SERVICES = tuple(module.service for module in _MODULES)
