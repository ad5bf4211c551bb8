"""Make Azure match a spec: create, change or start a machine, wait until it can run jobs, write its target."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from shlex import quote

from gpuinfra.app.access import (
    CloudSession,
    cloud_errors,
    consent_to_replace,
    is_simulated,
    look_at_vm,
    open_session,
    say_what_exists,
)
from gpuinfra.app.consent import Request, confirm_creation, require_consent
from gpuinfra.app.down import tear_down
from gpuinfra.app.frontend import Frontend, ask_or_refuse
from gpuinfra.app.host_keys import MachineTrust, record_host_key, source_of_up
from gpuinfra.app.ledger_recording import record_power_on
from gpuinfra.app.machine_names import Named, with_known_key
from gpuinfra.app.machine_tasks import ErrorCollector, for_each, say_states
from gpuinfra.app.plan import SurveyedMachine, open_provisioner, survey_all
from gpuinfra.app.sandbox import Sandbox
from gpuinfra.app.settings import Settings
from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem, problem
from gpuinfra.models.consent import Effect, PlanReady, Question, effect_of
from gpuinfra.models.plan import Kind, MachineId, Plan, Ref, parse_machine_id
from gpuinfra.models.spec import Spec
from gpuinfra.models.target import GpuFacts, Target, UpResult, unreached_target
from gpuinfra.parse.spec import LocatedSpec
from gpuinfra.provision.cloud import Cloud
from gpuinfra.provision.errors import CloudError
from gpuinfra.provision.login import FIRST_BOOT, is_created_with, login_seconds
from gpuinfra.provision.observed import Observed
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.plan import CREATION_FAILED, EachGroupOnce
from gpuinfra.provision.power import UNUSABLE
from gpuinfra.provision.preflight import Preflight
from gpuinfra.provision.target import target_from_spec
from gpuinfra.provision.up import UpHooks, UpOutcome
from gpuinfra.provision.waiting import wait_until
from gpuinfra.runner.connection.port import Connection
from gpuinfra.runner.connection.private_keys import identity_of
from gpuinfra.runner.connection.ssh import SshConnection
from gpuinfra.runner.readiness import SSH, NotReady, Opener, wait_for_docker, wait_until_ready
from gpuinfra.workbench.targets import check_files, check_writable_files, find_target, write_target

SSH_SECONDS, GPU_SECONDS, DOCKER_SECONDS = 600.0, 300.0, 300.0
REMOTEDOCKER = "remotedocker"
WITHOUT_DOCKER = "set `type: remote` under `target` in the spec, and jobs run in the machine's own Python"
OFF_SECONDS = 1200.0
ENDING_SECONDS = 60.0
ENDED = {
    "gone": "nothing is billed",
    "deallocated": "only its disk and address are billed",
    "deallocating": "it is billed until Azure has switched it off",
}
LOOK_SECONDS = 10.0


def make_ready(session: CloudSession, target: Target, spec: Spec, frontend: Frontend, login: Login) -> GpuFacts:
    """Wait until the machine is usable. If `up` switched it on and it is not usable, switch it off again."""
    deadline = session.cloud.deadline
    ssh, gpu = min(SSH_SECONDS, deadline.left), min(GPU_SECONDS, deadline.left)
    try:
        opener = watched_opener(session.cloud, spec)
        with cloud_errors(f"waiting for {spec.name}"):
            facts = wait_until_ready(
                target,
                ssh_seconds=ssh,
                gpu_seconds=gpu,
                login_seconds=login.seconds(session.cloud.now()),
                progress=frontend,
                pause=session.cloud.interrupt.sleep,  # which also ends in a thread that no signal reaches
                opener=opener,
            )
            if target.type == REMOTEDOCKER:
                _wait_for_docker(session, target, frontend, opener)
    except NotReady as error:
        with cloud_errors(f"waiting for {spec.name}"):
            session.cloud.interrupt.check(spec.name)  # otherwise the interrupt would reach the teardown below
        if ended := _ended_meanwhile(session, spec):
            raise ended from error
        found = Diagnostic(Code.NOT_READY, "machine is not ready", note=error.reason, help=error.help)
        if error.is_login_refused and login.is_of_another_key:
            found = _not_accepted(target, spec, login.public_key, error)
        if login.plan.switches_on:
            raise _not_ready(session, spec, found, frontend) from error
        raise _left_running(spec, found) from error
    return facts


@dataclass(frozen=True)
class Login:
    """What decides whether and when the machine accepts this computer's key."""

    plan: Plan
    observed: Observed
    public_key: str

    @property
    def _machine(self) -> ObservedResource | None:
        return self.observed.part(Kind.VM)

    def seconds(self, now: datetime) -> float:
        """Return for how long to retry a refused login: the machine may not have our key yet."""
        machine = self._machine
        return login_seconds(self.plan, machine, self.public_key, now) if machine else FIRST_BOOT

    @property
    def is_of_another_key(self) -> bool:
        """Whether the machine was created with another key, so that a refused login stays refused."""
        machine = self._machine
        return machine is not None and not is_created_with(machine, self.public_key)


def _wait_for_docker(session: CloudSession, target: Target, frontend: Frontend, opener: Opener) -> None:
    seconds = min(DOCKER_SECONDS, session.cloud.deadline.left)
    simulated = session.cloud.simulated
    check = wait_for_docker(target, seconds=seconds, progress=frontend, opener=opener, simulated=simulated)
    if not check.passed:
        help_line = Sandbox().docker_help or "start Docker here"
        frontend.note(f"jobs in containers cannot run on {target.machine}: {help_line}, or {WITHOUT_DOCKER}")


def watched_opener(cloud: Cloud, spec: Spec) -> Callable[[Target, float], Connection]:
    """Return a function that opens SSH connections and checks every few seconds that Azure shows the machine as on."""
    next_look = time.monotonic() + LOOK_SECONDS

    def open_connection(target: Target, seconds: float) -> Connection:
        nonlocal next_look
        cloud.interrupt.check(spec.name)
        if time.monotonic() >= next_look:
            next_look = time.monotonic() + LOOK_SECONDS
            try:
                machine = look_at_vm(cloud, spec)
            except CloudError:
                return SshConnection.open(target, seconds)  # without an answer from Azure, the state is unknown
            if machine is None or machine.power in UNUSABLE:
                state = machine.power if machine else "gone"
                reason = f"`{spec.name}` is {state}: it was deallocated while gpuinfra waited"
                raise NotReady(SSH, reason, "`gpuinfra up SPEC` starts it again")
        return SshConnection.open(target, seconds)

    return open_connection


def _ended_meanwhile(session: CloudSession, spec: Spec) -> Problem | None:
    """Return the Problem if another command stopped the machine while this one waited for it, else None."""
    cloud = session.cloud

    def power() -> str:
        machine = look_at_vm(cloud, spec)
        return machine.power if machine else "gone"

    try:
        wait_until(lambda: power() != "deallocating", cloud.grant(ENDING_SECONDS), cloud.interrupt.sleep)
        state = power()
    except CloudError:
        return None
    if state not in ENDED:
        return None
    note = f"`{spec.name}` is {state}: it was ended while `up` waited for it; {ENDED[state]}"
    return problem(Code.NOT_READY, "machine was ended", note, "`gpuinfra up SPEC` starts it again")


def _not_accepted(target: Target, spec: Spec, public_key: str, error: NotReady) -> Diagnostic:
    """Describe a refused login to a machine that was created on another computer or by another user."""
    add = f"echo {quote(public_key)} | gpuinfra ssh {spec.name} -- tee -a .ssh/authorized_keys"
    help_line = f"run this where the machine was created: `{add}`"
    if not target.simulated:
        group, user = quote(spec.group_name), quote(target.username)
        words = f"az vm user update -g {group} -n {spec.name} -u {user} --ssh-key-value {quote(public_key)}"
        help_line = f"{help_line}; or with write access in Azure: `{words}`"
    return Diagnostic(
        Code.LOGIN_REFUSED,
        "the machine does not accept this computer's SSH key",
        note=f"`{spec.name}` was created with another SSH key: {error.reason}",
        help=help_line,
    )


def _left_running(spec: Spec, found: Diagnostic) -> Problem:
    """Return the Problem for a machine that was on before. It stays on, because another user may be using it."""
    note = f"{found.note}; it was on before, and was left on: it is billed until `gpuinfra down {spec.name}`"
    return Problem(replace(found, note=note))


def _not_ready(session: CloudSession, spec: Spec, found: Diagnostic, frontend: Frontend) -> Problem:
    deadline = session.cloud.grant(OFF_SECONDS)
    named = Named(spec.name, spec.group_name, spec.subscription)
    try:
        receipt = tear_down(session, named, frontend, deadline, delete=False, cause="gpuinfra up: it was not ready")
        is_off = receipt.is_proof
    except CloudError:
        is_off = False
    state = "it was deallocated, so nothing is billed but its disk and address"
    bad = f"and it could not be deallocated: it may be billed; run `gpuinfra down {spec.name}`"
    return Problem(
        replace(
            found,
            note=f"{found.note}; {state if is_off else bad}",
            help=found.help or f"try again, or end it: `gpuinfra down {spec.name} --delete`",
        ),
        exit_code=Exit.FAILED if is_off else Exit.LEFT_BEHIND,
    )


@dataclass(frozen=True)
class UpOptions:
    """The options of `gpuinfra up`."""

    seconds: float
    """For each machine."""
    adopt: bool = False
    delete: bool = False
    host_key: str | None = None


def up_all(
    settings: Settings, specs: Sequence[LocatedSpec], options: UpOptions, frontend: Frontend
) -> tuple[list[UpResult], ErrorCollector, BaseException | None]:
    """Make Azure match all specs at the same time. Raise the third result, if any, after the others were shown.

    Before any machine is created, the quota is shared among all of them, as `plan` does it.
    """

    def task(
        surveyed: tuple[LocatedSpec, SurveyedMachine | Problem | None], settings: Settings, frontend: Frontend
    ) -> UpResult:
        located, machine = surveyed
        if isinstance(machine, Problem) and machine.diagnostics[0].code is Code.NO_CANDIDATE:
            raise machine
        result = up(
            settings,
            located,
            options.seconds,
            frontend,
            adopt=options.adopt,
            delete=options.delete,
            host_key=options.host_key,
            asks=True,
            checked=machine.checked if isinstance(machine, SurveyedMachine) else None,
            shown=each_group_once,
        )
        return replace(result, plan=each_group_once(result.plan))

    errors, each_group_once = ErrorCollector(), EachGroupOnce()
    surveyed: Sequence[tuple[LocatedSpec, SurveyedMachine | Problem | None]] = [(each, None) for each in specs]
    if len(specs) > 1:
        surveyed, ended_by = survey_all(settings, specs, frontend)
        if ended_by:
            return [], errors, ended_by
    done = for_each(
        surveyed,
        task,
        settings,
        frontend,
        errors=errors,
        name_of=lambda each: each[0].spec.name,
        span_of=lambda each: each[0].span,
    )
    if isinstance(done.ended_by, KeyboardInterrupt):
        described = [each.spec for each in specs]
        say_states(settings, [Named(each.name, each.group_name, each.subscription) for each in described], frontend)
    return done.results, errors, done.ended_by


def up(  # noqa: PLR0913 each is an option
    settings: Settings,
    located: LocatedSpec,
    seconds: float,
    frontend: Frontend,
    *,
    adopt: bool = False,
    delete: bool = False,
    host_key: str | None = None,
    asks: bool = False,
    before_change: Callable[[Plan, str], None] | None = None,
    checked: Preflight | None = None,
    shown: Callable[[Plan], Plan] = lambda plan: plan,
) -> UpResult:
    """Make Azure match one spec. If the machine is to be on, wait until it is usable, and write its target.

    A machine whose host key differs from the known one is not used, unless `host_key` accepts it. A machine that this
    computer does not know needs consent.

    With `asks`, the user is asked before a new machine is created. `before_change` gets the plan, and the host key for
    a new machine, after all questions and before Azure is changed. `checked` is the result of an earlier preflight.
    `shown` returns what to show of the plan.
    """
    spec, workspace = located.spec, settings.folder
    check_files(workspace, spec.target_name)
    consent_to_replace(settings, workspace, spec.target_name, frontend, simulated=is_simulated(settings))
    if spec.power == "running":
        check_writable_files(workspace, spec.target_name)
    session = open_session(settings, spec.subscription, seconds, frontend, writes=True)
    _consent_to_repoint(settings, session, spec, frontend)
    work = open_provisioner(session, located, frontend, writes=True)
    if checked:
        work.limit(checked)
    simulated = session.cloud.simulated
    source = source_of_up(session.cloud.subscription, spec.group_name)
    named = unreached_target(spec.target_name, spec.name, work.host_key.public, simulated=simulated)
    trust = MachineTrust(settings, named, source, frontend, accepted=host_key)
    hooks = UpHooks(
        adopt=consent_to_adopt(settings, spec, frontend) if adopt else None,
        known_host_key=known_host_key(settings, spec) if adopt else "",
        check_found=trust.check_found,
        before_creation=trust.record_pending,
    )

    def consent(plan: Plan) -> None:
        _ask(shown(plan), session, spec, frontend, delete=delete, creation=asks)
        if before_change:
            before_change(plan, work.host_key.public)

    try:
        with cloud_errors(f"bringing up {spec.name}"):
            outcome = work.up(consent, hooks)
        record_power_on(settings, outcome, session, frontend)
        return _until_usable(settings, session, spec, outcome, trust, work.public_key, frontend)
    except KeyboardInterrupt:
        say_what_exists(session, spec.name, spec.group_name, frontend)
        raise


def _until_usable(
    settings: Settings,
    session: CloudSession,
    spec: Spec,
    outcome: UpOutcome,
    trust: MachineTrust,
    public_key: str,
    frontend: Frontend,
) -> UpResult:
    """Wait for the machine if it is to be on, and write its target."""
    simulated = session.cloud.simulated
    if outcome.observed is None or spec.power != "running":
        return UpResult(outcome.plan, None, None, (), outcome.lease_until, simulated=simulated)
    port, identity = session.cloud.ssh_port, identity_of(spec.admin.key(), settings.workspace)
    with _on_meanwhile(spec):
        target = target_from_spec(outcome.observed, spec, ssh_port=port, identity=identity, simulated=simulated)
        target = with_known_key(settings.workspace, target)
    trust.check_target(target)  # not as LeftOn: a machine of someone else is not ours to stop
    record_host_key(target, trust.source, frontend)
    login = Login(outcome.plan, outcome.observed, public_key)
    gpu = make_ready(session, target, spec, frontend, login)
    with _on_meanwhile(spec):
        files = _write_target(settings, target)
    agent = outcome.agent.word if outcome.agent else None
    return UpResult(outcome.plan, target, gpu, files, outcome.lease_until, agent, simulated=simulated)


class LeftOn(Problem):
    """A Problem that occurs while the machine is on."""


@contextmanager
def _on_meanwhile(spec: Spec) -> Iterator[None]:
    """Add to a Problem in this block that the machine is on, and raise it as LeftOn."""
    try:
        yield
    except Problem as problem:
        if problem.diagnostics[0].code is Code.MACHINE_IS_OFF:
            # It was on just now, and a machine that is only stopped is billed.
            raise LeftOn(*problem.diagnostics, exit_code=problem.exit_code) from problem
        on = f"the machine is on, and billed until `gpuinfra down {spec.name}` or the end of its lease"
        found = (replace(each, note=f"{each.note}; {on}" if each.note else on) for each in problem.diagnostics)
        raise LeftOn(*found, exit_code=problem.exit_code) from problem


def _ask(plan: Plan, session: CloudSession, spec: Spec, frontend: Frontend, *, delete: bool, creation: bool) -> None:
    """Show the plan, and ask for consent to what it stops or loses. Raise Problem if the user refuses."""
    frontend.show(PlanReady(plan))
    request = Request(
        plan.name,
        spec.group_name,
        effect_of(plan),
        command="gpuinfra up SPEC",
        delete=delete,
        is_failed=any(CREATION_FAILED in change.differences for change in plan.changes),
    )
    require_consent(request, session, spec, frontend)
    if creation and request.effect is Effect.NONE:
        confirm_creation(plan, session.settings, frontend, simulated=session.cloud.simulated)


def _write_target(settings: Settings, target: Target) -> tuple[str, ...]:
    try:
        return tuple(str(path) for path in write_target(settings.folder, target))
    except OSError as error:
        note = f"its target file cannot be written: {error}"
        raise problem(Code.FILE_UNWRITABLE, "file cannot be written", note) from None


def _consent_to_repoint(settings: Settings, session: CloudSession, spec: Spec, frontend: Frontend) -> None:
    """Ask before pointing a target to another machine while its current machine exists."""
    name = spec.target_name
    before = find_target(settings.folder, name)
    machine = parse_machine_id(before.resource_id) if before else None
    # A machine with the same name in another group is reported separately.
    if machine is None or settings.yes or machine.name.casefold() == spec.name.casefold():
        return
    if not _may_exist(session, machine):
        return
    was = f"leads to the machine `{machine.name}` in group `{machine.group_name}`"
    summary = "this would point a target to another machine"
    note = f"`{name}` {was}, and would lead to `{spec.name}`; nothing was changed"
    help_line = "choose another `target.name` in the spec, or give `--yes`"
    refusal = problem(Code.NEEDS_CONSENT, summary, note, help_line, exit_code=Exit.USAGE)
    ask_or_refuse(settings, frontend, Question(f"Point the target {name} to {spec.name}?", f"it {was}"), refusal)


def _may_exist(session: CloudSession, machine: MachineId) -> bool:
    if machine.subscription.casefold() != session.cloud.subscription.casefold():
        return True
    try:
        return look_at_vm(session.cloud, machine) is not None
    except CloudError:
        return True


def consent_to_adopt(settings: Settings, spec: Spec, frontend: Frontend) -> Callable[[Sequence[Ref]], None]:
    """Return a function that asks before resources get our tags, and raises Problem if the user refuses."""

    def consent(refs: Sequence[Ref]) -> None:
        found = f"in group {spec.group_name}, without tags: {', '.join(str(ref) for ref in refs)}"
        question = Question(f"Is this the machine {spec.name}, made by gpuinfra? Put its tags back?", details=found)
        note = f"in group `{spec.group_name}`, without tags: {', '.join(str(ref) for ref in refs)}; nothing was changed"
        help_line = "if gpuinfra made it for this spec, give `--yes`"
        refusal = problem(Code.NEEDS_CONSENT, "this would adopt a machine", note, help_line, exit_code=Exit.USAGE)
        ask_or_refuse(settings, frontend, question, refusal)

    return consent


def known_host_key(settings: Settings, spec: Spec) -> str:
    """Return the host key in the machine's target file, or an empty string."""
    found = find_target(settings.workspace, spec.target_name)
    return found.host_key if found else ""
