"""Find the runs that a change would stop, also by asking the machine, and obtain consent to it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from gpuinfra.app.access import CloudSession, open_session
from gpuinfra.app.frontend import Frontend
from gpuinfra.app.machine_names import target_of_vm
from gpuinfra.app.run_control import fetch_outputs
from gpuinfra.app.settings import Settings
from gpuinfra.app.settlement import kept_disk_help
from gpuinfra.app.specs import spec_of_machine
from gpuinfra.app.workspace import open_workspace
from gpuinfra.diagnostics import Code, Exit, Problem, problem
from gpuinfra.models.consent import (
    Consent,
    ConsentDetails,
    Contact,
    Decision,
    Effect,
    MachineAnswer,
    MachineRun,
    Question,
    creates_machine,
    decide,
    unknown_runs,
)
from gpuinfra.models.plan import Kind, MachineId, Plan
from gpuinfra.models.run import Run
from gpuinfra.models.spec import Spec
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.observed import Observed
from gpuinfra.provision.observed_resource import vm_id_without_older_disk
from gpuinfra.provision.plan import creation_failed, has_disk
from gpuinfra.provision.power import UNUSABLE
from gpuinfra.provision.remove import attached_by_others
from gpuinfra.runner.connection.private_keys import with_own_key
from gpuinfra.runner.errors import ConnectError, JobError, LoginRefused, RemoteError
from gpuinfra.runner.link import link_to
from gpuinfra.runner.remote_runs import list_runs
from gpuinfra.store import History

ASK_SECONDS = 120.0
# A machine that does not answer must not delay its teardown for long.
CONNECT_SECONDS = 10.0


def ask_machine(
    session: CloudSession, name: str, group: str | None, spec: Spec | None, *, close: bool = False
) -> MachineAnswer:
    """Return all runs that the machine knows, from any workspace. `close` as in `list_runs`."""
    try:
        observed = session.cloud.observe(name, group, thorough=True)
    except CloudError as error:
        if error.fault is Fault.INTERRUPTED:
            raise
        return MachineAnswer(Contact.SILENT)
    contact, machine = _contact(observed), observed.machine
    is_billed = machine is not None and machine.power != "deallocated"
    answer = MachineAnswer(contact, is_billed=is_billed) if contact else _ask(session, observed, spec, close=close)
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


def _ask(session: CloudSession, observed: Observed, spec: Spec | None, *, close: bool) -> MachineAnswer:
    try:
        spec = spec or spec_of_machine(session.settings.workspace, observed.name, observed.group)
        target = target_of_vm(session, observed, spec.admin.key() if spec else None)
        link = link_to(with_own_key(target), seconds=CONNECT_SECONDS)
        try:
            found = list_runs(link.remote, close=close)
        finally:
            link.drop()
    except LoginRefused:
        return MachineAnswer(Contact.REFUSED)
    except (Problem, ConnectError, RemoteError, JobError):
        return MachineAnswer(Contact.SILENT)
    return MachineAnswer(Contact.ANSWERED, found.runs, found.closed_until)


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


QUESTIONS = {
    Effect.GO_OFF_SOONER: "{} will go off sooner than before. Continue?",
    Effect.RESTART: "{} will be restarted. Continue?",
    Effect.POWER_OFF: "{} will be switched off. Continue?",
    Effect.DELETE_DISK: "What is on the disk of {} will be lost. Continue?",
}


@dataclass(frozen=True)
class Request:
    """A change to one machine, with the options given for it."""

    name: str
    group: str | None
    effect: Effect
    command: str
    """The command that repeats the change with consent, such as `gpuinfra down my-dsvm`."""
    delete: bool = False
    """Whether `--delete` was given."""
    is_down: bool = False
    """Whether the user wants the machine off. If refused while it is on, it stays billed."""
    is_failed: bool = False
    """Whether the machine's creation seems to have failed, so that `up` would not start it."""


def require_consent(
    request: Request, session: CloudSession, spec: Spec | None, frontend: Frontend
) -> MachineAnswer | None:
    """Return the machine's answer, or None if it was not asked. Raise Problem without consent that is needed."""
    settings, name = session.settings, request.name
    if request.effect is Effect.NONE or _is_given(request, settings):
        return None
    answer = ask_machine(
        session, name, request.group, spec, close=request.is_down and request.effect is Effect.POWER_OFF
    )
    known = _known_runs(request, settings)
    place = session.machine_id(name, request.group)
    decision = decide(request.effect, name, known, answer, simulated=session.cloud.simulated, resource_id=str(place))
    # It may be another user's machine. Without a terminal, a lost key must not keep the user's own one billed.
    asks = decision.unknown is Contact.REFUSED and frontend.can_ask and not settings.yes
    if (decision.consent is Consent.NONE and not asks) or (settings.yes and decision.consent is Consent.YES):
        if decision.unknown and decision.unknown is not Contact.OFF:
            frontend.note(unknown_runs(name, decision.unknown))
        return answer
    if frontend.can_ask:
        details = ConsentDetails(name, decision, answer.attached)
        if frontend.confirm(Question(QUESTIONS[request.effect].format(name), details)):
            _check_unchanged(request, decision, answer, session, spec)
            return answer
    elif request.delete and decision.consent is Consent.YES:
        return answer  # nothing is known to be lost, and `--delete` says that the disk goes
    raise _refused(request, decision, answer, place, simulated=session.cloud.simulated)


def _check_unchanged(
    request: Request, decision: Decision, answer: MachineAnswer, session: CloudSession, spec: Spec | None
) -> None:
    """Raise Problem if the machine was replaced, or has more runs at risk, since the user was asked."""
    name, place = request.name, session.machine_id(request.name, request.group)
    known, simulated = _known_runs(request, session.settings), session.cloud.simulated
    again = ask_machine(session, name, request.group, spec)
    now = decide(request.effect, name, known, again, simulated=simulated, resource_id=str(place))
    asked = {run.id for run in decision.runs}
    found = [f"on `{name}`: {run}" for run in now.runs if run.id not in asked]
    if again.vm and again.vm != answer.vm:
        found.insert(0, f"`{name}` is another VM than before")
    if found:
        note = f"{'; '.join(found)}; nothing was changed{_still_billed(request, again)}"
        summary, help_line = "machine changed during the question", f"run `{request.command}` again"
        raise problem(Code.NEEDS_CONSENT, summary, note, help_line, exit_code=_exit_code(request, again))


def confirm_creation(plan: Plan, settings: Settings, frontend: Frontend, *, simulated: bool) -> None:
    """Ask once before a new machine is billed. Without a terminal, with `--yes` or in the sandbox, do not ask."""
    if not creates_machine(plan) or simulated or settings.yes or not frontend.can_ask:
        return
    price = plan.price.per_hour
    cost = "; its price is not known" if price is None else f" for ${price:.3f} an hour while it is on"
    if frontend.confirm(Question(f"{plan.name} will be created{cost}. Continue?")):
        return
    note = f"`{plan.name}` was not confirmed; nothing was created"
    raise problem(
        Code.NEEDS_CONSENT, "this would create a machine", note, "run it again, or give `--yes`", exit_code=Exit.USAGE
    )


def _is_given(request: Request, settings: Settings) -> bool:
    """Return whether the options alone are consent, so that the machine need not be asked."""
    return settings.yes and (request.delete or request.effect is not Effect.DELETE_DISK)


def _known_runs(request: Request, settings: Settings) -> list[Run]:
    try:
        return History(settings.state).list()
    except Problem:
        if request.effect is Effect.POWER_OFF:
            return []  # a broken file must not keep a machine billed
        raise


def _refused(
    request: Request, decision: Decision, answer: MachineAnswer, place: MachineId, *, simulated: bool
) -> Problem:
    return problem(
        Code.NEEDS_CONSENT,
        _summary(decision),
        f"{_note(request.name, decision)}; nothing was changed{_still_billed(request, answer)}",
        _help(request, decision, kept_disk_help(place) if answer.is_deleted else "", simulated=simulated),
        exit_code=_exit_code(request, answer),
    )


def _still_billed(request: Request, answer: MachineAnswer) -> str:
    return "; it is billed until it is off, or until its lease ends" if request.is_down and answer.is_billed else ""


def _exit_code(request: Request, answer: MachineAnswer) -> Exit:
    return Exit.LEFT_BEHIND if request.is_down and answer.is_billed else Exit.USAGE


def _summary(decision: Decision) -> str:
    if decision.effect is Effect.GO_OFF_SOONER:
        return "this would end the machine sooner, while jobs run"
    if decision.effect is not Effect.DELETE_DISK:
        return "this would stop running jobs" if decision.runs else "this may stop running jobs"
    if decision.runs:
        return "this would lose outputs"
    return "this may lose outputs" if decision.unknown else "this would lose what is on the disk"


def _note(name: str, decision: Decision) -> str:
    said = [f"on `{name}`: {', '.join(map(str, decision.runs))}"] if decision.runs else []
    if decision.unknown:
        said.append(unknown_runs(name, decision.unknown))
    return "; ".join(said) or f"the change deletes the disk of `{name}`"


def _help(request: Request, decision: Decision, kept_disk: str = "", *, simulated: bool) -> str:
    options = " --delete --yes" if decision.consent is Consent.DELETE else " --yes"
    command = f"`{request.command}{options}{' --sandbox' if simulated else ''}`"
    if request.effect is not Effect.DELETE_DISK:
        return f"wait for the jobs, or stop them: {command}; outputs stay on the disk"
    if kept_disk:
        return f"{kept_disk}; {command} deletes it"
    if decision.runs:
        own = next((run for run in decision.runs if run.is_own and run.is_unfetched), None)
        elsewhere = "`gpuinfra outputs` fetches them in the workspace that sent them"
        fetch = f"`gpuinfra outputs {own.id}` fetches them" if own else elsewhere
        return f"{fetch}; {command} deletes them"
    if decision.unknown and request.is_failed:
        start = f"az vm start --resource-group {request.group} --name {request.name}"
        # Pasted as it is, it would go to the real Azure.
        cloud = ", with `az` set up for the sandbox," if simulated else ""
        return f"{command} deletes the disk and creates the machine again; `{start}`{cloud} keeps the disk"
    if decision.unknown is Contact.OFF:
        first = "restore the spec as it was; then " if request.command.startswith("gpuinfra up") else ""
        return f"{first}`gpuinfra up SPEC` starts it, and then it can be asked; {command} deletes the disk unseen"
    return f"{command} deletes the disk"
