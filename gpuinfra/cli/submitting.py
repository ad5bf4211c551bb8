"""One job from the command line to its end: what `submit` and `run` share."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gpuinfra.cli.following import log_of, lost_outputs
from gpuinfra.cli.job_options import JobOptions, OnInterrupt, size_of, usage, variables_of
from gpuinfra.cli.jobs import Desk, linked
from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem, Severity
from gpuinfra.models.run import Run, RunState

if TYPE_CHECKING:
    from gpuinfra.models.receipt import Receipt
    from gpuinfra.models.spec import Spec
    from gpuinfra.views.job import TerminalSink
    from gpuinfra.views.progress import ProgressView
    from gpuinfra.workbench.project import Project
    from runner.assignment import Assignment
    from runner.following import Following
    from runner.jobs.log import LogFile
    from runner.link import Link
    from runner.record import Record
    from runner.wishes import Wishes

CANCEL_GRACE = 10.0
# As the program `timeout` ends, where the job itself says that all is well.
TIMED_OUT = 124
LARGEST_CODE = 255


@dataclass
class Submitting:
    """A job that this process begins, and follows unless it is told to let go."""

    desk: Desk
    assigned: Assignment
    wishes: Wishes
    progress: ProgressView
    sink: TerminalSink
    on_interrupt: OnInterrupt
    spec: Spec | None = None
    detach: bool = False
    without_terminal: OnInterrupt = OnInterrupt.DETACH
    """What Ctrl-C does where there is nobody to ask."""
    after_run: str | None = None
    was_interrupted: bool = False
    """Whether Ctrl-C has ended the job already: whoever presses it again does not want to wait for its outputs."""
    run: Run = field(init=False)

    def __post_init__(self) -> None:
        run = _new_run(self.assigned, self.wishes, self.spec)
        self.run = replace(run, after_run=self.after_run)

    def go(self) -> Run:
        """Begin it, follow it, bring its outputs. Left running, it is still of that state."""
        from runner.problems import explained

        target = self.assigned.target
        with linked(self.desk.settings, target, self.progress) as link, explained(target.name):
            link.warm(engine=self.assigned.in_container)
            record = self.desk.record(self._with_commit(), tracked=self.assigned.tracked)
            try:
                with log_of(self.desk, self.run.id) as log:
                    log.try_lock()
                    record.begin()
                    self._begin(record, link)
                    return record.run if self.detach else self._to_the_end(self._following(record, link, log))
            finally:
                self.run = record.run
                if not self.assigned.tracked:
                    _leave_no_trace(record)

    def _with_commit(self) -> Run:
        from runner.git import commit_of

        if commit := commit_of(self.desk.workspace):
            self.run = replace(self.run, git_commit=commit.id, git_dirty=commit.dirty)
        return self.run

    def _following(self, record: Record, link: Link, log: LogFile) -> Following:
        from runner.following import Following

        return Following(link, record, log, self.progress, self.sink)

    def _begin(self, record: Record, link: Link) -> None:
        from runner.connection import ConnectError
        from runner.submission import Submission

        submission = Submission(
            assignment=self.assigned,
            wishes=self.wishes,
            link=link,
            record=record,
            project=self.desk.project_key(),
            progress=self.progress,
            output=self.progress.note,
        )
        try:
            submission.start()
        except BaseException as error:
            if record.run.state is RunState.PREPARING:
                is_cancelled = isinstance(error, KeyboardInterrupt)
                state = RunState.CANCELLED if is_cancelled else RunState.FAILED
                record.change(state=state, ended=datetime.now(UTC), reason=_reason(error))
                if not isinstance(error, ConnectError | KeyboardInterrupt):
                    record.change(job=None)  # it never was, and wrote nothing
            raise

    @property
    def folder(self) -> Path:
        """Where its log and its outputs are."""
        return self.desk.folder(self.run.id)

    def _to_the_end(self, following: Following) -> Run:
        while True:
            try:
                return following.finish(following.follow())
            except BrokenPipeError:
                if self.after_run is None:
                    raise
                _print_no_more()  # that nobody reads is no reason to leave a machine on
            except KeyboardInterrupt:
                if self.was_interrupted:
                    raise
                match self._decide(following.record.run):
                    case OnInterrupt.DETACH:
                        raise
                    case OnInterrupt.CANCEL:
                        self.was_interrupted = True
                        self._cancel(following)

    def _cancel(self, following: Following) -> None:
        from runner.following import CANCELLED, open_job

        if following.record.run.state.is_over:
            return  # it ended by itself, and only its outputs are waited for
        following.record.change(reason=CANCELLED)
        self.progress.note("cancelling")
        open_job(following.link, following.record.run).cancel(CANCEL_GRACE)

    def _decide(self, run: Run) -> OnInterrupt:
        """What becomes of the job. Asked is only who can answer; `ask` is then the answer to go on."""
        if not self.assigned.tracked:
            return OnInterrupt.CANCEL  # nobody would find it again
        if self.on_interrupt is not OnInterrupt.ASK:
            return self.on_interrupt
        if run.state.is_over or not sys.stdin.isatty() or self.desk.settings.json:
            return self.without_terminal
        question = "The job goes on. Detach from it, cancel it, or go on watching? [d/c/g]"
        try:
            with self.progress.paused():
                answer = str(typer.prompt(question, default="d", err=True)).strip().lower()[:1]
        except typer.Abort:  # Ctrl-C once more, or nobody there any more
            return OnInterrupt.DETACH
        return {"d": OnInterrupt.DETACH, "c": OnInterrupt.CANCEL}.get(answer, OnInterrupt.ASK)


def _reason(error: BaseException) -> str:
    if isinstance(error, Problem):
        return error.diagnostics[0].summary
    return "interrupted" if isinstance(error, KeyboardInterrupt) else str(error)[:300]


def _print_no_more() -> None:
    """The reader has gone, as in `gpuinfra run … | head`; what the job prints is in its log."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _leave_no_trace(record: Record) -> None:
    """`TrackedRun: false`: of such a run there are its outputs, and nothing else."""
    import shutil

    with contextlib.suppress(OSError):
        for each in record.folder.iterdir():
            if each.is_dir() and each.name != "outputs":
                shutil.rmtree(each)
            elif not each.is_dir():
                each.unlink()
        record.folder.rmdir()  # where it has written nothing


def _new_run(assigned: Assignment, wishes: Wishes, spec: Spec | None) -> Run:
    from runner.ids import new_run_id

    now, target = datetime.now(UTC), assigned.target
    return Run(
        id=new_run_id(now),
        target=target.name,
        type=target.type,
        configuration=assigned.configuration,
        command=assigned.command(wishes.script, wishes.words, ["python"]),
        state=RunState.PREPARING,
        created=now,
        machine=spec.name if spec else "",
        script=wishes.script,
        spec_digest=spec.digest() if spec else None,
        image=assigned.base_image if assigned.in_container else None,
        simulated=target.simulated,
    )


# Before anything is asked of anybody


def wishes_of(assigned: Assignment, options: JobOptions) -> Wishes:
    """What the options mean, for this project; what cannot be raises a Problem."""
    from runner.script import script_path
    from runner.wishes import Wishes, parse_gpus

    script = options.script or assigned.script
    if script is None:
        raise usage("no script", "which script is to run?", "for example `gpuinfra submit -c my_dsvm train.py`")
    gpus = parse_gpus(options.gpus) if options.gpus is not None else None
    if options.gpus is not None and gpus is None:
        help_line = "`all`, how many as `2`, or which ones as `0,1` or `device=0`"
        raise usage("invalid GPUs", f"`--gpus {options.gpus}`", help_line)
    plain, hidden = variables_of(options)
    _check_container_options(assigned, options)
    return Wishes(
        script=script_path(assigned.project, script, Path.cwd()),
        words=options.words,
        gpus=gpus,
        memory=size_of("--memory", options.memory),
        shm_size=size_of("--shm-size", options.shm_size),
        timeout=_timeout_of(options),
        environment=plain,
        secrets=hidden,
        require_gpu_use=options.require_gpu_use,
        rebuild=options.rebuild,
    )


def _timeout_of(options: JobOptions) -> float | None:
    from gpuinfra.cli.durations import short_seconds_of

    if options.timeout is None:
        return None
    seconds = short_seconds_of("--timeout", options.timeout)
    if not seconds:
        raise usage("invalid duration", f"`--timeout {options.timeout}` leaves no time for the job", "as `30s`, `2h`")
    return seconds


def check_detach(assigned: Assignment) -> None:
    """Whoever leaves a run that is not remembered could never come back to it, nor to what it writes."""
    if not assigned.tracked:
        note = f"`TrackedRun: false` in `{assigned.configuration}.runconfig`: nobody would find the run again"
        raise usage("no run to leave", note, "leave out `--detach`, or have the run tracked")


def _check_container_options(assigned: Assignment, options: JobOptions) -> None:
    if assigned.in_container:
        return
    for name, value in (("--memory", options.memory), ("--shm-size", options.shm_size)):
        if value is not None:
            note = f"`{name}` is for containers, and `{assigned.target.name}` is of type `{assigned.target.type}`"
            raise usage("an option without effect", note, "leave it out")


def check_packages(assigned: Assignment, project: Project | None = None) -> None:
    """A package for the CPU would make a job that has a GPU run without it, and say nothing."""
    from gpuinfra.lint.packages import cpu_only
    from gpuinfra.workbench.project import load_project
    from runner.assignment import WantsGpu

    if assigned.conda is None or assigned.gpu is not WantsGpu.REQUIRED or not assigned.in_container:
        return
    file = assigned.conda.document.source.name
    found = [
        finding.diagnostic
        for finding in cpu_only(project or load_project(assigned.project))
        if finding.diagnostic.severity is Severity.ERROR
        and finding.diagnostic.span
        and finding.diagnostic.span.file == file
    ]
    if found:
        raise Problem(*(replace(each, help=each.help or "`gpuinfra lint --fix` mends it") for each in found))


# Afterwards


def problems_of(run: Run, *, require_gpu_use: bool) -> list[Diagnostic]:
    """What is wrong with a run that its exit code does not tell."""
    found: list[Diagnostic] = []
    if run.state.is_over and run.started and not run.outputs.complete:
        found += lost_outputs(run).diagnostics
    if require_gpu_use and run.state is RunState.COMPLETED and (run.usage is None or not run.usage.was_used):
        seen = "no sample of it was taken" if run.usage is None else f"{run.usage.samples} samples saw no work"
        help_line = "look at what the job prints; `gpuinfra lint` finds packages for the CPU"
        found.append(
            Diagnostic(Code.GPU_NOT_USED, "the GPU was not used", note=f"run {run.id}: {seen}", help=help_line)
        )
    return found


def exit_code_of(run: Run, problems: Sequence[Diagnostic]) -> int:
    """The job's own, where there is one that says that something is wrong."""
    if run.exit_code and 0 < run.exit_code <= LARGEST_CODE:
        return run.exit_code
    ends = {RunState.TIMED_OUT: TIMED_OUT, RunState.CANCELLED: Exit.INTERRUPTED, RunState.LOST: Exit.LOST}
    return ends.get(run.state, Exit.DONE if run.state is RunState.COMPLETED and not problems else Exit.FAILED)


def show_end(work: Submitting, receipt: Receipt | None = None, problem: Problem | None = None) -> int:
    """What came of it, and the exit code."""
    from gpuinfra.views import job as view

    run = work.run
    problems = [
        *(problem.diagnostics if problem else ()),
        *problems_of(run, require_gpu_use=work.wishes.require_gpu_use),
    ]
    view.show_result(run, work.folder, receipt, problems, json=work.desk.settings.json)
    if problem:
        return problem.exit_code
    return exit_code_of(run, problems) if run.state.is_over else Exit.DONE
