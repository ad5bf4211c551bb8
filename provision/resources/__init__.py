"""One file a kind of resource: what it should be, and how it differs. All pure.

Each module has `desired(setting) -> Resource`, `differences(desired, part) -> Iterator[Difference]`, and
`update(desired, part) -> Resource`: the body of a change in place.
"""

from __future__ import annotations

from types import ModuleType

from gpuinfra.models.resource import Kind
from gpuinfra.provision.resources import address, disk, group, interface, machine, network, schedule, security

# The order in which they come to be; they go in the opposite one.
MODULES: dict[Kind, ModuleType] = {
    Kind.GROUP: group,
    Kind.SECURITY: security,
    Kind.NETWORK: network,
    Kind.ADDRESS: address,
    Kind.INTERFACE: interface,
    Kind.MACHINE: machine,
    Kind.DISK: disk,
    Kind.SCHEDULE: schedule,
}

NEEDS: dict[Kind, tuple[Kind, ...]] = {
    Kind.GROUP: (),
    Kind.SECURITY: (Kind.GROUP,),
    Kind.NETWORK: (Kind.GROUP,),
    Kind.ADDRESS: (Kind.GROUP,),
    Kind.INTERFACE: (Kind.SECURITY, Kind.NETWORK, Kind.ADDRESS),
    Kind.MACHINE: (Kind.INTERFACE,),
    Kind.DISK: (Kind.MACHINE,),
    Kind.SCHEDULE: (Kind.MACHINE,),
}
