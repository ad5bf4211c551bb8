"""One job from the command line to its end: what `submit` and `run` share."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuinfra.app.access import cloud_of, power_of
from gpuinfra.app.interruption import TerminalClosedError
from gpuinfra.app.job_options import OnInterrupt
from gpuinfra.app.lease_renewal import renew_for, renewing
from gpuinfra.app.run_control import log_of, never_began
from gpuinfra.app.workspace import Workspace, linked, machine_of
from gpuinfra.diagnostics import Problem
from gpuinfra.models.run import Run, RunState

if TYPE_CHECKING:
    from gpuinfra.app.frontend import Frontend, JobOutput
    from gpuinfra.app.settings import Settings
    from gpuinfra.models.resource import MachineId
    from gpuinfra.models.spec import Spec
    from gpuinfra.runner.assignment import Assignment
    from gpuinfra.runner.heartbeat import Heartbeat
    from gpuinfra.runner.job_follower import JobFollower
    from gpuinfra.runner.jobs.log import LogFile
    from gpuinfra.runner.machine.link import Link
    from gpuinfra.runner.results.record import Record
    from gpuinfra.runner.watch import RemoteRun
    from gpuinfra.runner.wishes import Wishes

CANCEL_GRACE = 10.0
# What takes longer to be made ready has stopped getting anywhere.
PREPARING_SECONDS = 2 * 3600.0
# A connection that is down just when somebody wants to cancel is tried anew for so long.
CANCEL_SECONDS = 60.0
KILL_SECONDS = 3.0
# Older starts than these have left nothing on the target: it removes copies that no run used for a day.
MOST_ABANDONED = 20


@dataclass
class JobSession:
    """A job that this process begins, and follows unless it is told to let go."""

    workspace: Workspace
    assigned: Assignment
    wishes: Wishes
    progress: Frontend
    sink: JobOutput
    on_interrupt: OnInterrupt
    spec: Spec | None = None
    detach: bool = False
    without_terminal: OnInterrupt = OnInterrupt.DETACH
    """What Ctrl-C does where there is nobody to ask."""
    after_run: str | None = None
    was_interrupted: bool = False
    """Whether Ctrl-C has ended the job already: whoever presses it again does not want to wait for its outputs."""
    neighbours: list[RemoteRun] | None = None
    """Other runs on the target, whoever sent them; looked for where the machine is to end afterwards. None where the
    target was not asked, or did not answer."""
    is_off: bool = False
    """Whether the machine was found to be off: evicted, or ended by its own agent, or by somebody else."""
    run: Run = field(init=False)

    def __post_init__(self) -> None:
        run = _new_run(self.assigned, self.wishes, self.spec)
        self.run = replace(run, after_run=self.after_run)

    def go(self) -> Run:
        """Begin it, follow it, bring its outputs. Left running, it is still of that state."""
        from gpuinfra.app.settlement import settle_runs
        from gpuinfra.runner.problems import explained

        target, sends = self.assigned.target, self.wishes.send_credentials
        with (
            linked(target, self.progress, send_credentials=sends) as link,
            explained(target.name),
        ):
            link.power = power_of(self._cloud, self.machine, is_there=self.after_run is not None)
            link.warm(engine=self.assigned.in_container)
            record = self.workspace.record(self._with_commit(), tracked=self.assigned.tracked)
            try:
                with log_of(self.workspace, self.run.id) as log, self._attending(link) as attending:
                    log.try_lock()
                    record.begin()
                    with renewing(self._cloud, self.machine, self.progress, _without_work(record, attending)):
                        self._begin(record, link)
                        return record.run if self.detach else self._followed(record, link, log, attending)
            finally:
                self.run = record.run
                self.is_off = link.is_off
                if link.is_off and self.assigned.tracked:
                    (self.run,) = settle_runs(self.workspace.settings, [record.run]).runs
                if self.after_run is not None:
                    self._look_around(link)
                if not self.assigned.tracked:
                    _leave_no_trace(record)

    def _look_around(self, link: Link) -> None:
        from gpuinfra.runner.jobs.port import JobError
        from gpuinfra.runner.machine.connection import ConnectError
        from gpuinfra.runner.watch import runs_there

        with contextlib.suppress(ConnectError, JobError, KeyboardInterrupt):
            self.neighbours = [each for each in runs_there(link.remote) if each.run != self.run.id]

    def _with_commit(self) -> Run:
        from gpuinfra.runner.results.git import commit_of

        if commit := commit_of(self.workspace.path):
            self.run = replace(self.run, git_commit=commit.id, git_dirty=commit.dirty)
        return self.run

    @property
    def machine(self) -> Spec | MachineId | None:
        """Which machine of ours the job runs on, if it is one."""
        return machine_of(self.assigned.target, self.spec)

    @property
    def _cloud(self) -> Settings:
        return cloud_of(self.workspace.settings, self.assigned.target)

    @property
    def _said(self) -> dict[str, Any]:
        """What the target is told of who is there for the run, and what becomes of the machine then."""
        from gpuinfra.runner.heartbeat import begun

        return begun(self.after_run, detached=self.detach)

    def _attending(self, link: Link) -> Heartbeat:
        from gpuinfra.runner.heartbeat import Heartbeat

        return Heartbeat(link, self.run.id, self._said)

    def _followed(self, record: Record, link: Link, log: LogFile, attending: Heartbeat) -> Run:
        from gpuinfra.runner.job_follower import JobFollower

        return self._to_the_end(JobFollower(link, record, log, self.progress, self.sink, attending=attending))

    def _begin(self, record: Record, link: Link) -> None:
        from gpuinfra.app.host_keys import record_first_use
        from gpuinfra.runner.machine.connection import ConnectError
        from gpuinfra.runner.submission import CANCELLED, Submission

        abandoned = self._abandoned()
        submission = Submission(
            assignment=self.assigned,
            wishes=self.wishes,
            link=link,
            record=record,
            project=self.workspace.project_key(),
            progress=self.progress,
            output=self.progress.note,
            attended=self._said,
            abandoned=[run.id for run in abandoned],
        )
        try:
            submission.start()
        except BaseException as error:
            if record.run.state is RunState.PREPARING:
                # What the machine was told to begin may run there, though the answer never came.
                if (isinstance(error, ConnectError) and record.run.job) or not submission.undo():
                    record.change(reason=_reason(error))  # so it can be followed, and cancelled
                else:
                    is_cancelled = isinstance(error, KeyboardInterrupt) or record.refresh().reason == CANCELLED
                    state = RunState.CANCELLED if is_cancelled else RunState.FAILED
                    record.change(state=state, ended=datetime.now(UTC), reason=_reason(error), job=None)
            raise
        record_first_use(self.assigned.target, self.progress)
        with contextlib.suppress(Problem):  # the next start tries again
            for run in abandoned:
                never_began(self.workspace, run)

    def _abandoned(self) -> list[Run]:
        """Runs on the same target that never began, and whose clients are gone: killed, or cut off."""
        found = []
        history, target = self.workspace.history, self.run.target
        # A run that never began is recorded as lost by the next `gpuinfra runs`.
        lost = history.list(target=target, state=RunState.LOST, limit=MOST_ABANDONED)
        for run in (*history.list(target=target, state=RunState.PREPARING), *lost):
            with log_of(self.workspace, run.id) as log:
                if run.job is None and run.id != self.run.id and not log.is_followed:
                    found.append(run)
        return found

    @property
    def folder(self) -> Path:
        """Where its log and its outputs are."""
        return self.workspace.run_folder(self.run.id)

    def _to_the_end(self, following: JobFollower) -> Run:
        while True:
            try:
                return following.to_the_end()
            except BrokenPipeError:
                self._reader_left(following)
            except KeyboardInterrupt as interrupt:
                if self.was_interrupted:
                    raise
                self._follow_decision(following, self._decide(following, interrupt), interrupt)

    def _follow_decision(self, following: JobFollower, decision: OnInterrupt, interrupt: KeyboardInterrupt) -> None:
        """Detach, which raises the interrupt; or cancel the job; or do nothing, to follow it on."""
        match decision:
            case OnInterrupt.DETACH:
                following.attending.let_go()
                self._give_time(following.record.run)
                raise interrupt
            case OnInterrupt.CANCEL:
                self.was_interrupted = True
                self._cancel(following)

    def _reader_left(self, following: JobFollower) -> None:
        """Say what becomes of the job, and do it: `run` follows it to its end, `submit` detaches or cancels."""
        _leave_closed_streams()
        if self.after_run is not None:  # a machine that is to go off afterwards must not stay on
            self.progress.note("standard output was closed: the job is followed to its end")
            return
        # A run that is not tracked could not be found again.
        is_cancelled = self.on_interrupt is OnInterrupt.CANCEL or not self.assigned.tracked
        what = "is cancelled" if is_cancelled else "keeps running, and the client detaches from it"
        self.progress.note(f"standard output was closed: the job {what}")
        decision = OnInterrupt.CANCEL if is_cancelled else OnInterrupt.DETACH
        self._follow_decision(following, decision, TerminalClosedError())

    def _give_time(self, run: Run) -> None:
        """Nobody renews the lease of a job that is left: it gets the time that it may take, as with `--detach`."""
        if self.machine and not run.state.is_over:
            renew_for(self._cloud, self.machine, self.wishes.timeout, self.progress)

    def _cancel(self, following: JobFollower) -> None:
        from gpuinfra.runner.background import begin
        from gpuinfra.runner.job_follower import open_job
        from gpuinfra.runner.jobs.port import JobError
        from gpuinfra.runner.machine.connection import ConnectError
        from gpuinfra.runner.results.settle import CANCELLED

        if following.record.run.state.is_over:
            return  # it ended by itself, and only its outputs are waited for
        following.record.change(reason=CANCELLED)
        self.progress.note("cancelling")
        link, run = following.link, following.record.run
        patience = link.patience(CANCEL_SECONDS, engine_too=True)
        try:
            link.steadily(lambda: open_job(link, run).cancel(CANCEL_GRACE), patience)
        except KeyboardInterrupt:
            # Whoever presses it again waits for no grace, and neither does the job.
            ending = begin(lambda: open_job(link, run).cancel(0), "kill")
            with contextlib.suppress(ConnectError, JobError, TimeoutError):
                ending.result(KILL_SECONDS)
            raise
        except (ConnectError, JobError):
            following.record.change(reason="")  # it was not delivered: the job goes on, and may end well
            raise

    def _decide(self, following: JobFollower, interrupt: KeyboardInterrupt) -> OnInterrupt:
        """What becomes of the job. Asked is only who can answer; `ask` is then the answer to go on."""
        if following.record.run.state.is_over:
            # There is nothing to cancel. Outputs can be fetched later, but for those on a machine that is about to end.
            return OnInterrupt.DETACH if self.after_run is None else OnInterrupt.CANCEL
        if not self.assigned.tracked:
            return OnInterrupt.CANCEL  # nobody would find it again
        if self.on_interrupt is not OnInterrupt.ASK:
            return self.on_interrupt
        if not self.progress.can_ask:
            # A terminal that closes cancels no job. The machine still goes off: its agent waits for the job to finish.
            return OnInterrupt.DETACH if isinstance(interrupt, TerminalClosedError) else self.without_terminal
        question = "The job goes on. Detach from it, cancel it, or go on watching? [d/c/g]"
        answer = self.progress.ask_choice(question, "d", lambda: following.attending.ended is not None)
        return {"d": OnInterrupt.DETACH, "c": OnInterrupt.CANCEL}.get(answer or "", OnInterrupt.ASK)


def _without_work(record: Record, attending: Heartbeat) -> Callable[[], float]:
    """For how many seconds nothing was done for the run. To send its project, or to make its environment, is work."""
    began = time.monotonic()

    def seconds() -> float:
        if record.run.state is RunState.PREPARING:
            return max(0.0, time.monotonic() - began - PREPARING_SECONDS)
        return attending.seconds_without_work

    return seconds


def _reason(error: BaseException) -> str:
    if isinstance(error, Problem):
        return error.diagnostics[0].summary
    return "interrupted" if isinstance(error, KeyboardInterrupt) else str(error)[:300]


def _leave_closed_streams() -> None:
    """Give up the standard streams that are no longer read, as in `gpuinfra run … | head`; the log has the output."""
    # What is still buffered is tried again at every flush.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in [each for each in (sys.stdout, sys.stderr) if _is_closed(each.fileno())] or [sys.stdout]:
        os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _is_closed(number: int) -> bool:
    poll = select.poll()
    poll.register(number, select.POLLOUT)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


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
    from gpuinfra.runner.results.ids import new_run_id

    now, target = datetime.now(UTC), assigned.target
    return Run(
        id=new_run_id(now),
        target=target.name,
        type=target.type,
        configuration=assigned.configuration,
        command=assigned.command(wishes.script, wishes.words, ["python"]),
        state=RunState.PREPARING,
        created=now,
        machine=target.machine if spec or target.resource_id else "",
        resource_id=target.resource_id,
        script=wishes.script,
        spec_digest=spec.digest() if spec else None,
        image=assigned.base_image if assigned.in_container else None,
        simulated=target.simulated,
    )
