"""Start a machine for its hours. Its end is set before billing starts."""

from __future__ import annotations

from gpuinfra.models.reap import ReapDecision
from gpuinfra.models.receipt import stamp
from gpuinfra.models.resource import Kind, Ref, Resource
from gpuinfra.provision import tags
from gpuinfra.provision.cloud import Act, Cloud
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.journal import Journal
from gpuinfra.provision.names import ref_of
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.power import RUNNING
from gpuinfra.provision.resources.common import with_others
from gpuinfra.provision.resources.shutdown_schedule import moved
from gpuinfra.provision.waiting.deadline import Deadline
from gpuinfra.provision.waiting.progress import Progress
from gpuinfra.provision.waiting.retry import retry, wait_until

DOING = "starting"
START_SECONDS = 600.0
SEEN_SECONDS = 60.0
UNREACHABLE_SECONDS = 60.0


def start(
    cloud: Cloud,
    machine: ObservedResource,
    verdict: ReapDecision,
    progress: Progress,
    journal: Journal,
    deadline: Deadline,
) -> None:
    """Set Azure's shutdown schedule, then the tag, then start the VM, and wait until Azure shows it as running."""
    ref, deadline = machine.ref, deadline.within(START_SECONDS)
    pause = cloud.interrupt.sleep
    progress.begin(str(ref), DOING)
    journal.intend(DOING, ref)
    try:
        for step in (_arm, _start):
            retry(
                lambda step=step: step(cloud, machine, verdict, deadline),  # type: ignore[misc]
                deadline,
                pause,
                unreachable_seconds=UNREACHABLE_SECONDS,
            )
        _see_running(cloud, ref, deadline.within(SEEN_SECONDS))
    except CloudError as error:
        progress.fail(str(ref), error.code)
        journal.failed(DOING, ref, error.code)
        raise
    progress.end(str(ref), "started")
    journal.did(DOING, ref)


def _arm(cloud: Cloud, machine: ObservedResource, verdict: ReapDecision, deadline: Deadline) -> None:
    assert verdict.until is not None  # noqa: S101 for the type checker: a START decision has an end
    schedule = cloud.look(ref_of(Kind.SHUTDOWN_SCHEDULE, machine.ref.group, machine.ref.name))
    wanted = moved(machine, schedule, verdict.until, cloud.now(), cloud.subscription)
    if wanted:
        try:
            cloud.wait(cloud.put(wanted), deadline)
        except CloudError as error:
            # Without a schedule, only the guest agent stops the machine.
            if schedule or not error.is_lasting or not cloud.allow_self_stop(machine).is_held:
                raise
    marks = {tags.ON_SINCE: stamp(cloud.now()) or "", tags.LEASE_UNTIL: stamp(verdict.until) or ""}
    cloud.wait(cloud.patch(Resource(machine.ref, {"tags": with_others(machine, marks)})), deadline)


def _start(cloud: Cloud, machine: ObservedResource, verdict: ReapDecision, deadline: Deadline) -> None:  # noqa: ARG001 as the others
    cloud.wait(cloud.act(machine.ref, Act.START), deadline)


def _see_running(cloud: Cloud, ref: Ref, deadline: Deadline) -> None:
    def is_running() -> bool:
        machine = cloud.look(ref)
        return machine is not None and machine.power == RUNNING

    if not wait_until(is_running, deadline, cloud.interrupt.sleep):
        raise CloudError(Fault.TIMEOUT, "Timeout", "started, and Azure does not show it running", subject=str(ref))
