"""One module per resource kind: its desired state, and how the actual state differs. All pure.

Each module has `desired(plan_input) -> Resource`, `differences(desired, part) -> Iterator[Difference]`, and
`update(desired, part) -> Resource`, which returns the body of a change in place.
"""

from types import ModuleType

from gpuinfra.models.plan import Kind
from gpuinfra.provision.resources import disk, nic, nsg, public_ip, resource_group, shutdown_schedule, vm, vnet

# In order of creation; deletion uses the reverse order.
MODULES: dict[Kind, ModuleType] = {
    Kind.RESOURCE_GROUP: resource_group,
    Kind.NSG: nsg,
    Kind.VNET: vnet,
    Kind.PUBLIC_IP: public_ip,
    Kind.NIC: nic,
    Kind.VM: vm,
    Kind.DISK: disk,
    Kind.SHUTDOWN_SCHEDULE: shutdown_schedule,
}

NEEDS: dict[Kind, tuple[Kind, ...]] = {
    Kind.RESOURCE_GROUP: (),
    Kind.NSG: (Kind.RESOURCE_GROUP,),
    Kind.VNET: (Kind.RESOURCE_GROUP,),
    Kind.PUBLIC_IP: (Kind.RESOURCE_GROUP,),
    Kind.NIC: (Kind.NSG, Kind.VNET, Kind.PUBLIC_IP),
    Kind.VM: (Kind.NIC,),
    Kind.DISK: (Kind.VM,),
    Kind.SHUTDOWN_SCHEDULE: (Kind.VM,),
}
