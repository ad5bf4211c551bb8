"""Make Azure match a spec: create, change or start a machine, wait until it is usable, write its target."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from shlex import quote
from typing import TYPE_CHECKING

from gpuinfra.app.interruption import say_what_exists
from gpuinfra.app.settings import Settings
from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem
from gpuinfra.models.events import Question

if TYPE_CHECKING:
    from gpuinfra.app.access import CloudSession
    from gpuinfra.app.frontend import Frontend
    from gpuinfra.app.host_keys import MachineTrust
    from gpuinfra.app.machine_tasks import ErrorCollector
    from gpuinfra.models.gpu import GpuFacts
    from gpuinfra.models.plan import Plan
    from gpuinfra.models.resource import MachineId, Ref
    from gpuinfra.models.results import UpResult
    from gpuinfra.models.spec import Spec
    from gpuinfra.models.target import Target
    from gpuinfra.parse.spec import LocatedSpec
    from gpuinfra.provision.observed import Observed
    from gpuinfra.provision.observed_resource import ObservedResource
    from gpuinfra.provision.up import Up
    from gpuinfra.runner.readiness import NotReady, Opener

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
    """Make Azure match all specs at the same time. Raise the third result, if any, after the others were shown."""
    from gpuinfra.app.interruption import say_states
    from gpuinfra.app.machine_names import Named
    from gpuinfra.app.machine_tasks import ErrorCollector, for_each

    def task(located: LocatedSpec, settings: Settings, frontend: Frontend) -> UpResult:
        return up(
            settings,
            located,
            options.seconds,
            frontend,
            adopt=options.adopt,
            delete=options.delete,
            host_key=options.host_key,
            asks=True,
        )

    errors = ErrorCollector()
    done = for_each(specs, task, settings, frontend, errors=errors, name_of=lambda each: each.spec.name)
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
) -> UpResult:
    """Make Azure match one spec. If the machine is to be on, wait until it is usable, and write its target.

    A machine whose host key differs from the known one is not used, unless `host_key` accepts it. A machine that this
    computer does not know needs consent.

    With `asks`, the user is asked before a new machine is created. `before_change` gets the plan, and the host key for
    a new machine, after all questions and before Azure is changed.
    """
    from gpuinfra.app.access import cloud_errors, consent_to_replace, is_simulated, open_session
    from gpuinfra.app.host_keys import MachineTrust, source_of_up
    from gpuinfra.app.ledger_recording import record_power_on
    from gpuinfra.app.plan import open_provisioner
    from gpuinfra.models.target import unreached_target
    from gpuinfra.workbench.targets import check_files, check_writable_files
    from gpuinfra.workspace import find_workspace

    spec, workspace = located.spec, find_workspace(settings.workspace)
    check_files(workspace, spec.target_name)
    consent_to_replace(settings, workspace, spec.target_name, frontend, simulated=is_simulated(settings))
    if spec.power == "running":
        check_writable_files(workspace, spec.target_name)
    session = open_session(settings, spec.subscription, seconds, frontend, writes=True)
    _consent_to_repoint(settings, session, spec, frontend)
    work = open_provisioner(session, located, frontend, writes=True)
    simulated = session.cloud.simulated
    source = source_of_up(session.cloud.subscription, spec.group_name)
    named = unreached_target(spec.target_name, spec.name, work.host_key.public, simulated=simulated)
    trust = MachineTrust(settings, named, source, frontend, accepted=host_key)
    work.check_found, work.before_creation = trust.check_found, trust.record_pending
    if adopt:
        work.adopt = consent_to_adopt(settings, spec, frontend)
        work.known_host_key = known_host_key(settings, spec)

    def consent(plan: Plan) -> None:
        _ask(plan, session, spec, frontend, delete=delete, creation=asks)
        if before_change:
            before_change(plan, work.host_key.public)

    try:
        with cloud_errors(f"bringing up {spec.name}"):
            outcome = work.up(consent)
        record_power_on(settings, outcome, session, frontend)
        return _until_usable(settings, session, spec, outcome, trust, work.public_key, frontend)
    except KeyboardInterrupt:
        say_what_exists(session, spec.name, spec.group_name, frontend)
        raise


def _until_usable(
    settings: Settings,
    session: CloudSession,
    spec: Spec,
    outcome: Up,
    trust: MachineTrust,
    public_key: str,
    frontend: Frontend,
) -> UpResult:
    """Wait for the machine if it is to be on, and write its target."""
    from gpuinfra.app.host_keys import record_host_key
    from gpuinfra.app.machine_names import with_known_key
    from gpuinfra.models.results import UpResult
    from gpuinfra.provision.find import target_from_spec
    from gpuinfra.runner.connection.private_keys import identity_of

    simulated = session.cloud.simulated
    if outcome.observed is None or spec.power != "running":
        return UpResult(outcome.plan, None, None, (), outcome.lease_until, simulated=simulated)
    port, identity = session.cloud.ssh_port, identity_of(spec.admin.key(), settings.workspace)
    with _on_meanwhile(spec):
        target = target_from_spec(outcome.observed, spec, ssh_port=port, identity=identity, simulated=simulated)
        target = with_known_key(settings.workspace, target)
    trust.check_target(target)  # not as LeftOn: a machine of someone else is not ours to stop
    record_host_key(target, trust.source, frontend)
    gpu = _wait_until_ready(session, target, spec, frontend, _Login(outcome.plan, outcome.observed, public_key))
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


@dataclass(frozen=True)
class _Login:
    """What decides whether and when the machine accepts this computer's key."""

    plan: Plan
    observed: Observed
    public_key: str

    @property
    def machine(self) -> ObservedResource | None:
        from gpuinfra.models.resource import Kind

        return self.observed.part(Kind.VM)

    def seconds(self, now: datetime) -> float:
        from gpuinfra.provision.login.acceptance import FIRST_BOOT, login_seconds

        machine = self.machine
        return login_seconds(self.plan, machine, self.public_key, now) if machine else FIRST_BOOT

    @property
    def is_of_another_key(self) -> bool:
        from gpuinfra.provision.login.acceptance import is_created_with

        machine = self.machine
        return machine is not None and not is_created_with(machine, self.public_key)


def _wait_until_ready(session: CloudSession, target: Target, spec: Spec, frontend: Frontend, login: _Login) -> GpuFacts:
    """Wait until the machine is usable. If `up` switched it on and it is not usable, switch it off again."""
    from gpuinfra.app.watched_opener import watched_opener
    from gpuinfra.runner.readiness import NotReady, wait_until_ready

    deadline = session.cloud.deadline
    ssh, gpu = min(SSH_SECONDS, deadline.left), min(GPU_SECONDS, deadline.left)
    try:
        opener = watched_opener(session.cloud, spec)
        facts = wait_until_ready(
            target,
            ssh_seconds=ssh,
            gpu_seconds=gpu,
            login_seconds=login.seconds(session.cloud.now()),
            progress=frontend,
            opener=opener,
        )
        if target.type == REMOTEDOCKER:
            _wait_for_docker(session, target, frontend, opener)
    except NotReady as error:
        if ended := _ended_meanwhile(session, spec):
            raise ended from error
        found = Diagnostic(Code.NOT_READY, "machine is not ready", note=error.reason, help=error.help)
        if error.is_login_refused and login.is_of_another_key:
            found = _not_accepted(target, spec, login.public_key, error)
        if login.plan.switches_on:
            raise _not_ready(session, spec, found, frontend) from error
        raise _left_running(spec, found) from error
    return facts


def _wait_for_docker(session: CloudSession, target: Target, frontend: Frontend, opener: Opener) -> None:
    from gpuinfra.app.sandbox import Sandbox
    from gpuinfra.runner.readiness import wait_for_docker

    seconds = min(DOCKER_SECONDS, session.cloud.deadline.left)
    simulated = session.cloud.simulated
    check = wait_for_docker(target, seconds=seconds, progress=frontend, opener=opener, simulated=simulated)
    if not check.passed:
        help_line = Sandbox().docker_help or "start Docker here"
        frontend.note(f"jobs in containers cannot run on {target.machine}: {help_line}, or {WITHOUT_DOCKER}")


def _ended_meanwhile(session: CloudSession, spec: Spec) -> Problem | None:
    """Return the Problem if another command stopped the machine while this one waited for it, else None."""
    from gpuinfra.models.resource import Kind
    from gpuinfra.provision.errors import CloudError
    from gpuinfra.provision.names import ref_of
    from gpuinfra.provision.waiting.retry import wait_until

    cloud, ref = session.cloud, ref_of(Kind.VM, spec.group_name, spec.name)

    def power() -> str:
        machine = cloud.look(ref)
        return machine.power if machine else "gone"

    try:
        wait_until(lambda: power() != "deallocating", cloud.grant(ENDING_SECONDS), cloud.interrupt.sleep)
        state = power()
    except CloudError:
        return None
    if state not in ENDED:
        return None
    note = f"`{spec.name}` is {state}: it was ended while `up` waited for it; {ENDED[state]}"
    return Problem(
        Diagnostic(Code.NOT_READY, "machine was ended", note=note, help="`gpuinfra up SPEC` starts it again")
    )


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
    from gpuinfra.app.ledger_recording import accounted, note_end
    from gpuinfra.provision.down import Teardown
    from gpuinfra.provision.errors import CloudError

    ending = Teardown(
        name=spec.name,
        group=spec.group_name,
        cloud=session.cloud,
        market=None,
        progress=frontend,
        journal=session.journal(spec.name),
        deadline=session.cloud.grant(OFF_SECONDS),
        cause="gpuinfra up: it was not ready",
    )
    try:
        receipt = accounted(ending.deallocate(), session)
        is_off = note_end(session.settings, receipt, session.cloud.subscription, frontend).is_proof
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


def _ask(plan: Plan, session: CloudSession, spec: Spec, frontend: Frontend, *, delete: bool, creation: bool) -> None:
    """Show the plan, and ask for consent to what it stops or loses. Raise Problem if the user refuses."""
    from gpuinfra.app.consent import Request, confirm_creation, require_consent
    from gpuinfra.models.consent import Effect, effect_of
    from gpuinfra.models.events import PlanReady
    from gpuinfra.provision.plan import CREATION_FAILED

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
    from gpuinfra.workbench.targets import write_target
    from gpuinfra.workspace import find_workspace

    try:
        return tuple(str(path) for path in write_target(find_workspace(settings.workspace), target))
    except OSError as error:
        note = f"its target file cannot be written: {error}"
        raise Problem(Diagnostic(Code.FILE_UNWRITABLE, "file cannot be written", note=note)) from None


def _consent_to_repoint(settings: Settings, session: CloudSession, spec: Spec, frontend: Frontend) -> None:
    """Ask before pointing a target to another machine while its current machine exists."""
    from gpuinfra.models.resource import parse_machine_id
    from gpuinfra.workbench.targets import find_target
    from gpuinfra.workspace import find_workspace

    name = spec.target_name
    before = find_target(find_workspace(settings.workspace), name)
    machine = parse_machine_id(before.resource_id) if before else None
    # A machine with the same name in another group is reported separately.
    if machine is None or settings.yes or machine.name.casefold() == spec.name.casefold():
        return
    if not _may_exist(session, machine):
        return
    was = f"leads to the machine `{machine.name}` in group `{machine.group_name}`"
    if frontend.can_ask and frontend.confirm(Question(f"Point the target {name} to {spec.name}?", f"it {was}")):
        return
    raise Problem(
        Diagnostic(
            Code.NEEDS_CONSENT,
            "this would point a target to another machine",
            note=f"`{name}` {was}, and would lead to `{spec.name}`; nothing was changed",
            help="choose another `target.name` in the spec, or give `--yes`",
        ),
        exit_code=Exit.USAGE,
    )


def _may_exist(session: CloudSession, machine: MachineId) -> bool:
    from gpuinfra.models.resource import Kind
    from gpuinfra.provision.errors import CloudError
    from gpuinfra.provision.names import ref_of

    if machine.subscription.casefold() != session.cloud.subscription.casefold():
        return True
    try:
        return session.cloud.look(ref_of(Kind.VM, machine.group_name, machine.name)) is not None
    except CloudError:
        return True


def consent_to_adopt(settings: Settings, spec: Spec, frontend: Frontend) -> Callable[[Sequence[Ref]], None]:
    """Return a function that asks before resources get our tags, and raises Problem if the user refuses."""

    def consent(refs: Sequence[Ref]) -> None:
        if settings.yes:
            return
        names = ", ".join(str(ref) for ref in refs)
        question = Question(
            f"Is this the machine {spec.name}, made by gpuinfra? Put its tags back?",
            details=f"in group {spec.group_name}, without tags: {names}",
        )
        if frontend.can_ask and frontend.confirm(question):
            return
        raise Problem(
            Diagnostic(
                Code.NEEDS_CONSENT,
                "this would adopt a machine",
                note=f"in group `{spec.group_name}`, without tags: {names}; nothing was changed",
                help="if gpuinfra made it for this spec, give `--yes`",
            ),
            exit_code=Exit.USAGE,
        )

    return consent


def known_host_key(settings: Settings, spec: Spec) -> str:
    """Return the host key in the machine's target file, or an empty string."""
    from gpuinfra.workbench.targets import find_target

    found = find_target(settings.workspace, spec.target_name)
    return found.host_key if found else ""
