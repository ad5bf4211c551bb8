"""Run the jobs of several specs at the same time, each on its own machine: `run` for each, in its own thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from gpuinfra.app.frontend import Frontend
from gpuinfra.app.interrupt_question import MachineEnd, question_about_all
from gpuinfra.app.interruption import TerminalClosedError
from gpuinfra.app.job_request import JobRequest, OnInterrupt, usage
from gpuinfra.app.machine_names import machine_of_spec
from gpuinfra.app.machine_tasks import ErrorCollector, Teardowns, for_each, say_states, with_machine
from gpuinfra.app.plan import SurveyedMachine, survey_all
from gpuinfra.app.run import RunResult, RunWorkflow, prepare_run
from gpuinfra.app.run_interrupts import RunInterrupts
from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem, problem
from gpuinfra.models.run_result import MachineResult
from gpuinfra.provision.plan import EachGroupOnce

if TYPE_CHECKING:
    from gpuinfra.app.settings import Settings
    from gpuinfra.parse.spec import LocatedSpec

logger = logging.getLogger(__name__)

# For the questions about all machines.
START_SECONDS = 1800.0


class RunsFrontend(Frontend, Protocol):
    """The frontend of several runs."""

    def of_machine(self, name: str) -> Frontend:
        """Return the frontend of the run on one machine."""

    def finish(self, result: MachineResult) -> None:
        """Show that the run on one machine has ended."""


@dataclass(frozen=True)
class RunsResult:
    """The results of all runs that have ended, and the exit code of the command."""

    results: list[MachineResult]
    exit_code: Exit
    ended_by: BaseException | None
    """Raise it after the results were shown."""


def run_several(
    settings: Settings,
    specs: Sequence[LocatedSpec],
    errors: ErrorCollector,
    request: JobRequest,
    after_run: str | None,
    on_interrupt: OnInterrupt,
    frontend: RunsFrontend,
) -> RunsResult:
    """Run the job of each spec on its machine, at the same time, and stop each machine as soon as its job has ended.

    Raise Problem with everything that is wrong with any of them, `errors` among it, before a machine is billed.
    """
    workflows = _prepare(settings, specs, errors, request, after_run, on_interrupt, frontend)
    _share_quota(settings, specs, workflows, frontend)
    group = RunGroup(workflows, on_interrupt, frontend)
    done = for_each(
        workflows,
        lambda workflow, *_: group.execute(workflow),
        settings,
        frontend,
        errors=ErrorCollector(),
        name_of=lambda workflow: workflow.spec.name,
        at_once=len(workflows),  # they wait for each other before the first changes Azure
        continues_after=group.handle_interrupt,
    )
    if not group.is_started:
        if done.ended_by:
            raise done.ended_by
        raise group.refusal
    if isinstance(done.ended_by, KeyboardInterrupt):
        group.say_states(settings, done.results)
    interrupted = group.interrupts.decision is not None
    return RunsResult(done.results, exit_code_of(done.results, interrupted=interrupted), done.ended_by)


def exit_code_of(results: Sequence[MachineResult], *, interrupted: bool) -> Exit:
    """Return the exit code for several runs: the most urgent one."""
    if any(each.is_left for each in results):
        return Exit.LEFT_BEHIND
    if interrupted:
        return Exit.INTERRUPTED
    return Exit.FAILED if any(each.exit_code for each in results) else Exit.DONE


def decision_of(
    on_interrupt: OnInterrupt, interrupt: KeyboardInterrupt, *, can_ask: bool, has_jobs: bool
) -> OnInterrupt:
    """Return what Ctrl-C does to all runs; ASK to ask. It is the same as for a single run."""
    if not has_jobs:
        return OnInterrupt.CANCEL  # there is nothing to detach from
    if on_interrupt is not OnInterrupt.ASK:
        return on_interrupt
    if can_ask:
        return OnInterrupt.ASK
    # The user of a closed terminal did not ask to cancel the jobs.
    return OnInterrupt.DETACH if isinstance(interrupt, TerminalClosedError) else OnInterrupt.CANCEL


def _prepare(
    settings: Settings,
    specs: Sequence[LocatedSpec],
    errors: ErrorCollector,
    request: JobRequest,
    after_run: str | None,
    on_interrupt: OnInterrupt,
    frontend: RunsFrontend,
) -> list[RunWorkflow]:
    """Return the workflows. Raise Problem with all errors in specs, project and command line."""
    workflows: list[RunWorkflow] = []
    found: list[tuple[LocatedSpec, Problem]] = []
    targets: dict[str, LocatedSpec] = {}
    for located in specs:
        try:
            own = frontend.of_machine(located.spec.name)
            workflow = prepare_run(settings, located, request, after_run, on_interrupt, own)
            _check_among_others(workflow, targets.setdefault(located.spec.target_name, located))
            workflows.append(workflow)
        except Problem as each:
            found.append((located, each))
    _raise_all(found, len(specs), errors)
    return workflows


def _check_among_others(workflow: RunWorkflow, first: LocatedSpec) -> None:
    """Raise Problem for a run that is possible only without others."""
    if not workflow.job.tracked:
        note = f"`TrackedRun: false` in `{workflow.job.configuration}.runconfig`: no command would show what it printed"
        raise usage("the run would have no log", note, "run it alone, or set `TrackedRun: true`")
    if first.spec.name.casefold() != workflow.spec.name.casefold():
        note = f"`{first.spec.target_name}` is also the target of `{first.spec.name}` in {first.span.file}"
        help_line = "set another `target.name` in one of the specs"
        raise usage("two machines with one target", note, help_line, Code.DUPLICATE_NAME)


def _share_quota(
    settings: Settings, specs: Sequence[LocatedSpec], workflows: Sequence[RunWorkflow], frontend: RunsFrontend
) -> None:
    """Share the quota among all machines, as `up` does. Raise Problem if one of them cannot be created or started."""
    surveyed, ended_by = survey_all(settings, specs, frontend)
    if ended_by:
        raise ended_by
    found = []
    for workflow, (located, machine) in zip(workflows, surveyed, strict=True):
        if isinstance(machine, SurveyedMachine):
            workflow.checked = machine.checked
        else:
            found.append((located, machine))
    _raise_all(found, len(specs))


def _raise_all(found: Sequence[tuple[LocatedSpec, Problem]], count: int, errors: ErrorCollector | None = None) -> None:
    """Raise all problems as one, each with its machine. One that all machines have in common is not repeated."""
    errors = errors or ErrorCollector()
    all_found = [set(cause.diagnostics) for _, cause in found]
    shared = set.intersection(*all_found) if len(found) == count else set()
    for located, cause in found:
        name, span = located.spec.name, located.span
        named = (each if each in shared else with_machine(each, name, span) for each in cause.diagnostics)
        new = [each for each in named if each not in errors.diagnostics]
        errors.add(Problem(*new, exit_code=cause.exit_code))
    if errors.diagnostics:
        raise Problem(*errors.diagnostics, exit_code=errors.exit_code())


def _result_of(located: LocatedSpec, result: RunResult) -> MachineResult:
    name, job = located.spec.name, result.job
    found = MachineResult(
        name,
        located.span.file,
        result.exit_code,
        receipt=result.receipt,
        diagnostics=tuple(with_machine(each, name, located.span) for each in result.diagnostics),
        interrupted=result.interrupted,
        is_left=result.is_left,
    )
    return replace(found, run=job.run, folder=job.folder) if job else found


def _after_error(workflow: RunWorkflow, error: Exception) -> MachineResult:
    """Return the result of a run that an unexpected error ended, after its teardown."""
    receipt, work, located = workflow.receipt, workflow.work, workflow.located
    is_known = receipt is not None and (receipt.is_proof or receipt.stay is not None)
    is_left = not is_known and (work is not None or workflow.plan is not None)
    found = Diagnostic(Code.INTERNAL, "internal error", note=f"{type(error).__name__}: {error}")
    others = workflow.problem.diagnostics if workflow.problem else ()
    result = MachineResult(
        located.spec.name,
        located.span.file,
        Exit.LEFT_BEHIND if is_left else Exit.FAILED,
        receipt=receipt,
        diagnostics=tuple(with_machine(each, located.spec.name, located.span) for each in (found, *others)),
        is_left=is_left,
    )
    return replace(result, run=work.run, folder=work.folder) if work else result


class StartGate:
    """Lets all runs start, once each of them has passed its checks and questions, or none of them."""

    def __init__(self, count: int) -> None:
        self._missing, self._is_open = count, False
        self._is_decided = False
        self._changed = threading.Condition()

    @property
    def is_open(self) -> bool:
        """Whether the runs have started."""
        return self._is_open

    def arrive(self, seconds: float) -> bool:
        """Wait for the others, and return whether all start."""
        with self._changed:
            self._missing -= 1
            if not self._missing:
                self._decide(is_open=True)
            self._changed.wait_for(lambda: self._is_decided, seconds)
            self._decide(is_open=False)
            return self._is_open

    def close(self) -> bool:
        """Refuse the start of all runs, unless they have started already. Return whether they have."""
        with self._changed:
            self._decide(is_open=False)
            return self._is_open

    def _decide(self, *, is_open: bool) -> None:
        if not self._is_decided:
            self._is_decided, self._is_open = True, is_open
            self._changed.notify_all()


class NotStarted(Problem):
    """The run of one machine did not start, because that of another one cannot."""


class RunGroup:
    """Several runs: they start together or not at all, and share the decision after Ctrl-C."""

    def __init__(self, workflows: Sequence[RunWorkflow], on_interrupt: OnInterrupt, frontend: RunsFrontend) -> None:
        self.interrupts = RunInterrupts()
        self._gate = StartGate(len(workflows))
        self._workflows, self._on_interrupt, self._frontend = workflows, on_interrupt, frontend
        self._ended: set[str] = set()
        self._refused: list[tuple[LocatedSpec, Problem]] = []
        each_group_once = EachGroupOnce()
        for workflow in workflows:
            workflow.interrupts, workflow.shown = self.interrupts, each_group_once
            workflow.before_start = self._wait_for_others

    def execute(self, workflow: RunWorkflow) -> MachineResult:
        """Execute one of the runs. The failure of one that has started does not concern the others."""
        located = workflow.located
        try:
            workflow.execute()
            result = _result_of(located, workflow.result())
        except Problem as found:
            if not (self._gate.close() or isinstance(found, NotStarted)):
                self._refused.append((located, found))
            is_left = found.exit_code is Exit.LEFT_BEHIND
            failed = RunResult(None, None, found.diagnostics, found.exit_code, interrupted=False, is_left=is_left)
            result = _result_of(located, failed)
        except Exception as error:
            if not self.is_started:
                raise  # nothing was changed
            logger.exception("error in the run on %s", workflow.spec.name)
            result = _after_error(workflow, error)
        finally:
            self._gate.close()
            self._ended.add(workflow.spec.name)
        if self.is_started:
            self._frontend.finish(result)
        return result

    @property
    def is_started(self) -> bool:
        """Whether all runs have passed their checks and questions. Before, Azure is not changed and no job is sent."""
        return self._gate.is_open

    def _wait_for_others(self) -> None:
        if not self._gate.arrive(START_SECONDS):
            note = "no job was started: not all machines passed their checks and questions"
            raise NotStarted(Diagnostic(Code.NOT_READY, "another run cannot start", note=note))

    @property
    def refusal(self) -> Problem:
        """The Problem of the runs because of which none was started."""
        try:
            _raise_all(self._refused, len(self._workflows))
        except Problem as found:
            return found
        note = f"a question was not answered within {START_SECONDS / 60:.0f} minutes; no job was started"
        return problem(Code.NEEDS_CONSENT, "no answer", note, "run it again", exit_code=Exit.USAGE)

    # Ctrl-C

    def handle_interrupt(self, interrupt: KeyboardInterrupt) -> bool:
        """Decide what happens to all runs. Return False to leave them as they are."""
        if not self._gate.close():
            self._frontend.note("no job was started")
            return False
        if self.interrupts.decision is not None:
            return False
        decision = self._decide(interrupt)
        if decision is not OnInterrupt.ASK:
            what = "detaching from all jobs" if decision is OnInterrupt.DETACH else "cancelling all runs"
            self._frontend.note(f"{what}; Ctrl-C once more leaves the machines as they are")
            self.interrupts.send(decision)
        return True

    def _decide(self, interrupt: KeyboardInterrupt) -> OnInterrupt:
        jobs, others = self._machines()
        can_ask = self._frontend.can_ask
        decision = decision_of(self._on_interrupt, interrupt, can_ask=can_ask, has_jobs=bool(jobs))
        if decision is not OnInterrupt.ASK:
            return decision
        try:
            question = question_about_all(jobs, others, datetime.now(UTC))
            answer = self._frontend.ask_choice(question, "d", lambda: not self._machines()[0])
        except (KeyboardInterrupt, Exception):
            # A second Ctrl-C, or the question cannot be shown, as after `2>&1 | tee`. The error would end the program
            # with all machines as they are; a detach ends those without a job.
            return OnInterrupt.DETACH
        if answer is None:  # the last job has ended: as without one, end the machines that have none yet
            return OnInterrupt.CANCEL
        return {"d": OnInterrupt.DETACH, "c": OnInterrupt.CANCEL}.get(answer or "", OnInterrupt.ASK)

    def _machines(self) -> tuple[list[MachineEnd], list[MachineEnd]]:
        """Return the machines with a running job, and the others whose run has not ended."""
        # With `--detach`, a run has left its job as soon as that runs: no answer concerns it.
        left = {each.spec.name for each in self._workflows if each.detach and each.has_running_job}
        active = [each for each in self._workflows if each.spec.name not in self._ended | left]
        jobs = [each for each in active if each.has_running_job]
        return [each.machine_end for each in jobs], [each.machine_end for each in active if each not in jobs]

    def say_states(self, settings: Settings, results: Sequence[MachineResult]) -> None:
        """Report the machines whose runs were left, from Azure."""
        ended = {each.machine for each in results}
        left = [each.spec for each in self._workflows if each.spec.name not in ended]
        if left:
            ends = "until they are idle, or until their leases end"
            self._frontend.note(f"machines that are on are billed until `gpuinfra down`, {ends}")
            down = Teardowns(deletes=False, creates=True)
            say_states(settings, [machine_of_spec(each) for each in left], self._frontend, down=down)
