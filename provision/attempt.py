"""Create or change a machine at one candidate. After a failure, delete what this run created, and nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gpuinfra.diagnostics import Exit, Problem
from gpuinfra.models.plan import Candidate, Plan
from gpuinfra.models.resource import Kind, Ref
from gpuinfra.models.spec import Spec
from gpuinfra.provision import tags
from gpuinfra.provision.apply import PlanExecution
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.market.preflight import Preflight
from gpuinfra.provision.names import ref_of
from gpuinfra.provision.observed import Observed
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.problems import explain
from gpuinfra.provision.remove import UNREACHABLE_SECONDS, remove_unused, strangers
from gpuinfra.provision.role_grant import RoleGrant
from gpuinfra.provision.task import Task

# Resources that are created and deleted together with the VM.
_PLACED = (Kind.VM, Kind.DISK, Kind.NIC, Kind.PUBLIC_IP)

ROLLBACK_SECONDS = 1800.0
ROLLED_BACK = "what this run had created was deleted again"


@dataclass
class Attempts:
    """The attempts of one run, one candidate after the other."""

    spec: Spec
    task: Task
    role_grant: RoleGrant
    host_key: str
    """The public host key that was generated for this run."""
    created: list[Ref] = field(default_factory=list)
    """What this run has created and not deleted, for all candidates so far."""
    rollback: str = ROLLED_BACK
    """The result of the last rollback, for the error message."""

    def check_unchanged(self, plan: Plan, observed: Observed) -> None:
        """Raise Problem if the VM to delete was replaced by another with its name, perhaps during the confirmation."""
        if not plan.loses and not plan.replaces_vm:
            return
        try:
            found = self.task.cloud.look(ref_of(Kind.VM, self.spec.group_name, self.spec.name))
        except CloudError as error:
            raise explain(error, f"looking at {plan.name}", "nothing was changed") from error
        if found and _identity(found) != _identity(observed.part(Kind.VM)):
            taken = CloudError(Fault.TAKEN, "Conflict", "another client just created it", subject=str(found.ref))
            raise explain(taken, str(found.ref), "nothing was changed")

    def prepare(self, checked: Preflight | None) -> None:
        """Register resource providers and accept image terms where the preflight found that missing."""
        if checked is None:
            return
        market, progress = self.task.market, self.task.progress
        try:
            for namespace in checked.unregistered:
                progress.begin(f"provider {namespace}", "registering")
                market.register(namespace, self.task.deadline)
                progress.end(f"provider {namespace}", "registered")
            for image in checked.images.values():
                if image.plan and image.terms_accepted is False and self.spec.accept_image_terms:
                    market.accept_terms(image.plan)
        except CloudError as error:
            raise explain(error, "preparing the subscription", "nothing was created") from error

    def run(self, plan: Plan, before: Observed, rest: Sequence[Candidate]) -> CloudError | None:
        """Execute the plan. Return None, or an error that another candidate may avoid; raise Problem for others."""
        execution = PlanExecution(self.task, self.role_grant)
        try:
            execution.apply(plan)
        except CloudError as error:
            self.created += execution.created
            doing = error.subject or plan.name
            if error.fault is Fault.INTERRUPTED:
                raise explain(error, doing, "nothing was deleted") from error
            if before.part(Kind.VM) and not plan.replaces_vm:
                raise explain(error, doing, f"{plan.name} is kept; `gpuinfra status` shows its state") from error
            moves_on = error.moves_on and bool(rest)
            same_region = moves_on and plan.candidate is not None and rest[0].region == plan.candidate.region
            self._roll_back(error, moves_on=moves_on, same_region=same_region)
            if error.moves_on:
                return error
            is_gone = plan.loses and self.rollback == ROLLED_BACK
            gone = [f"{plan.name}, which was to be replaced, is gone"] if is_gone else []
            raise explain(error, doing, *gone, self.rollback) from error
        return None

    # Roll back

    def _roll_back(self, cause: CloudError, *, moves_on: bool, same_region: bool) -> None:
        """Delete what a failed attempt created, and verify that it is gone."""
        progress = self.task.progress
        progress.note(f"{cause.code}: deleting what was created")
        task = replace(self.task, deadline=self.task.cloud.grant(ROLLBACK_SECONDS))
        self.role_grant.drop(task.deadline)
        try:
            gone = self._leftovers(task, moves_on=moves_on, same_region=same_region)
            # Keep what another `up` uses by now.
            for ref in remove_unused(task, gone):
                progress.note(f"{ref} was left: another resource uses it")
            self.created = [ref for ref in self.created if ref not in gone]
        except CloudError as error:
            what = error.subject or "what was created"
            problem = explain(error, f"deleting {what} after {cause.code}", "it may be billed")
            raise Problem(
                *explain(cause, cause.subject or self.spec.name).diagnostics,
                *problem.diagnostics,
                exit_code=Exit.LEFT_BEHIND,
            ) from error

    def _leftovers(self, task: Task, *, moves_on: bool, same_region: bool) -> list[Ref]:
        """Return what a failed attempt left. Retry as long as for a deletion, because a VM may be among it."""
        spec = self.spec
        observed = task.retry(lambda: task.cloud.observe(spec.name, spec.group_name), UNREACHABLE_SECONDS)
        gone = list(dict.fromkeys(self.created))
        machine = observed.part(Kind.VM)
        self.rollback = ROLLED_BACK
        if machine and not self._is_of_this_run(machine):
            # Everything with these names belongs, or will belong, to that machine.
            self.rollback = f"nothing was deleted: {machine.ref} exists, and this run did not create it"
            return []
        if machine:
            gone += [ref for kind in _PLACED if (part := observed.part(kind)) and (ref := part.ref) not in gone]
        if same_region:
            # The next attempt can use the network. What belongs to a VM is deleted with it.
            gone = [ref for ref in gone if machine and ref.kind in _PLACED]
        if moves_on or self._holds_others(gone, observed):
            gone = [ref for ref in gone if ref.kind is not Kind.RESOURCE_GROUP]
        return gone

    def _is_of_this_run(self, machine: ObservedResource) -> bool:
        """Return whether the VM has this run's host key, or has none and this run created a VM with this name."""
        found = tags.get(machine.tags, tags.HOST_KEY)
        return found == self.host_key or (not found and machine.ref in self.created)

    def _holds_others(self, gone: Sequence[Ref], observed: Observed) -> bool:
        """Return whether the group contains resources that are not about to be deleted."""
        if not any(ref.kind is Kind.RESOURCE_GROUP for ref in gone):
            return False
        ours, cloud = [*gone, *(part.ref for part in observed.ours())], self.task.cloud
        return bool(strangers(cloud.contents(self.spec.group_name), ours, cloud.subscription))


def _identity(machine: ObservedResource | None) -> tuple[str, str]:
    """Return values that differ between any two VMs with the same name."""
    return (machine.vm_id, tags.get(machine.tags, tags.HOST_KEY)) if machine else ("", "")
