"""Create or change a machine at one candidate; after a failure, roll back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuinfra.models.plan import Candidate, Plan
from gpuinfra.models.resource import Kind
from gpuinfra.models.spec import Spec
from gpuinfra.provision import tags
from gpuinfra.provision.apply import PlanExecution
from gpuinfra.provision.cloud import Cloud
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.journal import Journal
from gpuinfra.provision.market.port import Market
from gpuinfra.provision.market.preflight import Preflight
from gpuinfra.provision.names import ref_of
from gpuinfra.provision.observed import Observed
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.problems import explain
from gpuinfra.provision.role_grant import RoleGrant
from gpuinfra.provision.rollback import ROLLED_BACK, Rollback
from gpuinfra.provision.waiting.deadline import Deadline
from gpuinfra.provision.waiting.progress import Progress


@dataclass
class Attempts:
    """The attempts of one run, one candidate after the other."""

    spec: Spec
    cloud: Cloud
    market: Market
    progress: Progress
    journal: Journal
    deadline: Deadline
    role_grant: RoleGrant
    rollback: Rollback

    def check_unchanged(self, plan: Plan, observed: Observed) -> None:
        """Raise Problem if the VM to delete was replaced by another with its name, perhaps during the confirmation."""
        if not plan.loses and not plan.replaces_vm:
            return
        try:
            found = self.cloud.look(ref_of(Kind.VM, self.spec.group_name, self.spec.name))
        except CloudError as error:
            raise explain(error, f"looking at {plan.name}", "nothing was changed") from error
        if found and _identity(found) != _identity(observed.part(Kind.VM)):
            taken = CloudError(Fault.TAKEN, "Conflict", "another has just created it", subject=str(found.ref))
            raise explain(taken, str(found.ref), "nothing was changed")

    def prepare(self, checked: Preflight | None) -> None:
        """Register resource providers and accept image terms where the preflight found that missing."""
        if checked is None:
            return
        try:
            for namespace in checked.unregistered:
                self.progress.begin(f"provider {namespace}", "registering")
                self.market.register(namespace, self.deadline)
                self.progress.end(f"provider {namespace}", "registered")
            for image in checked.image.values():
                if image.plan and image.terms_accepted is False and self.spec.accept_image_terms:
                    self.market.accept_terms(image.plan)
        except CloudError as error:
            raise explain(error, "preparing the subscription", "nothing was created") from error

    def run(self, plan: Plan, before: Observed, rest: Sequence[Candidate]) -> CloudError | None:
        """Execute the plan. Return None, or an error that another candidate may avoid; raise Problem for others."""
        execution = PlanExecution(self.cloud, self.progress, self.journal, self.deadline, self.role_grant)
        try:
            execution.apply(plan)
        except CloudError as error:
            self.rollback.created += execution.created
            doing = error.subject or plan.name
            if error.fault is Fault.INTERRUPTED:
                raise explain(error, doing, "nothing was deleted") from error
            if before.part(Kind.VM) and not plan.replaces_vm:
                raise explain(error, doing, f"{plan.name} is kept; `gpuinfra status` shows its state") from error
            moves_on = error.moves_on and bool(rest)
            same_region = moves_on and plan.candidate is not None and rest[0].region == plan.candidate.region
            self.rollback.run(error, moves_on=moves_on, same_region=same_region)
            if error.moves_on:
                return error
            is_gone = plan.loses and self.rollback.result == ROLLED_BACK
            gone = [f"{plan.name}, which was to be replaced, is gone"] if is_gone else []
            raise explain(error, doing, *gone, self.rollback.result) from error
        return None


def _identity(machine: ObservedResource | None) -> tuple[str, str]:
    """Return values that differ between any two VMs with the same name."""
    if machine is None:
        return "", ""
    return machine.vm_id, tags.get(machine.tags, tags.HOST_KEY)
