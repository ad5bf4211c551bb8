"""All services, for the server to put together."""

from __future__ import annotations

from sandbox.services import (
    compute_catalogue,
    deployments,
    disks,
    groups,
    identities,
    interfaces,
    machine_power,
    machines,
    marketplace,
    operation_status,
    prices,
    providers,
    public_addresses,
    resources,
    role_assignments,
    run_command,
    schedules,
    security_groups,
    subscriptions,
    virtual_networks,
)

_SERVICES = (
    compute_catalogue,
    deployments,
    disks,
    groups,
    identities,
    interfaces,
    machine_power,
    machines,
    marketplace,
    prices,
    providers,
    public_addresses,
    resources,
    role_assignments,
    run_command,
    schedules,
    security_groups,
    subscriptions,
    virtual_networks,
)

ROUTES = (operation_status.routes, *(service.routes for service in _SERVICES))
EFFECTS = tuple(service.effects for service in _SERVICES)
