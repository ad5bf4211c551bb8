"""Run one job on a machine that is switched on for it: provision, submit, tear down."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from getpass import getuser

from gpuinfra.app.access import INTERRUPT_SECONDS, cloud_errors, look_at_vm, open_session, say_what_exists
from gpuinfra.app.consent import ASK_SECONDS, OtherRuns
from gpuinfra.app.down import end_machine
from gpuinfra.app.frontend import Frontend
from gpuinfra.app.interrupt_question import MachineEnd
from gpuinfra.app.job_request import JobRequest, OnInterrupt, resolve_job_of_machine, usage
from gpuinfra.app.job_session import JobSession
from gpuinfra.app.machine_names import Named
from gpuinfra.app.run_interrupts import RunInterrupts
from gpuinfra.app.sandbox import Sandbox
from gpuinfra.app.settings import Settings
from gpuinfra.app.stay import check_ends, hold_machine, receipt_of_detached
from gpuinfra.app.submit import JobResult, result_of
from gpuinfra.app.up import WITHOUT_DOCKER, LeftOn, up
from gpuinfra.app.workspace import check_workspace, open_workspace, with_key
from gpuinfra.app.workspace_search import script_in_workspace
from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem, did_you_mean, problem
from gpuinfra.models.base import format_duration
from gpuinfra.models.plan import Action, Kind, Plan
from gpuinfra.models.receipt import Receipt
from gpuinfra.models.spec import Spec
from gpuinfra.models.target import Target, UpResult
from gpuinfra.parse.spec import LocatedSpec
from gpuinfra.provision import tags
from gpuinfra.provision.preflight import Preflight
from gpuinfra.runner.connection.local import LocalConnection
from gpuinfra.runner.docker.check import LIMIT_SECONDS, look_at_docker
from gpuinfra.runner.job import StopReason
from gpuinfra.runner.job_spec import JobSpec
from gpuinfra.runner.progress import within

# A child of the program's logger, so that `--verbose` shows it.
logger = logging.getLogger(__name__)

UP_SECONDS = 3600.0
STAY_SECONDS = 20.0
KEEP, DELETE = "keep", "delete"
CHOICES = ("deallocate", DELETE, KEEP)


def run_job(
    settings: Settings,
    located: LocatedSpec,
    request: JobRequest,
    after_run: str | None,
    on_interrupt: OnInterrupt,
    frontend: Frontend,
) -> RunResult:
    """Create or start a spec's machine, run a job on it, fetch its outputs, and stop the machine.

    `after_run` overrides the spec's `afterRun`.
    """
    workflow = prepare_run(settings, located, request, after_run, on_interrupt, frontend)
    workflow.execute()
    return workflow.result()


def prepare_run(
    settings: Settings,
    located: LocatedSpec,
    request: JobRequest,
    after_run: str | None,
    on_interrupt: OnInterrupt,
    frontend: Frontend,
) -> RunWorkflow:
    """Return the workflow of one run. Raise Problem for what spec, project and command line have wrong."""
    request = replace(request, script=script_in_workspace(settings, request.script))
    after_run = _after_run(located.spec, after_run)
    job = _resolve(settings, located.spec, request)
    if request.keep_on_failure and after_run == KEEP:
        note = "the machine is kept after every run, so `--keep-on-failure` changes nothing"
        raise usage("an option without effect", note, "leave it out, or give `--after-run deallocate`")
    return RunWorkflow(
        settings, located, job, after_run, on_interrupt, frontend, detach=request.detach, request=request
    )


@dataclass(frozen=True)
class RunResult:
    """The result of `run`."""

    job: JobResult | None
    """None if no job was submitted."""
    receipt: Receipt | None
    diagnostics: tuple[Diagnostic, ...]
    """The problems of the job and of its machine."""
    exit_code: int
    interrupted: bool
    is_left: bool = False
    """Whether something may be billed, or is left behind, that the user did not ask for."""


@dataclass
class RunWorkflow:
    """One `run`: the job, and the teardown of its machine in every case."""

    settings: Settings
    located: LocatedSpec
    job: JobSpec
    after_run: str
    on_interrupt: OnInterrupt
    frontend: Frontend
    detach: bool = False
    """Whether to leave as soon as the job runs."""
    request: JobRequest | None = None
    work: JobSession | None = None
    problem: Problem | None = None
    interrupted: bool = False
    receipt: Receipt | None = None
    plan: Plan | None = None
    """The plan that `up` has begun to apply; None if nothing was changed."""
    host_key: str = ""
    """The host key for a machine that this run creates."""
    interrupts: RunInterrupts | None = None
    """How Ctrl-C reaches this run if it is one of several."""
    checked: Preflight | None = None
    """The result of an earlier preflight."""
    shown: Callable[[Plan], Plan] = lambda plan: plan
    """Returns what to show of the plan."""
    before_start: Callable[[], None] = lambda: None
    """Called after all questions, before Azure is changed or a job is sent."""
    _others: OtherRuns | None = None
    _is_left: bool = False
    _is_started: bool = False

    @property
    def spec(self) -> Spec:
        """The machine's spec."""
        return self.located.spec

    def execute(self) -> None:
        """Execute the whole workflow. If an interrupt leaves the machine as it is, report that."""
        try:
            self._execute()
        except KeyboardInterrupt:
            self._say_left()
            raise

    def _execute(self) -> None:
        is_up = False
        try:
            result = self._up()
            is_up = True
            self._submit(result.target)
        except KeyboardInterrupt:
            self.interrupted = True
            if self.work and self.work.was_interrupted:
                self._leave()
                raise
        except Problem as found:
            if not is_up and not isinstance(found, LeftOn):
                raise  # the Problem says what `up` stopped or undid, and what was on before and stays on
            self.problem = found
        except BaseException:
            self._end()  # even an error in gpuinfra must not leave the machine on
            if self.problem or (self.receipt and not self.receipt.is_proof):
                self.frontend.note(f"{self.spec.name} may be on: {self._stops}")
            raise
        self._end()

    def _up(self) -> UpResult:
        interrupts = self.interrupts
        try:
            result = up(
                replace(self.settings, interrupt=interrupts.cloud) if interrupts else self.settings,
                self.located,
                UP_SECONDS,
                self.frontend,
                before_change=self._note_change,
                checked=self.checked,
                shown=self.shown,
            )
        except Problem as found:
            if interrupts is None or interrupts.decision is None:
                raise
            if found.exit_code is not Exit.INTERRUPTED:
                self.problem = found
            raise KeyboardInterrupt from found
        self._start()
        return result

    def _note_change(self, plan: Plan, host_key: str) -> None:
        self._start()
        self.plan, self.host_key = plan, host_key

    def _start(self) -> None:
        """Call `before_start` once: there may be several changes, or none."""
        if not self._is_started:
            self.before_start()
            self._is_started = True

    def _submit(self, target: Target | None) -> None:
        if target is None:
            note = f"`{self.spec.name}` was deleted while `run` waited for it; nothing is billed"
            raise problem(Code.NOT_READY, "machine was ended", note, "run it again")
        workspace = open_workspace(self.settings)
        target = replace(with_key(workspace.path, target, self.spec), type=self.job.target.type)
        if self.detach:
            check_ends(self.settings, self.spec, self.frontend)
        sink = self.frontend.open_output()
        self.work = JobSession(
            workspace,
            replace(self.job, target=target),
            self.frontend,
            sink,
            self.on_interrupt,
            self.spec,
            request=self.request,
            without_terminal=OnInterrupt.CANCEL,
            after_run=self.after_run,
            stops_machine=self.after_run != KEEP,
            is_unneeded=lambda: self._known_reason() is None,
            hold=self._hold,
            detach=self.detach,
            interrupts=self.interrupts,
        )
        try:
            self.work.run_to_end()
            if self.detach:
                self.work.extend_lease()
        finally:
            sink.finish()

    # Teardown

    def _end(self) -> None:
        """Stop the machine unless it is needed. Report every outcome, especially that it may still be billed."""
        try:
            try:
                self._end_if_unneeded()
            except KeyboardInterrupt:
                if self.interrupted:
                    raise
                self.interrupted = True
                self.frontend.note(f"{self.spec.name} is switched off first; Ctrl-C once more leaves it as it is")
                # From the beginning: it may be unknown so far whether another run needs the machine.
                self._end_if_unneeded()
        except KeyboardInterrupt:
            self._say_left()
            raise
        except Problem as found:
            before = self.problem.diagnostics if self.problem else ()
            on = (
                f"{self.spec.name} may be on, and billed until `gpuinfra down {self.spec.name}` or the end of its lease"
            )
            after = (replace(each, note=f"{each.note}; {on}" if each.note else on) for each in found.diagnostics)
            self.problem = Problem(*before, *after, exit_code=Exit.LEFT_BEHIND)

    def _end_if_unneeded(self) -> None:
        if self.receipt and self.receipt.stay:
            return  # it stays on for a look at the failed job
        if not self._may_end():
            self.frontend.note(f"{self.spec.name} is left as it is: this run did not switch it on")
        elif self._job_continues:
            self._report_stay()
        elif reason := self._known_reason():
            self.frontend.note(reason)
        else:
            self.receipt = self._switch_off()

    def _hold(self) -> bool:
        """Keep the machine on for a look at the failed job. If that is not possible, it is stopped as usual."""
        work, seconds = self.work, self.job.keep_on_failure
        if work is None or not seconds or self._known_reason():
            return False
        job = work.run.job
        kept = (f"container {job.id}",) if job and job.kind == "container" else ()
        places = (*kept, f"folder {work.tree}") if work.tree else kept
        try:
            self.receipt = hold_machine(
                self.settings,
                self.spec,
                work.run.id,
                seconds=seconds,
                places=places,
                after_run=self.after_run,
                frontend=self.frontend,
            )
            why = "no time is left of its cost cap, or nothing in Azure would end it"
        except Problem as found:
            why = found.diagnostics[0].note or found.diagnostics[0].summary
        if self.receipt is None:
            self.frontend.note(f"{self.spec.name} does not stay on for a look at the failed job: {why}")
        return self.receipt is not None

    def _report_stay(self) -> None:
        """Say what ends the machine of a job that continues, and what that costs at most."""
        run = self.work.run.id if self.work else ""

        def look() -> Receipt:
            return receipt_of_detached(
                self.settings,
                self.spec,
                run,
                after_run=self.after_run,
                keep_on_failure=self.job.keep_on_failure,
                frontend=self.frontend,
            )

        try:
            self.receipt = within(STAY_SECONDS, look)  # limited: the network may be down, and the user waits
        except (Problem, TimeoutError):
            self.frontend.note(f"the job continues: {self._stops_after_job}")

    def _may_end(self) -> bool:
        """Return whether this run used the machine that exists now, or switched it on."""
        if self.work:
            return True
        if self.plan is None or not self.plan.switches_on:
            return False
        return not self._creates or self._found_key() in {self.host_key, None}

    @property
    def has_running_job(self) -> bool:
        """Whether its job runs, so that the user can detach from it."""
        run = self.work.current_run if self.work else None
        return run is not None and run.started is not None and not run.state.is_over

    @property
    def machine_end(self) -> MachineEnd:
        """What ends the machine, as far as it is known here."""
        found = self.work.machine_end() if self.work else None
        is_kept = self.work is None and not (self.plan and self.plan.switches_on)
        return found or MachineEnd(self.spec.name, KEEP if is_kept else self.after_run, None, None)

    @property
    def _creates(self) -> bool:
        changes = self.plan.changes if self.plan else ()
        return any(each.ref.kind is Kind.VM and each.action in {Action.ADD, Action.REPLACE} for each in changes)

    def _found_key(self) -> str | None:
        """Return the host key of the machine in Azure, or None without one. Another `up` may have created it first."""
        session = open_session(self.settings, self.spec.subscription, ASK_SECONDS, self.frontend)
        with cloud_errors(f"looking at {self.spec.name}"):
            found = look_at_vm(session.cloud, self.spec)
        return tags.get(found.tags, tags.HOST_KEY) if found else None

    @property
    def other_runs(self) -> OtherRuns:
        """The other runs on the machine, asked for once."""
        if self._others is None:
            own, found = (self.work.run, self.work.neighbours) if self.work else (None, None)
            self._others = OtherRuns(self.settings, self.spec, self.frontend, own, found)
        return self._others

    def _known_reason(self) -> str | None:
        """Return why the machine must stay on, or None to stop it. If the check fails, stop it."""
        try:
            return self._reason_to_keep()
        except Exception:
            logger.debug("it is not known whether a run needs %s", self.spec.name, exc_info=True)
            return None

    def _reason_to_keep(self) -> str | None:
        if self.work and self.work.is_off:
            return None  # it is already off, and the receipt proves it
        if self.after_run == KEEP:
            return f"{self.spec.name} is kept, as requested: {self._stops}"
        if self._job_continues:
            return f"the job continues: {self._stops_after_job}"
        if others := self.other_runs.in_need():
            return f"{self.spec.name} is kept for {', '.join(others)}: {self._stops}"
        return None

    @property
    def _job_continues(self) -> bool:
        """Whether the job runs on without this client, as far as is known."""
        run = self.work.run if self.work and not self.work.is_off else None
        # The job is recorded just before its start. Only Ctrl-C prevents a start that was recorded; after any other
        # failure the job may run, although its start was never confirmed.
        has_begun = run and (run.started or (run.job and not self.interrupted))
        return bool(run and has_begun and not run.state.is_over and run.reason != StopReason.CANCELLED)

    def _switch_off(self) -> Receipt:
        deletes = self.after_run == DELETE
        # A machine that this run created, and that got no job, has nothing to lose.
        if deletes and (lacking := self.other_runs.unfetched(is_new=self.work is None and self._creates)):
            self.frontend.note(f"not all outputs of {lacking} are here: the machine is only switched off")
            deletes = False
        named = Named(self.spec.name, self.spec.group_name, self.spec.subscription)
        cause = f"gpuinfra run: the job {self.work.run.state.value}" if self.work else "gpuinfra run"
        closed_until = self.work.closed_until if self.work else 0.0
        return end_machine(self.settings, named, self.frontend, delete=deletes, cause=cause, closed_until=closed_until)

    @property
    def _stops(self) -> str:
        idle = format_duration(self.spec.lifecycle.idle)
        return f"it is billed until `gpuinfra down {self.spec.name}`, until it is idle for {idle} or its lease ends"

    @property
    def _stops_after_job(self) -> str:
        """What the guest agent does with `afterRun`. It never deletes."""
        name = self.spec.name
        delete = f"; `gpuinfra down --delete {self.spec.name}` deletes it" if self.after_run == DELETE else ""
        return f"the agent of {name} deallocates it when the job has finished, or when its lease ends{delete}"

    def _leave(self) -> None:
        """Report what exists after a second Ctrl-C, without waiting."""
        self._say_left()
        with suppress(Problem):
            session = open_session(self.settings, self.spec.subscription, INTERRUPT_SECONDS, self.frontend)
            say_what_exists(session, self.spec.name, self.spec.group_name, self.frontend)

    def _say_left(self) -> None:
        if not self._is_left:
            self._is_left = True
            self.frontend.note(f"{self.spec.name} is left as it is: {self._stops}")

    def result(self) -> RunResult:
        """Return the result and the exit code."""
        job = result_of(self.work, self.problem) if self.work else None
        if job is None:
            code = int(self.problem.exit_code if self.problem else Exit.INTERRUPTED)
        elif self.interrupted and not job.run.exit_code and not self.problem:
            code = Exit.INTERRUPTED
        else:
            code = job.exit_code
        is_left = self.problem is not None and self.problem.exit_code is Exit.LEFT_BEHIND
        if self.receipt and not self.receipt.is_proof and not self.receipt.stay:
            code, is_left = Exit.LEFT_BEHIND, True
        problems = self.problem.diagnostics if self.problem else ()
        interrupted = self.interrupted or (job is not None and job.interrupted)
        return RunResult(job, self.receipt, job.diagnostics if job else problems, code, interrupted, is_left)


def _after_run(spec: Spec, given: str | None) -> str:
    if given is None:
        return spec.lifecycle.after_run
    if given not in CHOICES:
        help_line = did_you_mean(given, CHOICES) or "`deallocate`, `delete` or `keep`"
        raise usage("unknown value", f"`--after-run {given}`", help_line)
    return given


def _resolve(settings: Settings, spec: Spec, request: JobRequest) -> JobSpec:
    """Return the job, after all checks that are possible before a machine is billed."""
    if spec.power != "running":
        note = f"the spec of `{spec.name}` says `power: {spec.power}`"
        summary, help_line = "this spec keeps the machine off", "set `power: running` in the spec"
        raise problem(Code.MACHINE_IS_OFF, summary, note, help_line, exit_code=Exit.USAGE)
    job = resolve_job_of_machine(settings.folder, spec, request)
    if settings.cloud == "sandbox" and job.in_container:
        _check_own_engine(spec)
    check_workspace(settings)
    return job


def _check_own_engine(spec: Spec) -> None:
    """Raise Problem if the sandbox finds no Docker Engine, which a simulated machine needs for containers."""
    sandbox = Sandbox()
    check, _ = look_at_docker(LocalConnection(sandbox.docker_environment()), getuser(), LIMIT_SECONDS * 2)
    if not check.passed:
        note = f"{check.found}; the simulated `{spec.name}` would use the engine of this computer; nothing was created"
        help_line = f"{sandbox.docker_help or check.help}; or {WITHOUT_DOCKER}"
        raise problem(Code.NO_ENGINE, "no Docker Engine on this computer", note, help_line)
