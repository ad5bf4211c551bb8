"""Run one job on a machine that is switched on for it: provision, submit, tear down."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, field, replace
from getpass import getuser
from typing import TYPE_CHECKING

from gpuinfra.app.job_request import OnInterrupt, usage
from gpuinfra.app.settings import Settings
from gpuinfra.app.up import LeftOn, up
from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem

if TYPE_CHECKING:
    from gpuinfra.app.frontend import Frontend
    from gpuinfra.app.job_request import JobRequest
    from gpuinfra.app.job_result import JobResult
    from gpuinfra.app.job_session import JobSession
    from gpuinfra.models.consent import MachineAnswer
    from gpuinfra.models.plan import Plan
    from gpuinfra.models.receipt import Receipt
    from gpuinfra.models.run import Run
    from gpuinfra.models.spec import Spec
    from gpuinfra.models.target import Target
    from gpuinfra.parse.spec import LocatedSpec
    from gpuinfra.runner.job_spec import JobSpec
    from gpuinfra.runner.jobs.remote_runs import RemoteRun

CHOICES = ("deallocate", "delete", "keep")
# A child of the program's logger, so that `--verbose` shows it.
logger = logging.getLogger(f"gpuinfra.{__name__}")

UP_SECONDS = 3600.0
ASK_SECONDS = 120.0
KEEP, DELETE = "keep", "delete"
CANCELLED = "cancelled"


def run_job(
    settings: Settings,
    word: str,
    request: JobRequest,
    after_run: str | None,
    on_interrupt: OnInterrupt,
    frontend: Frontend,
) -> RunResult:
    """Create or start a spec's machine, run a job on it, fetch its outputs, and stop the machine.

    `word` is the spec's file or the machine's name. `after_run` overrides the spec's `afterRun`.
    """
    from gpuinfra.app.specs import one_located

    located = one_located(settings, word)
    afterwards = _afterwards(located.spec, after_run)
    job = _resolve(settings, located.spec, request)
    workflow = RunWorkflow(settings, located, job, afterwards, on_interrupt, frontend)
    workflow.execute()
    return workflow.result()


@dataclass(frozen=True)
class RunResult:
    """The result of `run`."""

    job: JobResult | None
    """None if no job was submitted."""
    receipt: Receipt | None
    diagnostics: tuple[Diagnostic, ...]
    exit_code: int
    interrupted: bool


@dataclass
class RunWorkflow:
    """One `run`: the job, and the teardown of its machine in every case."""

    settings: Settings
    located: LocatedSpec
    job: JobSpec
    afterwards: str
    on_interrupt: OnInterrupt
    frontend: Frontend
    work: JobSession | None = None
    problem: Problem | None = None
    interrupted: bool = False
    receipt: Receipt | None = None
    plan: Plan | None = None
    """The plan that `up` has begun to apply; None if nothing was changed."""
    host_key: str = ""
    """The host key for a machine that this run creates."""
    _answer: MachineAnswer | None = field(default=None, init=False)
    _is_left: bool = field(default=False, init=False)

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
            up(self.settings, self.located, UP_SECONDS, self.frontend, before_change=self._note_change)
            is_up = True
            self._submit()
        except KeyboardInterrupt:
            self.interrupted = True
            if self.work and self.work.was_interrupted:
                self._leave()
                raise
        except Problem as found:
            if not is_up and not isinstance(found, LeftOn):
                raise  # `up` has rolled back and reported it
            self.problem = found
        except BaseException:
            self._end()  # even an error in gpuinfra must not leave the machine on
            if self.problem or (self.receipt and not self.receipt.is_proof):
                self.frontend.note(f"{self.spec.name} may be on: {self._stops}")
            raise
        self._end()

    def _note_change(self, plan: Plan, host_key: str) -> None:
        self.plan, self.host_key = plan, host_key

    def _submit(self) -> None:
        from gpuinfra.app.access import check_target
        from gpuinfra.app.job_session import JobSession
        from gpuinfra.app.workspace import open_workspace, with_key

        workspace = open_workspace(self.settings)
        target = replace(with_key(workspace.path, self._written_target(), self.spec), type=self.job.target.type)
        check_target(self.settings, target)
        sink = self.frontend.open_output()
        self.work = JobSession(
            workspace,
            replace(self.job, target=target),
            self.frontend,
            sink,
            self.on_interrupt,
            self.spec,
            without_terminal=OnInterrupt.CANCEL,
            after_run=self.afterwards,
        )
        try:
            self.work.go()
        finally:
            sink.finish()

    def _written_target(self) -> Target:
        """Return the machine's target from the file that `up` wrote."""
        from gpuinfra.workbench.targets import find_target
        from gpuinfra.workspace import find_workspace

        target = find_target(find_workspace(self.settings.workspace), self.spec.target_name)
        if target is None or not target.address:
            note = f"`{self.spec.target_name}.compute` is missing, or has no address; the machine is up"
            raise Problem(Diagnostic(Code.UNKNOWN_TARGET, "the target file is gone", note=note, help="run it again"))
        return target

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
        if not self._may_end():
            self.frontend.note(f"{self.spec.name} is left as it is: this run did not switch it on")
        elif reason := self._known_reason():
            self.frontend.note(reason)
        else:
            self.receipt = self._switch_off()

    def _may_end(self) -> bool:
        """Return whether this run used the machine that exists now, or switched it on."""
        if self.work:
            return True
        if self.plan is None or not self.plan.switches_on:
            return False
        return not self._creates or self._found_key() in {self.host_key, None}

    @property
    def _creates(self) -> bool:
        from gpuinfra.models.plan import Action
        from gpuinfra.models.resource import Kind

        changes = self.plan.changes if self.plan else ()
        return any(each.ref.kind is Kind.VM and each.action in {Action.ADD, Action.REPLACE} for each in changes)

    def _found_key(self) -> str | None:
        """Return the host key of the machine in Azure, or None without one. Another `up` may have created it first."""
        from gpuinfra.app.access import cloud_errors, open_session
        from gpuinfra.models.resource import Kind
        from gpuinfra.provision import tags
        from gpuinfra.provision.names import ref_of

        session = open_session(self.settings, self.spec.subscription, ASK_SECONDS, self.frontend)
        with cloud_errors(f"looking at {self.spec.name}"):
            found = session.cloud.look(ref_of(Kind.VM, self.spec.group_name, self.spec.name))
        return tags.get(found.tags, tags.HOST_KEY) if found else None

    def _switch_off(self) -> Receipt:
        from gpuinfra.app.down import end_machine
        from gpuinfra.app.machine_names import Named

        deletes = self.afterwards == DELETE
        if deletes and (lacking := self._unfetched()):
            self.frontend.note(f"not all outputs of {lacking} are here: the machine is only switched off")
            deletes = False
        named = Named(self.spec.name, self.spec.group_name, self.spec.subscription)
        cause = f"gpuinfra run: the job {self.work.run.state.value}" if self.work else "gpuinfra run"
        return end_machine(self.settings, named, self.frontend, delete=deletes, cause=cause)

    def _unfetched(self) -> str:
        """Return the IDs of runs whose outputs a deletion would lose, including this run even if it is untracked."""
        from gpuinfra.app.workspace import open_workspace

        try:
            found = {run.id for run in open_workspace(self.settings).history.unfetched(self.spec.name)}
        except Problem:
            return "earlier runs, as far as anybody knows,"
        run = self.work.run if self.work else None
        if run and (run.job or run.started) and not run.outputs.complete:
            found.add(run.id)
        # Other workspaces may have runs there as well.
        found |= {each.run for each in self._strangers() if each.has_outputs}
        # A machine that this run created, and that got no job, has nothing to lose.
        is_new = self.work is None and self._creates
        if self._neighbours() is None and not found and not is_new:
            return "other runs, as far as anybody knows,"
        return ", ".join(sorted(found))

    def _known_reason(self) -> str | None:
        """Return why the machine must stay on, or None to stop it. If the check fails, stop it."""
        try:
            return self._reason_to_keep()
        except Exception:
            logger.debug("it is not known whether somebody needs %s", self.spec.name, exc_info=True)
            return None

    def _reason_to_keep(self) -> str | None:
        if self.work and self.work.is_off:
            return None  # it is already off, and the receipt proves it
        if self.afterwards == KEEP:
            return f"{self.spec.name} is kept, as was asked: {self._stops}"
        run = self.work.run if self.work else None
        # A job may run although its start was never confirmed.
        has_begun = run and (run.started or (run.job and not self.interrupted))
        if run and has_begun and not run.state.is_over and run.reason != CANCELLED:
            return f"the job continues: {self._stops_after_job}"
        others = self._others(run.id if run else "")
        others += [each.run for each in self._strangers() if not each.is_over]
        if others:
            return f"{self.spec.name} is kept for {', '.join(others)}: {self._stops}"
        return None

    def _strangers(self) -> list[RemoteRun]:
        """Return runs that the machine knows and this workspace does not. For its own runs, the history knows more."""
        from gpuinfra.app.workspace import open_workspace

        neighbours = self._neighbours()
        if not neighbours:
            return []
        own: set[str] = set()
        with suppress(Problem):  # without a history, all are unknown
            workspace = self.work.workspace if self.work else open_workspace(self.settings)
            own = {run.id for run in workspace.history.list()}
        return [each for each in neighbours if each.run not in own]

    def _neighbours(self) -> list[RemoteRun] | None:
        """Return other runs on the machine, from any workspace; None if the machine cannot be queried."""
        from gpuinfra.models.consent import Contact
        from gpuinfra.runner.jobs.remote_runs import RemoteRun

        if self.work and self.work.neighbours is not None:
            return self.work.neighbours
        self._answer = self._answer or self._ask()
        if self._answer.contact not in {Contact.ANSWERED, Contact.NOTHING_THERE}:
            return None
        own = self.work.run.id if self.work else ""
        return [RemoteRun(run.id, run.is_over, run.has_outputs) for run in self._answer.runs if run.id != own]

    def _ask(self) -> MachineAnswer:
        from gpuinfra.app.access import open_session
        from gpuinfra.app.remote_runs import ask_machine
        from gpuinfra.models.consent import Contact, MachineAnswer
        from gpuinfra.provision.errors import CloudError

        try:
            session = open_session(self.settings, self.spec.subscription, ASK_SECONDS, self.frontend)
            return ask_machine(session, self.spec.name, self.spec.group_name, self.spec)
        except (Problem, CloudError):
            return MachineAnswer(Contact.SILENT)

    @property
    def _stops(self) -> str:
        from gpuinfra.models.durations import format_duration

        idle = format_duration(self.spec.lifecycle.idle)
        return f"it is billed until `gpuinfra down {self.spec.name}`, until it is idle for {idle} or its lease ends"

    @property
    def _stops_after_job(self) -> str:
        """What the guest agent does with `afterRun`. It never deletes."""
        name = self.spec.name
        delete = f"; `gpuinfra down --delete {self.spec.name}` deletes it" if self.afterwards == DELETE else ""
        return f"the agent of {name} deallocates it when the job has finished, or when its lease ends{delete}"

    def _others(self, own: str) -> list[str]:
        """Return other runs that need the machine: their jobs run, or a client is fetching their outputs."""
        from gpuinfra.app.workspace import open_workspace

        found: list[str] = []
        with suppress(Problem):
            workspace = open_workspace(self.settings)
            history, name = workspace.history, self.spec.name
            for run in {run.id: run for run in (*history.unfinished(name), *history.unfetched(name))}.values():
                with workspace.log_of(run.id) as log:
                    is_followed = log.is_followed
                if run.id != own and (is_followed or self._goes_on(run)):
                    found.append(run.id)
        return found

    def _goes_on(self, run: Run) -> bool:
        """Return whether a run whose client is gone continues, by asking the machine. Also fetches its outputs."""
        from gpuinfra.app.run_control import fetch_outputs
        from gpuinfra.app.workspace import open_workspace
        from gpuinfra.runner.errors import JobError

        # A run that never began will not begin now.
        if run.state.is_over or run.job is None:
            return False
        try:
            return not fetch_outputs(self.settings, run, self.frontend).state.is_over
        except (Problem, JobError):
            # Assume that it continues, unless its end was just recorded.
            return not open_workspace(self.settings).history.find(run.id).state.is_over

    def _leave(self) -> None:
        """Report what exists after a second Ctrl-C, without waiting."""
        from gpuinfra.app.access import open_session
        from gpuinfra.app.interruption import LOOK_SECONDS, say_what_exists

        self._say_left()
        with suppress(Problem):
            session = open_session(self.settings, self.spec.subscription, LOOK_SECONDS, self.frontend)
            say_what_exists(session, self.spec.name, self.spec.group_name, self.frontend)

    def _say_left(self) -> None:
        if not self._is_left:
            self._is_left = True
            self.frontend.note(f"{self.spec.name} is left as it is: {self._stops}")

    def result(self) -> RunResult:
        """Return the result and the exit code."""
        from gpuinfra.app.job_result import result_of

        is_left = self.receipt is not None and not self.receipt.is_proof
        job = result_of(self.work, self.receipt, self.problem) if self.work else None
        if job is None:
            code = int(self.problem.exit_code if self.problem else Exit.INTERRUPTED)
        elif self.interrupted and not job.run.exit_code and not self.problem:
            code = Exit.INTERRUPTED
        else:
            code = job.exit_code
        diagnostics = self.problem.diagnostics if self.problem else ()
        code = Exit.LEFT_BEHIND if is_left else code
        interrupted = self.interrupted or (job is not None and job.interrupted)
        return RunResult(job, self.receipt, tuple(diagnostics), code, interrupted)


def _afterwards(spec: Spec, given: str | None) -> str:
    from gpuinfra.suggest import did_you_mean

    if given is None:
        return spec.lifecycle.after_run
    if given not in CHOICES:
        help_line = did_you_mean(given, CHOICES) or "`deallocate`, `delete` or `keep`"
        raise usage("unknown value", f"`--after-run {given}`", help_line)
    return given


def _resolve(settings: Settings, spec: Spec, request: JobRequest) -> JobSpec:
    """Return the job, after all checks that are possible before a machine is billed."""
    from gpuinfra.app.job_request import resolve_job_of_machine
    from gpuinfra.app.workspace import check_workspace
    from gpuinfra.workspace import find_workspace

    if spec.power != "running":
        note = f"the spec of `{spec.name}` says `power: {spec.power}`"
        diagnostic = Diagnostic(Code.MACHINE_IS_OFF, "the machine is to be off", note=note, help="`power: running`")
        raise Problem(diagnostic, exit_code=Exit.USAGE)
    job = resolve_job_of_machine(find_workspace(settings.workspace), spec, request)
    if settings.cloud == "sandbox" and job.in_container:
        _check_own_engine(spec)
    check_workspace(settings)
    return job


def _check_own_engine(spec: Spec) -> None:
    """Raise Problem if the sandbox finds no Docker Engine, which a simulated machine needs for containers."""
    from gpuinfra.app.machine_readiness import WITHOUT_DOCKER
    from gpuinfra.app.sandbox import Sandbox
    from gpuinfra.runner.connection.local import LocalConnection
    from gpuinfra.runner.docker.check import LIMIT_SECONDS, look_at_docker

    sandbox = Sandbox()
    check, _ = look_at_docker(LocalConnection(sandbox.docker_environment()), getuser(), LIMIT_SECONDS * 2)
    if not check.passed:
        note = f"{check.found}; the simulated `{spec.name}` would use the engine of this computer; nothing was created"
        help_line = f"{sandbox.docker_help or check.help}; or {WITHOUT_DOCKER}"
        raise Problem(Diagnostic(Code.NO_ENGINE, "no Docker Engine on this computer", note=note, help=help_line))
