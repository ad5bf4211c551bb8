"""Find the runs on a machine that stopping or deleting it would affect, also those of other workspaces."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from gpuinfra.app.access import CloudSession, open_session
from gpuinfra.app.frontend import Frontend
from gpuinfra.app.machine_names import target_of_vm
from gpuinfra.app.run_control import fetch_outputs
from gpuinfra.app.settings import Settings
from gpuinfra.app.specs import spec_of_machine
from gpuinfra.app.workspace import open_workspace
from gpuinfra.diagnostics import Problem
from gpuinfra.models.consent import Contact, MachineAnswer, MachineRun
from gpuinfra.models.resource import Kind
from gpuinfra.models.run import Run
from gpuinfra.models.spec import Spec
from gpuinfra.provision.attachments import attached_by_others
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.observed import Observed
from gpuinfra.provision.observed_resource import vm_id_without_older_disk
from gpuinfra.provision.plan import creation_failed, has_disk
from gpuinfra.provision.power import UNUSABLE
from gpuinfra.runner.connection.private_keys import with_own_key
from gpuinfra.runner.errors import ConnectError, JobError, LoginRefused, RemoteError
from gpuinfra.runner.jobs.remote_runs import list_runs
from gpuinfra.runner.link import link_to

ASK_SECONDS = 120.0
# A machine that does not answer must not delay its teardown for long.
CONNECT_SECONDS = 10.0


def ask_machine(session: CloudSession, name: str, group: str | None, spec: Spec | None) -> MachineAnswer:
    """Return all runs that the machine knows, from any workspace."""
    try:
        observed = session.cloud.observe(name, group, thorough=True)
    except CloudError as error:
        if error.fault is Fault.INTERRUPTED:
            raise
        return MachineAnswer(Contact.SILENT)
    contact, machine = _contact(observed), observed.machine
    is_billed = machine is not None and machine.power != "deallocated"
    answer = MachineAnswer(contact, is_billed=is_billed) if contact else _ask(session, observed, spec)
    if machine is None:
        is_deleted = contact is Contact.OFF and observed.part(Kind.VM) is None and observed.untagged is None
        return replace(answer, is_deleted=is_deleted)
    vm_id = vm_id_without_older_disk(machine, observed.part(Kind.DISK))
    attached = attached_by_others(machine, observed.part(Kind.NIC))
    return replace(answer, vm=machine.vm_id, vm_id=vm_id, attached=attached)


def _contact(observed: Observed) -> Contact | None:
    """Return what is known without querying the machine, or None if it can be queried."""
    if creation_failed(observed) and not has_disk(observed):
        return Contact.NOTHING_THERE
    if observed.machine is None:
        return Contact.OFF if any(part.ref.kind is Kind.DISK for part in observed.ours()) else Contact.NOTHING_THERE
    return Contact.OFF if observed.machine.power in UNUSABLE else None


def _ask(session: CloudSession, observed: Observed, spec: Spec | None) -> MachineAnswer:
    try:
        spec = spec or spec_of_machine(session.settings.workspace, observed.name, observed.group)
        target = target_of_vm(session, observed, spec.admin.key() if spec else None)
        link = link_to(with_own_key(target), seconds=CONNECT_SECONDS)
        try:
            found = list_runs(link.remote)
        finally:
            link.drop()
    except LoginRefused:
        return MachineAnswer(Contact.REFUSED)
    except (Problem, ConnectError, RemoteError, JobError):
        return MachineAnswer(Contact.SILENT)
    return MachineAnswer(Contact.ANSWERED, tuple(found))


@dataclass
class OtherRuns:
    """The runs on the machine of one `run` besides its own. Its teardown must not stop them or lose their outputs."""

    settings: Settings
    spec: Spec
    frontend: Frontend
    own: Run | None
    """The run that this `run` has submitted."""
    found: list[MachineRun] | None
    """Other runs as the machine reported them to the job's connection; None if it was not asked or did not answer."""
    _answer: MachineAnswer | None = None

    def in_need(self) -> list[str]:
        """Return the runs that need the machine: their jobs run, or a client is fetching their outputs."""
        return [*self._own_runs_in_need(), *(run.id for run in self._foreign_runs() if not run.is_over)]

    def unfetched(self, *, is_new: bool) -> str:
        """Return the IDs of runs whose outputs a deletion would lose, also of the own run if it is not tracked.

        A new machine without a job has nothing to lose. On any other, unknown runs count.
        """
        try:
            found = {run.id for run in open_workspace(self.settings).history.unfetched(self.spec.name)}
        except Problem:
            return "earlier runs, which cannot be read,"
        if self.own and (self.own.job or self.own.started) and not self.own.outputs.complete:
            found.add(self.own.id)
        found |= {run.id for run in self._foreign_runs() if run.has_outputs}
        if self._runs_on_machine() is None and not found and not is_new:
            return "other runs, if there are any,"
        return ", ".join(sorted(found))

    def _own_runs_in_need(self) -> list[str]:
        """Return this workspace's runs that need the machine."""
        found: list[str] = []
        with suppress(Problem):
            workspace = open_workspace(self.settings)
            history, name = workspace.history, self.spec.name
            for run in {run.id: run for run in (*history.unfinished(name), *history.unfetched(name))}.values():
                with workspace.log_of(run.id) as log:
                    is_followed = log.is_followed
                is_own = self.own is not None and run.id == self.own.id
                if not is_own and (is_followed or self._continues(run)):
                    found.append(run.id)
        return found

    def _continues(self, run: Run) -> bool:
        """Return whether a run whose client is gone continues, by asking the machine. Also fetches its outputs."""
        # A run that never began will not begin now.
        if run.state.is_over or run.job is None:
            return False
        try:
            return not fetch_outputs(self.settings, run, self.frontend).state.is_over
        except (Problem, JobError):
            # Assume that it continues, unless its end was just recorded.
            return not open_workspace(self.settings).history.find(run.id).state.is_over

    def _foreign_runs(self) -> list[MachineRun]:
        """Return runs that the machine knows and this workspace does not. For its own runs, the history knows more."""
        runs = self._runs_on_machine()
        if not runs:
            return []
        own: set[str] = set()
        with suppress(Problem):  # without a history, all are unknown
            own = {run.id for run in open_workspace(self.settings).history.list()}
        return [run for run in runs if run.id not in own]

    def _runs_on_machine(self) -> list[MachineRun] | None:
        """Return other runs on the machine, from any workspace; None if the machine cannot be queried."""
        if self.found is not None:
            return self.found
        self._answer = self._answer or self._ask()
        if self._answer.contact not in {Contact.ANSWERED, Contact.NOTHING_THERE}:
            return None
        own = self.own.id if self.own else ""
        return [run for run in self._answer.runs if run.id != own]

    def _ask(self) -> MachineAnswer:
        try:
            session = open_session(self.settings, self.spec.subscription, ASK_SECONDS, self.frontend)
            return ask_machine(session, self.spec.name, self.spec.group_name, self.spec)
        except (Problem, CloudError):
            return MachineAnswer(Contact.SILENT)
