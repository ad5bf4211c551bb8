"""Obtain consent to a change that stops runs or loses outputs, from options or from the terminal."""

from __future__ import annotations

from dataclasses import dataclass

from gpuinfra.app.access import CloudSession
from gpuinfra.app.frontend import Frontend
from gpuinfra.app.remote_runs import ask_machine
from gpuinfra.app.settings import Settings
from gpuinfra.app.settlement import kept_disk_help
from gpuinfra.diagnostics import Code, Exit, Problem, problem
from gpuinfra.models.consent import (
    Consent,
    Contact,
    Decision,
    Effect,
    MachineAnswer,
    creates_machine,
    decide,
    unknown_runs,
)
from gpuinfra.models.events import ConsentDetails, Question
from gpuinfra.models.plan import Plan
from gpuinfra.models.resource import MachineId
from gpuinfra.models.run import Run
from gpuinfra.models.spec import Spec
from gpuinfra.store.history import History

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


def require_consent(request: Request, session: CloudSession, spec: Spec | None, frontend: Frontend) -> None:
    """Return if the change may be made. Raise Problem if it needs consent that was not given."""
    settings, name = session.settings, request.name
    if request.effect is Effect.NONE or _is_given(request, settings):
        return
    answer = ask_machine(session, name, request.group, spec)
    known = _known_runs(request, settings)
    place = session.machine_id(name, request.group)
    decision = decide(request.effect, name, known, answer, simulated=session.cloud.simulated, resource_id=str(place))
    # It may be another user's machine. Without a terminal, a lost key must not keep the user's own one billed.
    asks = decision.unknown is Contact.REFUSED and frontend.can_ask and not settings.yes
    if (decision.consent is Consent.NONE and not asks) or (settings.yes and decision.consent is Consent.YES):
        if decision.unknown and decision.unknown is not Contact.OFF:
            frontend.note(unknown_runs(name, decision.unknown))
        return
    if frontend.can_ask:
        details = ConsentDetails(name, decision, answer.attached)
        if frontend.confirm(Question(QUESTIONS[request.effect].format(name), details)):
            _check_unchanged(request, decision, answer, session, spec)
            return
    elif request.delete and decision.consent is Consent.YES:
        return  # nothing is known to be lost, and `--delete` says that the disk goes
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
        return f"{command} deletes the disk and creates the machine again; `{start}` keeps the disk"
    if decision.unknown is Contact.OFF:
        first = "restore the spec as it was; then " if request.command.startswith("gpuinfra up") else ""
        return f"{first}`gpuinfra up SPEC` starts it, and then it can be asked; {command} deletes the disk unseen"
    return f"{command} deletes the disk"
