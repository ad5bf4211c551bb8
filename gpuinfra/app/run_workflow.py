"""A machine for one job, from its beginning to its end: what `gpuinfra run` tells."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, field, replace
from getpass import getuser
from pathlib import Path
from typing import TYPE_CHECKING

from gpuinfra.app.job_options import JobOptions, OnInterrupt, usage, variables_of
from gpuinfra.app.settings import Settings
from gpuinfra.app.up import LeftOn, up
from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem

if TYPE_CHECKING:
    from gpuinfra.app.frontend import Frontend
    from gpuinfra.app.job_result import JobResult
    from gpuinfra.app.job_session import JobSession
    from gpuinfra.models.consent import MachineAnswer
    from gpuinfra.models.plan import Plan
    from gpuinfra.models.receipt import Receipt
    from gpuinfra.models.run import Run
    from gpuinfra.models.spec import Spec
    from gpuinfra.parse.spec import Located
    from gpuinfra.runner.watch import RemoteRun
    from gpuinfra.workbench.project import Project

CHOICES = ("deallocate", "delete", "keep")
# The address of a machine that is not there.
NOT_YET = "not-yet.invalid"
# Below the program's own logger, so that `--verbose` shows it.
logger = logging.getLogger(f"gpuinfra.{__name__}")

UP_SECONDS = 3600.0
ASK_SECONDS = 120.0
KEEP, DELETE = "keep", "delete"
CANCELLED = "cancelled"


def run_job(
    settings: Settings,
    word: str,
    options: JobOptions,
    after_run: str | None,
    on_interrupt: OnInterrupt,
    progress: Frontend,
) -> RunResult:
    """Create or start the machine of a spec, run a job on it, fetch its outputs, and end the machine.

    `word` is the spec's file or the machine's name; `after_run` replaces what the spec says about the machine's end.
    """
    from gpuinfra.app.machines import one_located

    located = one_located(settings, word)
    afterwards = _afterwards(located.spec, after_run)
    options = replace(options, variables=variables_of(options))
    _check(settings, located.spec, options)
    workflow = RunWorkflow(settings, located, options, afterwards, on_interrupt, progress)
    workflow.execute()
    return workflow.result()


@dataclass(frozen=True)
class RunResult:
    """What `run` did."""

    job: JobResult | None
    """None if no job was sent."""
    receipt: Receipt | None
    diagnostics: tuple[Diagnostic, ...]
    exit_code: int
    interrupted: bool


@dataclass
class RunWorkflow:
    """What happens, and what has to happen whatever happens: the machine's end."""

    settings: Settings
    located: Located
    options: JobOptions
    afterwards: str
    on_interrupt: OnInterrupt
    progress: Frontend
    work: JobSession | None = None
    problem: Problem | None = None
    interrupted: bool = False
    receipt: Receipt | None = None
    plan: Plan | None = None
    """What `up` has begun to change; None if it has changed nothing."""
    host_key: str = ""
    """The host key of a machine that this run creates."""
    _answer: MachineAnswer | None = field(default=None, init=False)

    @property
    def spec(self) -> Spec:
        """The machine's spec."""
        return self.located.spec

    def execute(self) -> None:
        """From beginning to end."""
        is_up = False
        try:
            up(self.settings, self.located, UP_SECONDS, self.progress, before_change=self._note_change)
            is_up = True
            self._submit()
        except KeyboardInterrupt:
            self.interrupted = True
            if self.work and self.work.was_interrupted:
                self._leave()
                raise
        except Problem as found:
            if not is_up and not isinstance(found, LeftOn):
                raise  # `up` has cleared up behind itself, and says so
            self.problem = found
        except BaseException:
            self._end()  # a mistake of ours is no reason to leave it on
            if self.problem or (self.receipt and not self.receipt.is_proof):
                self.progress.note(f"{self.spec.name} may be on: {self._stops}")
            raise
        self._end()

    def _note_change(self, plan: Plan, host_key: str) -> None:
        self.plan, self.host_key = plan, host_key

    def _submit(self) -> None:
        from gpuinfra.app.job_checks import check_packages, wishes_of
        from gpuinfra.app.job_destination import check_job_destination
        from gpuinfra.app.job_session import JobSession
        from gpuinfra.app.workspace import open_workspace, with_spec
        from gpuinfra.runner.assignment import assign

        workspace = open_workspace(self.settings)
        assigned = assign(workspace.path, self.spec.target_name)
        check_job_destination(workspace.path, assigned, self.spec)
        assigned, _ = with_spec(workspace, assigned, self.spec)
        wishes = wishes_of(assigned, self.options)
        check_packages(assigned, wishes.gpus, wishes.build_secrets)
        sink = self.progress.open_output()
        self.work = JobSession(
            workspace,
            assigned,
            wishes,
            self.progress,
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

    # The machine's end

    def _end(self) -> None:
        """Whatever comes of it is told; that it may be billed above all."""
        try:
            try:
                if not self._may_end():
                    self.progress.note(f"{self.spec.name} is left as it is: this run did not switch it on")
                    return
                if reason := self._known_reason():
                    self.progress.note(reason)
                    return
                self.receipt = self._switch_off()
            except KeyboardInterrupt:
                if self.interrupted:
                    raise
                self.interrupted = True
                self.progress.note(f"{self.spec.name} is switched off first; Ctrl-C once more leaves it as it is")
                self.receipt = self._switch_off()
        except Problem as found:
            before = self.problem.diagnostics if self.problem else ()
            on = (
                f"{self.spec.name} may be on, and billed until `gpuinfra down {self.spec.name}` or the end of its lease"
            )
            after = (replace(each, note=f"{each.note}; {on}" if each.note else on) for each in found.diagnostics)
            self.problem = Problem(*before, *after, exit_code=Exit.LEFT_BEHIND)

    def _may_end(self) -> bool:
        """Whether this run has used the machine that exists now, or has switched it on."""
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
        """Return the host key of the machine in Azure, or None if there is no machine. Another `up` may have been
        quicker to create it."""
        from gpuinfra.app.machines import explained, reach
        from gpuinfra.models.resource import Kind
        from gpuinfra.provision import tags
        from gpuinfra.provision.names import ref_of

        reached = reach(self.settings, self.spec.subscription, ASK_SECONDS, self.progress)
        with explained(f"looking at {self.spec.name}"):
            found = reached.cloud.look(ref_of(Kind.VM, self.spec.group_name, self.spec.name))
        return tags.get(found.tags, tags.HOST_KEY) if found else None

    def _switch_off(self) -> Receipt:
        from gpuinfra.app.down import end_machine
        from gpuinfra.app.machines import Named

        deletes = self.afterwards == DELETE
        if deletes and (lacking := self._unfetched()):
            self.progress.note(f"not all outputs of {lacking} are here: the machine is only switched off")
            deletes = False
        named = Named(self.spec.name, self.spec.group_name, self.spec.subscription)
        cause = f"gpuinfra run: the job {self.work.run.state.value}" if self.work else "gpuinfra run"
        return end_machine(self.settings, named, self.progress, delete=deletes, cause=cause)

    def _unfetched(self) -> str:
        """The runs whose outputs would go with the disk; ours is not in the history where it is not to be."""
        from gpuinfra.app.workspace import open_workspace

        try:
            found = {run.id for run in open_workspace(self.settings).history.unfetched(self.spec.name)}
        except Problem:
            return "earlier runs, as far as anybody knows,"
        run = self.work.run if self.work else None
        if run and (run.job or run.started) and not run.outputs.complete:
            found.add(run.id)
        # Others may have sent jobs there as well, and want what they wrote.
        found |= {each.run for each in self._strangers() if each.has_outputs}
        # On a machine that this run created, and sent no job to, there is nothing to lose.
        is_new = self.work is None and self._creates
        if self._neighbours() is None and not found and not is_new:
            return "other runs, as far as anybody knows,"
        return ", ".join(sorted(found))

    def _known_reason(self) -> str | None:
        """That nobody can find out whether somebody needs it is no reason to leave it on."""
        try:
            return self._reason_to_keep()
        except KeyboardInterrupt:
            if self.interrupted:
                self._leave()
            raise
        except Exception:
            logger.debug("it is not known whether somebody needs %s", self.spec.name, exc_info=True)
            return None

    def _reason_to_keep(self) -> str | None:
        if self.work and self.work.is_off:
            return None  # it is off already, and the receipt proves it
        if self.afterwards == KEEP:
            return f"{self.spec.name} is kept, as was asked: {self._stops}"
        run = self.work.run if self.work else None
        # One that was told to begin may run, though nobody heard that it does.
        has_begun = run and (run.started or (run.job and not self.interrupted))
        if run and has_begun and not run.state.is_over and run.reason != CANCELLED:
            return f"the job continues: {self._stops_after_job}"
        others = self._others(run.id if run else "")
        others += [each.run for each in self._strangers() if not each.is_over]
        if others:
            return f"{self.spec.name} is kept for {', '.join(others)}: {self._stops}"
        return None

    def _strangers(self) -> list[RemoteRun]:
        """Runs that the machine knows and this workspace does not; of its own it knows more by itself."""
        from gpuinfra.app.workspace import open_workspace

        neighbours = self._neighbours()
        if not neighbours:
            return []
        own: set[str] = set()
        with suppress(Problem):  # without a history all are strangers
            workspace = self.work.workspace if self.work else open_workspace(self.settings)
            own = {run.id for run in workspace.history.list()}
        return [each for each in neighbours if each.run not in own]

    def _neighbours(self) -> list[RemoteRun] | None:
        """Other runs on the machine, whichever workspace sent them; None if the machine cannot be asked."""
        from gpuinfra.models.consent import Contact
        from gpuinfra.runner.watch import RemoteRun

        if self.work and self.work.neighbours is not None:
            return self.work.neighbours
        self._answer = self._answer or self._ask()
        if self._answer.contact not in {Contact.ANSWERED, Contact.NOTHING_THERE}:
            return None
        own = self.work.run.id if self.work else ""
        return [RemoteRun(run.id, run.is_over, run.has_outputs) for run in self._answer.runs if run.id != own]

    def _ask(self) -> MachineAnswer:
        from gpuinfra.app.machines import reach
        from gpuinfra.app.remote_runs import ask_machine
        from gpuinfra.models.consent import Contact, MachineAnswer
        from gpuinfra.provision.errors import CloudError

        try:
            reached = reach(self.settings, self.spec.subscription, ASK_SECONDS, self.progress)
            return ask_machine(reached, self.spec.name, self.spec.group_name, self.spec)
        except (Problem, CloudError):
            return MachineAnswer(Contact.SILENT)

    @property
    def _stops(self) -> str:
        from gpuinfra.models.durations import format_duration

        idle = format_duration(self.spec.lifecycle.idle)
        return f"it is billed until `gpuinfra down {self.spec.name}`, until it is idle for {idle} or its lease ends"

    @property
    def _stops_after_job(self) -> str:
        """What the guest agent does with `afterRun`; it never deletes."""
        name = self.spec.name
        delete = f"; `gpuinfra down --delete {name}` deletes it" if self.afterwards == DELETE else ""
        return f"the agent of {name} deallocates it when the job has finished, or when its lease ends{delete}"

    def _others(self, own: str) -> list[str]:
        """Other runs that need it: their jobs go on there, or somebody fetches what they wrote."""
        from gpuinfra.app.run_control import log_of
        from gpuinfra.app.workspace import open_workspace

        found: list[str] = []
        with suppress(Problem):
            workspace = open_workspace(self.settings)
            history, name = workspace.history, self.spec.name
            for run in {run.id: run for run in (*history.unfinished(name), *history.unfetched(name))}.values():
                with log_of(workspace, run.id) as log:
                    is_followed = log.is_followed
                if run.id != own and (is_followed or self._goes_on(run)):
                    found.append(run.id)
        return found

    def _goes_on(self, run: Run) -> bool:
        """Of a run whose client is gone the machine itself is asked; it gives its outputs too."""
        from gpuinfra.app.run_control import fetch_outputs
        from gpuinfra.app.workspace import open_workspace
        from gpuinfra.runner.jobs.port import JobError

        # One that never began is not about to.
        if run.state.is_over or run.job is None:
            return False
        try:
            return not fetch_outputs(self.settings, run, self.progress).state.is_over
        except (Problem, JobError):
            # Nobody knows, unless it was found out that it is no more.
            return not open_workspace(self.settings).history.find(run.id).state.is_over

    def _leave(self) -> None:
        """Ctrl-C for the second time: nothing is waited for any more."""
        from gpuinfra.app.interruption import LOOK_SECONDS, say_what_exists
        from gpuinfra.app.machines import reach

        self.progress.note(f"{self.spec.name} is left as it is: {self._stops}")
        with suppress(Problem):
            reached = reach(self.settings, self.spec.subscription, LOOK_SECONDS, self.progress)
            say_what_exists(reached, self.spec.name, self.spec.group_name, self.progress)

    def result(self) -> RunResult:
        """Return what came of it, and the exit code."""
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


def _check(settings: Settings, spec: Spec, options: JobOptions) -> None:
    """All that can be known before a machine is billed."""
    from gpuinfra.app.job_checks import check_packages, wishes_of
    from gpuinfra.app.workspace import check_workspace
    from gpuinfra.runner.assignment import assign
    from gpuinfra.workbench.targets import check_destination
    from gpuinfra.workspace import find_workspace

    if spec.power != "running":
        note = f"the spec of `{spec.name}` says `power: {spec.power}`"
        diagnostic = Diagnostic(Code.MACHINE_IS_OFF, "the machine is to be off", note=note, help="`power: running`")
        raise Problem(diagnostic, exit_code=Exit.USAGE)
    workspace = find_workspace(settings.workspace)
    project = _expected(workspace, spec)
    check_destination(project, spec.target_name)
    assigned = assign(workspace, spec.target_name, project)
    wishes = wishes_of(assigned, options)
    check_packages(assigned, wishes.gpus, wishes.build_secrets)
    if settings.cloud == "sandbox" and assigned.in_container:
        _check_own_engine(spec)
    check_workspace(settings)


def _check_own_engine(spec: Spec) -> None:
    """A simulated machine runs containers by the Docker Engine of this computer."""
    from gpuinfra.app.up import WITHOUT_DOCKER
    from gpuinfra.runner.machine.checkup import LIMIT_SECONDS, look_at_docker
    from gpuinfra.runner.machine.local import LocalConnection

    check, _ = look_at_docker(LocalConnection(), getuser(), LIMIT_SECONDS * 2)
    if not check.passed:
        note = f"{check.found}; the simulated `{spec.name}` would use the engine of this computer; nothing was created"
        help_line = f"{check.help}; or {WITHOUT_DOCKER}"
        raise Problem(Diagnostic(Code.NO_ENGINE, "no Docker Engine on this computer", note=note, help=help_line))


def _expected(workspace: Path, spec: Spec) -> Project:
    """The project with the target's files: those that there are, or as `up` will write them."""
    from gpuinfra.models.target import Target
    from gpuinfra.parse.document import read_document
    from gpuinfra.workbench.compute import read_compute
    from gpuinfra.workbench.project import load_project
    from gpuinfra.workbench.runconfig import read_runconfig
    from gpuinfra.workbench.targets import compute_text, runconfig_text

    project, name, asked = load_project(workspace), spec.target_name, spec.target
    target = Target(
        name=name,
        machine=spec.name,
        type=asked.type,
        address=NOT_YET,
        port=22,
        username=spec.admin.username,
        host_key="",
        base_docker_image=asked.base_docker_image,
        nvidia_docker=asked.nvidia_docker,
        framework=asked.framework,
        conda_dependencies=asked.conda_dependencies,
    )
    if name not in project.computes:
        document = read_document(f"{name}.compute", compute_text(target).encode())
        project.computes[name] = read_compute(name, document)[0]
    if name not in project.runconfigs:
        document = read_document(f"{name}.runconfig", runconfig_text(target).encode())
        project.runconfigs[name] = read_runconfig(name, document)[0]
    return project
