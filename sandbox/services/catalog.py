"""All services, for the server to put together."""

from __future__ import annotations

from sandbox.services import activity_log, marketplace, operation_status, prices, schedules
from sandbox.services.authorization import identities, permissions, role_assignments
from sandbox.services.compute import disks, machine_power, machines, offers, run_command
from sandbox.services.network import interfaces, public_addresses, security_groups, virtual_networks
from sandbox.services.resources import deployments, generic, groups, providers, subscriptions

_SERVICES = (
    *(subscriptions, providers, groups, generic, deployments),
    *(virtual_networks, security_groups, public_addresses, interfaces),
    *(offers, machines, machine_power, disks, run_command),
    *(identities, role_assignments, permissions),
    *(marketplace, prices, schedules, activity_log),
)

ROUTES = (operation_status.routes, *(service.routes for service in _SERVICES))
EFFECTS = tuple(service.effects for service in _SERVICES)
