"""Which consent a change to a machine needs, from what is known here and what the machine answers."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from gpuinfra.app import consent
from gpuinfra.app.settings import Settings
from gpuinfra.diagnostics import Code, Exit, Problem
from gpuinfra.models.consent import (
    Consent,
    Contact,
    Decision,
    Effect,
    MachineAnswer,
    MachineRun,
    Question,
    creates_machine,
    decide,
    effect_of,
)
from gpuinfra.models.plan import Action, Change, Difference, Kind, MachineId, Plan, Power, Price, Ref
from gpuinfra.models.run import JobRef, Outputs, Run, RunState
from gpuinfra.views.frontend import TerminalFrontend
from tests.runs import make_run

if TYPE_CHECKING:
    from gpuinfra.app.access import CloudSession

NOW = datetime(2026, 11, 16, 8, 0, tzinfo=UTC)
OWN = make_run("own", created=NOW, machine="my-dsvm", script="train.py", job=JobRef("process", "own"))
FETCHED = replace(OWN, state=RunState.COMPLETED, outputs=Outputs(complete=True))
UNFETCHED = replace(OWN, state=RunState.COMPLETED)
STOPS = (Effect.GO_OFF_SOONER, Effect.RESTART, Effect.POWER_OFF)


def answered(*runs: MachineRun) -> MachineAnswer:
    return MachineAnswer(Contact.ANSWERED, runs)


def there(run: str = "own", *, over: bool = False, outputs: bool = False) -> MachineRun:
    return MachineRun(run, over, outputs)


OFF, SILENT = MachineAnswer(Contact.OFF), MachineAnswer(Contact.SILENT)
REFUSED = MachineAnswer(Contact.REFUSED)
NOTHING = MachineAnswer(Contact.NOTHING_THERE)


def decided(effect: Effect, answer: MachineAnswer, *known: Run) -> Decision:
    return decide(effect, "My-DSVM", known, answer, simulated=False)


def ids(decision: Decision) -> list[str]:
    return [run.id for run in decision.runs]


@pytest.mark.parametrize("effect", STOPS)
def test_stopping_a_running_job_needs_yes(effect: Effect) -> None:
    decision = decided(effect, answered(there()), OWN)
    assert (decision.consent, ids(decision)) == (Consent.YES, ["own"])
    assert (decision.runs[0].script, decision.runs[0].state) == ("train.py", "running")


@pytest.mark.parametrize("effect", STOPS)
def test_stopping_a_job_of_another_workspace_needs_yes(effect: Effect) -> None:
    decision = decided(effect, answered(there("other")))
    assert (decision.consent, ids(decision), decision.runs[0].is_own) == (Consent.YES, ["other"], False)


@pytest.mark.parametrize("effect", STOPS)
@pytest.mark.parametrize("answer", [answered(), answered(there(over=True, outputs=True)), OFF])
def test_stopping_without_a_running_job_needs_no_consent(effect: Effect, answer: MachineAnswer) -> None:
    """The machine's answer overrides the history, and a deallocated machine runs nothing."""
    assert decided(effect, answer, OWN) == Decision(effect, Consent.NONE)


def test_machine_that_does_not_answer_is_switched_off_but_not_restarted() -> None:
    assert decided(Effect.POWER_OFF, SILENT) == Decision(Effect.POWER_OFF, Consent.NONE, (), Contact.SILENT)
    assert decided(Effect.RESTART, SILENT) == Decision(Effect.RESTART, Consent.YES, (), Contact.SILENT)


@pytest.mark.parametrize("effect", STOPS)
def test_locally_known_job_counts_when_the_machine_does_not_answer(effect: Effect) -> None:
    assert decided(effect, SILENT, OWN).consent is Consent.YES
    assert ids(decided(effect, SILENT, OWN)) == ["own"]
    assert ids(decided(effect, SILENT, UNFETCHED)) == []


@pytest.mark.parametrize(
    ("answer", "known"),
    [
        (answered(there()), OWN),
        (answered(there(over=True, outputs=True)), UNFETCHED),
        (answered(there("other")), FETCHED),
        (answered(there("other", over=True, outputs=True)), FETCHED),
        (OFF, UNFETCHED),
        (SILENT, OWN),
    ],
)
def test_losing_outputs_needs_delete(answer: MachineAnswer, known: Run) -> None:
    decision = decided(Effect.DELETE_DISK, answer, known)
    assert decision.consent is Consent.DELETE
    assert len(decision.runs) == 1


@pytest.mark.parametrize("answer", [OFF, SILENT])
def test_disk_of_a_machine_that_cannot_be_asked_needs_delete(answer: MachineAnswer) -> None:
    assert decided(Effect.DELETE_DISK, answer) == Decision(Effect.DELETE_DISK, Consent.DELETE, (), answer.contact)


def test_disk_without_outputs_needs_yes() -> None:
    for answer in (answered(), answered(there(over=True)), answered(there("other", over=True))):
        assert decided(Effect.DELETE_DISK, answer, FETCHED) == Decision(Effect.DELETE_DISK, Consent.YES)


@pytest.mark.parametrize("effect", list(Effect))
def test_missing_machine_needs_no_consent(effect: Effect) -> None:
    assert decided(effect, NOTHING, OWN).consent is Consent.NONE


def test_runs_of_other_machines_do_not_count() -> None:
    elsewhere, simulated = replace(UNFETCHED, machine="other"), replace(UNFETCHED, simulated=True)
    assert decided(Effect.DELETE_DISK, answered(), elsewhere, simulated).consent is Consent.YES


def test_run_that_never_began_has_no_outputs() -> None:
    assert decided(Effect.DELETE_DISK, answered(), replace(OWN, job=None)).consent is Consent.YES


@pytest.mark.parametrize("effect", STOPS)
def test_run_that_was_lost_before_it_began_is_not_running(effect: Effect) -> None:
    assert decided(effect, answered(there()), replace(OWN, state=RunState.LOST, job=None)).consent is Consent.NONE


# Plans


def plan(*changes: Change) -> Plan:
    return Plan("my-dsvm", "s", "g", None, changes)


def change(action: Action, kind: Kind = Kind.VM, **more: Any) -> Change:
    return Change(action, Ref(kind, "g", "my-dsvm"), **more)


RESIZE = (Difference("size", "a", "b", needs_off=True),)


@pytest.mark.parametrize(
    ("changes", "effect"),
    [
        ([], Effect.NONE),
        ([change(Action.ADD)], Effect.NONE),
        ([change(Action.CHANGE)], Effect.NONE),
        ([change(Action.CHANGE, differences=RESIZE)], Effect.RESTART),
        ([change(Action.CHANGE, Kind.DISK, differences=RESIZE)], Effect.RESTART),
        ([change(Action.CHANGE, differences=RESIZE, power=Power.START)], Effect.NONE),
        ([change(Action.CHANGE, power=Power.DEALLOCATE)], Effect.POWER_OFF),
        ([change(Action.REPLACE, loses=True)], Effect.DELETE_DISK),
        ([change(Action.REPLACE)], Effect.NONE),
        ([change(Action.DESTROY, Kind.DISK, loses=True), change(Action.ADD)], Effect.DELETE_DISK),
    ],
)
def test_plan_is_mapped_to_its_effect(changes: list[Change], effect: Effect) -> None:
    assert effect_of(plan(*changes)) is effect


def test_only_a_new_machine_counts_as_created() -> None:
    assert creates_machine(plan(change(Action.ADD)))
    assert not creates_machine(plan(change(Action.ADD, Kind.DISK), change(Action.CHANGE, power=Power.START)))
    assert not creates_machine(plan(change(Action.REPLACE, loses=True)))


# Creating


class Questions:
    """A terminal that answers every question the same way."""

    def __init__(self, patch: pytest.MonkeyPatch, *, answer: bool) -> None:
        self.asked: list[str] = []
        patch.setattr(TerminalFrontend, "can_ask", True)
        patch.setattr("typer.confirm", self._confirm)
        self._answer = answer

    def _confirm(self, text: str, **_: Any) -> bool:
        self.asked.append(text)
        return self._answer


def settings(*, yes: bool = False) -> Settings:
    return Settings(json=False, yes=yes, verbose=False, cloud="azure", workspace=Path(), correlation_id="")


NEW = replace(plan(change(Action.ADD)), price=Price(0.631))


def test_terminal_is_asked_once_before_a_machine_is_created(monkeypatch: pytest.MonkeyPatch) -> None:
    questions = Questions(monkeypatch, answer=True)
    consent.confirm_creation(NEW, settings(), TerminalFrontend(), simulated=False)
    assert questions.asked == ["my-dsvm will be created for $0.631 an hour while it is on. Continue?"]


def test_declined_creation_creates_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    Questions(monkeypatch, answer=False)
    with pytest.raises(Problem) as caught:
        consent.confirm_creation(NEW, settings(), TerminalFrontend(), simulated=False)
    assert caught.value.exit_code is Exit.USAGE
    assert "nothing was created" in (caught.value.diagnostics[0].note or "")


@pytest.mark.parametrize(
    ("made", "yes", "simulated"),
    [(NEW, True, False), (NEW, False, True), (plan(change(Action.CHANGE, power=Power.START)), False, False)],
    ids=["yes", "sandbox", "start"],
)
def test_creation_needs_no_question_with_yes_or_in_the_sandbox(
    monkeypatch: pytest.MonkeyPatch, made: Plan, yes: bool, simulated: bool
) -> None:
    questions = Questions(monkeypatch, answer=False)
    consent.confirm_creation(made, settings(yes=yes), TerminalFrontend(), simulated=simulated)
    assert questions.asked == []


def test_creation_continues_without_a_question_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    questions = Questions(monkeypatch, answer=False)
    monkeypatch.setattr(TerminalFrontend, "can_ask", False)
    consent.confirm_creation(NEW, settings(), TerminalFrontend(), simulated=False)
    assert questions.asked == []


def test_run_that_the_machine_reports_counts_whatever_machine_this_workspace_recorded() -> None:
    for run in (replace(OWN, machine=""), replace(OWN, machine="other"), replace(OWN, state=RunState.LOST)):
        decision = decided(Effect.POWER_OFF, answered(there()), run)
        assert (decision.consent, ids(decision), decision.runs[0].is_own) == (Consent.YES, ["own"], True)


def test_run_of_a_machine_of_this_name_in_another_group_does_not_count() -> None:
    here, there_id = MachineId("s", "here", "my-dsvm"), MachineId("s", "there", "my-dsvm")
    run = replace(UNFETCHED, resource_id=str(there_id))
    for machine, expected in ((here, []), (there_id, ["own"])):
        found = decide(Effect.DELETE_DISK, "my-dsvm", [run], answered(), simulated=False, resource_id=str(machine))
        assert ids(found) == expected


def test_password_prompt_shows_no_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts: list[str] = []

    def prompt(text: str, **_: Any) -> str:
        prompts.append(text)
        return "secret"

    monkeypatch.setattr("typer.prompt", prompt)
    assert TerminalFrontend().ask_password("Password of me\x9b2K\x1b[2J at lab") == "secret"
    assert not {"\x9b", "\x1b"} & set(prompts[0])


def test_question_shows_no_control_characters_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def confirm(text: str, **_: Any) -> bool:
        asked.append(text)
        return True

    monkeypatch.setattr("typer.confirm", confirm)
    assert TerminalFrontend().confirm(Question("Delete 1 run\x1b]52;c;Z\x07 on vm?\nSure?"))
    assert "\x1b" not in asked[0]
    assert asked[0].endswith("on vm?\nSure?")


def test_help_for_a_changed_spec_names_the_step_before_up() -> None:
    decision = decide(Effect.DELETE_DISK, "my-dsvm", [], MachineAnswer(Contact.OFF), simulated=False)
    request = consent.Request("my-dsvm", "g", Effect.DELETE_DISK, command="gpuinfra up SPEC")
    assert consent._help(request, decision, simulated=False).startswith("restore the spec as it was; then `gpuinfra up")


def test_outputs_of_a_run_on_an_earlier_vm_of_this_name_are_not_at_risk() -> None:
    earlier = replace(UNFETCHED, vm_id="A")
    for vm_id, expected in (("b", []), ("a", ["own"]), ("", ["own"])):
        answer = replace(answered(), vm_id=vm_id)
        assert ids(decided(Effect.DELETE_DISK, answer, earlier)) == expected
        assert ids(decided(Effect.DELETE_DISK, replace(answer, contact=Contact.SILENT), earlier)) == ["own"]
    assert ids(decided(Effect.DELETE_DISK, replace(answered(), vm_id="b"), UNFETCHED)) == ["own"]
    known = replace(answered(there(over=True, outputs=True)), vm_id="b")
    assert ids(decided(Effect.DELETE_DISK, known, earlier)) == ["own"]


MADE = MachineAnswer(Contact.ANSWERED, vm="first")
REPLACED = replace(MADE, vm="second")
GONE = MachineAnswer(Contact.NOTHING_THERE, is_billed=False)


def run_down(
    monkeypatch: pytest.MonkeyPatch, folder: Path, *answers: MachineAnswer, delete: bool = False, yes: bool = False
) -> None:
    """Ask for the consent to `down`. The machine gives these answers, before and after the question."""
    given = iter(answers)
    monkeypatch.setattr("gpuinfra.app.consent.ask_machine", lambda *_, **__: next(given))
    session = SimpleNamespace(
        settings=replace(settings(yes=yes), workspace=folder),
        cloud=SimpleNamespace(simulated=False),
        machine_id=lambda name, group: MachineId("s", group, name),
    )
    effect = Effect.DELETE_DISK if delete else Effect.POWER_OFF
    request = consent.Request("my-dsvm", "g", effect, command="gpuinfra down my-dsvm", delete=delete, is_down=True)
    consent.require_consent(request, cast("CloudSession", session), None, TerminalFrontend())


def agree_to_delete(monkeypatch: pytest.MonkeyPatch, folder: Path, *answers: MachineAnswer) -> None:
    Questions(monkeypatch, answer=True)
    run_down(monkeypatch, folder, *answers, delete=True)


@pytest.mark.parametrize("before", [MADE, replace(OFF, is_deleted=True)], ids=["vm", "disk only"])
def test_vm_that_was_created_during_the_question_is_not_deleted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, before: MachineAnswer
) -> None:
    with pytest.raises(Problem) as caught:
        agree_to_delete(monkeypatch, tmp_path, before, REPLACED)
    (found,) = caught.value.diagnostics
    assert (found.code, caught.value.exit_code) == (Code.NEEDS_CONSENT, Exit.LEFT_BEHIND)
    assert "another VM" in (found.note or "")


def test_run_that_began_during_the_question_is_not_lost(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(Problem) as caught:
        agree_to_delete(monkeypatch, tmp_path, MADE, replace(MADE, runs=(there("new"),)))
    assert "new (running" in (caught.value.diagnostics[0].note or "")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (MADE, MADE),
        (MADE, GONE),
        (MADE, replace(SILENT, vm="first")),
        (replace(MADE, runs=(there("old"),)), replace(MADE, runs=(there("old", over=True, outputs=True),))),
    ],
    ids=["same", "deleted", "silent", "ended"],
)
def test_consent_holds_if_nothing_was_added_during_the_question(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, before: MachineAnswer, after: MachineAnswer
) -> None:
    agree_to_delete(monkeypatch, tmp_path, before, after)


def test_terminal_is_asked_before_a_machine_that_refuses_the_login_is_switched_off(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may belong to another user, whose jobs cannot be seen."""
    questions = Questions(monkeypatch, answer=False)
    with pytest.raises(Problem) as caught:
        run_down(monkeypatch, tmp_path, REFUSED)
    assert caught.value.exit_code is Exit.LEFT_BEHIND
    assert questions.asked == ["my-dsvm will be switched off. Continue?"]
    assert "my-dsvm does not accept your SSH key" in capsys.readouterr().err
    Questions(monkeypatch, answer=True)
    run_down(monkeypatch, tmp_path, REFUSED, REFUSED)


def test_machine_that_does_not_answer_is_switched_off_without_a_question(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    questions = Questions(monkeypatch, answer=False)
    run_down(monkeypatch, tmp_path, SILENT)
    run_down(monkeypatch, tmp_path, REFUSED, yes=True)
    monkeypatch.setattr(TerminalFrontend, "can_ask", False)
    run_down(monkeypatch, tmp_path, REFUSED)
    assert questions.asked == []


def test_machine_that_refuses_the_login_may_hold_outputs() -> None:
    decision = decided(Effect.DELETE_DISK, REFUSED, UNFETCHED)
    assert (decision.consent, ids(decision), decision.unknown) == (Consent.DELETE, ["own"], Contact.REFUSED)
    assert decided(Effect.RESTART, REFUSED).consent is Consent.YES
    assert ids(decided(Effect.POWER_OFF, REFUSED, OWN)) == ["own"]
