"""Start a machine for its hours. Its end is set before billing starts."""

from datetime import datetime

from gpuinfra.models.json_values import stamp
from gpuinfra.models.plan import Power
from gpuinfra.models.resource import Kind, Resource
from gpuinfra.provision import tags
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.names import ref_of
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.power import RUNNING
from gpuinfra.provision.resources.common import with_others
from gpuinfra.provision.resources.shutdown_schedule import schedule_update
from gpuinfra.provision.task import Task

DOING = "starting"
START_SECONDS = 600.0
SEEN_SECONDS = 60.0
UNREACHABLE_SECONDS = 60.0


def start(task: Task, machine: ObservedResource, until: datetime) -> None:
    """Set Azure's shutdown schedule, then the tag, then start the VM, and wait until Azure shows it as running."""
    ref, task = machine.ref, task.within(START_SECONDS)
    cloud = task.cloud
    with task.step(ref, DOING, "started"):
        task.retry(lambda: _arm(task, machine, until), UNREACHABLE_SECONDS)
        task.retry(lambda: cloud.wait(cloud.act(ref, Power.START), task.deadline), UNREACHABLE_SECONDS)
        if not task.within(SEEN_SECONDS).wait_until(lambda: _is_running(cloud.look(ref))):
            raise CloudError(Fault.TIMEOUT, "Timeout", "started, and Azure does not show it running", subject=str(ref))


def _arm(task: Task, machine: ObservedResource, until: datetime) -> None:
    cloud = task.cloud
    schedule = cloud.look(ref_of(Kind.SHUTDOWN_SCHEDULE, machine.ref.group, machine.ref.name))
    wanted = schedule_update(machine, schedule, until, cloud.now(), cloud.subscription)
    if wanted:
        try:
            cloud.wait(cloud.put(wanted), task.deadline)
        except CloudError as error:
            # Without a schedule, only the guest agent stops the machine.
            if schedule or not error.is_lasting or not cloud.allow_self_stop(machine).is_held:
                raise
    marks = {tags.ON_SINCE: stamp(cloud.now()) or "", tags.LEASE_UNTIL: stamp(until) or ""}
    cloud.wait(cloud.patch(Resource(machine.ref, {"tags": with_others(machine, marks)})), task.deadline)


def _is_running(machine: ObservedResource | None) -> bool:
    return machine is not None and machine.power == RUNNING
