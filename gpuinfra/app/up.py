"""Make Azure match a spec: create, change or start a machine, wait until it is usable, write its target."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

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
from gpuinfra.app.frontend import Frontend, ask_or_refuse
from gpuinfra.app.host_keys import MachineTrust, record_host_key, source_of_up
from gpuinfra.app.ledger_recording import record_power_on
from gpuinfra.app.machine_names import Named, with_known_key
from gpuinfra.app.machine_readiness import Login, make_ready
from gpuinfra.app.machine_tasks import ErrorCollector, for_each, say_states
from gpuinfra.app.plan import open_provisioner
from gpuinfra.app.settings import Settings
from gpuinfra.diagnostics import Code, Exit, Problem, problem
from gpuinfra.models.consent import Effect, effect_of
from gpuinfra.models.events import PlanReady, Question
from gpuinfra.models.plan import Plan
from gpuinfra.models.resource import MachineId, Ref, parse_machine_id
from gpuinfra.models.results import UpResult
from gpuinfra.models.spec import Spec
from gpuinfra.models.target import Target, unreached_target
from gpuinfra.parse.spec import LocatedSpec
from gpuinfra.provision.errors import CloudError
from gpuinfra.provision.plan import CREATION_FAILED
from gpuinfra.provision.target import target_from_spec
from gpuinfra.provision.up import UpHooks, UpOutcome
from gpuinfra.runner.connection.private_keys import identity_of
from gpuinfra.workbench.targets import check_files, check_writable_files, find_target, write_target


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
    spec, workspace = located.spec, settings.folder
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
    hooks = UpHooks(
        adopt=consent_to_adopt(settings, spec, frontend) if adopt else None,
        known_host_key=known_host_key(settings, spec) if adopt else "",
        check_found=trust.check_found,
        before_creation=trust.record_pending,
    )

    def consent(plan: Plan) -> None:
        _ask(plan, session, spec, frontend, delete=delete, creation=asks)
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
