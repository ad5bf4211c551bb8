"""Delete what failed attempts of this run created, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpuinfra.diagnostics import Exit, Problem
from gpuinfra.models.resource import Kind, Ref
from gpuinfra.models.spec import Spec
from gpuinfra.provision import tags
from gpuinfra.provision.cloud import Cloud
from gpuinfra.provision.errors import CloudError
from gpuinfra.provision.journal import Journal
from gpuinfra.provision.observed import Observed
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.problems import explain
from gpuinfra.provision.remove import UNREACHABLE_SECONDS, remove_unused, strangers
from gpuinfra.provision.role_grant import RoleGrant
from gpuinfra.provision.waiting.deadline import Deadline
from gpuinfra.provision.waiting.progress import Progress
from gpuinfra.provision.waiting.retry import retry

# Resources that are created and deleted together with the VM.
_PLACED = (Kind.VM, Kind.DISK, Kind.NIC, Kind.PUBLIC_IP)

ROLLBACK_SECONDS = 1800.0
ROLLED_BACK = "what this run had created was deleted again"


@dataclass
class Rollback:
    """The rollback of the attempts of one run."""

    spec: Spec
    cloud: Cloud
    progress: Progress
    journal: Journal
    role_grant: RoleGrant
    host_key: str
    """The public host key that was generated for this run."""
    created: list[Ref] = field(default_factory=list)
    """What this run has created and not deleted, for all candidates so far."""
    result: str = ROLLED_BACK
    """The result of the last rollback, for the error message."""

    def run(self, cause: CloudError, *, moves_on: bool, same_region: bool) -> None:
        """Delete what a failed attempt created, and verify that it is gone."""
        self.progress.note(f"{cause.code}: deleting what was created")
        deadline = self.cloud.grant(ROLLBACK_SECONDS)
        self.role_grant.drop(deadline)
        try:
            gone = self._leftovers(deadline, moves_on=moves_on, same_region=same_region)
            # Keep what another `up` uses by now.
            for ref in remove_unused(self.cloud, gone, self.progress, self.journal, deadline):
                self.progress.note(f"{ref} was left: another resource uses it")
            self.created = [ref for ref in self.created if ref not in gone]
        except CloudError as error:
            what = error.subject or "what was created"
            problem = explain(error, f"deleting {what} after {cause.code}", "it may be billed")
            raise Problem(
                *explain(cause, cause.subject or self.spec.name).diagnostics,
                *problem.diagnostics,
                exit_code=Exit.LEFT_BEHIND,
            ) from error

    def _leftovers(self, deadline: Deadline, *, moves_on: bool, same_region: bool) -> list[Ref]:
        """Return what a failed attempt left. Retry as long as for a deletion, because a VM may be among it."""
        observed = retry(
            lambda: self.cloud.observe(self.spec.name, self.spec.group_name),
            deadline,
            self.cloud.interrupt.sleep,
            unreachable_seconds=UNREACHABLE_SECONDS,
        )
        gone = list(dict.fromkeys(self.created))
        machine = observed.part(Kind.VM)
        self.result = ROLLED_BACK
        if machine and not self._is_of_this_run(machine):
            # Everything with these names belongs, or will belong, to that machine.
            self.result = f"nothing was deleted: {machine.ref} is there, and this run did not create it"
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
        ours = [*gone, *(part.ref for part in observed.ours())]
        return bool(strangers(self.cloud.contents(self.spec.group_name), ours, self.cloud.subscription))
