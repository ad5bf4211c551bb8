"""A machine for one job, from its beginning to its end: what `gpuinfra run` tells."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuinfra.app.settings import Settings
from gpuinfra.cli.job_options import JobOptions, OnInterrupt
from gpuinfra.cli.up import LeftOn, bring
from gpuinfra.diagnostics import Exit, Problem

if TYPE_CHECKING:
    from gpuinfra.app.job_session import JobSession
    from gpuinfra.load.spec import Located
    from gpuinfra.models.receipt import Receipt
    from gpuinfra.models.run import Run
    from gpuinfra.models.spec import Spec
    from gpuinfra.runner.watch import RemoteRun
    from gpuinfra.views.progress import ProgressView

# Below the program's own logger, so that `--verbose` shows it.
logger = logging.getLogger(f"gpuinfra.{__name__}")

UP_SECONDS = 3600.0
KEEP, DELETE = "keep", "delete"
CANCELLED = "cancelled"


@dataclass
class RunWorkflow:
    """What happens, and what has to happen whatever happens: the machine's end."""

    settings: Settings
    located: Located
    options: JobOptions
    afterwards: str
    on_interrupt: OnInterrupt
    progress: ProgressView
    work: JobSession | None = None
    problem: Problem | None = None
    interrupted: bool = False
    receipt: Receipt | None = None

    @property
    def spec(self) -> Spec:
        """The machine's spec."""
        return self.located.spec

    def execute(self) -> None:
        """From beginning to end."""
        is_up = False
        try:
            bring(self.settings, self.located, UP_SECONDS, self.progress)
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

    def _submit(self) -> None:
        from gpuinfra.app.job_checks import check_packages, wishes_of
        from gpuinfra.app.job_session import JobSession
        from gpuinfra.app.workspace import open_workspace, with_spec
        from gpuinfra.runner.assignment import assign
        from gpuinfra.views.job import TerminalSink

        desk = open_workspace(self.settings)
        assigned, _ = with_spec(desk, assign(desk.workspace, self.spec.target_name), self.spec)
        wishes = wishes_of(assigned, self.options)
        check_packages(assigned, wishes.gpus, wishes.build_secrets)
        sink = TerminalSink(json=self.settings.json, progress=self.progress)
        self.work = JobSession(
            desk,
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

    def _switch_off(self) -> Receipt:
        from gpuinfra.app.machines import Named
        from gpuinfra.cli.down import end_machine

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
        if self.work and self.work.neighbours is None and not found:
            return "other runs, as far as anybody knows,"
        return ", ".join(sorted(found))

    def _known_reason(self) -> str | None:
        """That nobody can find out whether somebody needs it is no reason to leave it on."""
        try:
            return self._reason_to_keep()
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
        if self.work is None or not self.work.neighbours:
            return []
        own: set[str] = set()
        with suppress(Problem):  # without a history all are strangers
            own = {run.id for run in self.work.desk.history.list()}
        return [each for each in self.work.neighbours if each.run not in own]

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
            desk = open_workspace(self.settings)
            history, name = desk.history, self.spec.name
            for run in {run.id: run for run in (*history.unfinished(name), *history.unfetched(name))}.values():
                with log_of(desk, run.id) as log:
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

    def show(self) -> int:
        """What came of it, and the exit code."""
        from gpuinfra.app.job_result import show_end
        from gpuinfra.views import receipt as receipt_view

        is_left = self.receipt is not None and not self.receipt.is_proof
        if self.work is None:
            problems = self.problem.diagnostics if self.problem else ()
            receipt_view.show([self.receipt] if self.receipt else [], problems, json=self.settings.json)
            code = int(self.problem.exit_code if self.problem else Exit.INTERRUPTED)
        else:
            code = show_end(self.work, self.receipt, self.problem)
            if self.interrupted and not self.work.run.exit_code and not self.problem:
                code = Exit.INTERRUPTED
        return Exit.LEFT_BEHIND if is_left else code
