"""All services, for the server to put together."""

from __future__ import annotations

from gpuinfra.sandbox.services import activity_log, marketplace, operation_status, prices, schedules
from gpuinfra.sandbox.services.authorization import identities, permissions, role_assignments
from gpuinfra.sandbox.services.compute import disks, machine_power, machines, offers, run_command
from gpuinfra.sandbox.services.network import interfaces, public_addresses, security_groups, virtual_networks
from gpuinfra.sandbox.services.resources import deployments, generic, groups, providers, subscriptions

_SERVICES = (
    *(subscriptions, providers, groups, generic, deployments),
    *(virtual_networks, security_groups, public_addresses, interfaces),
    *(offers, machines, machine_power, disks, run_command),
    *(identities, role_assignments, permissions),
    *(marketplace, prices, schedules, activity_log),
)

ROUTES = (operation_status.routes, *(service.routes for service in _SERVICES))
EFFECTS = tuple(service.effects for service in _SERVICES)
