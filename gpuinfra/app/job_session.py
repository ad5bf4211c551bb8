"""Run one job from submission to its end, for `submit` and `run`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuinfra.app.access import power_of, settings_for_target
from gpuinfra.app.again import environment_digest, recorded_request
from gpuinfra.app.interruption import TerminalClosedError, leave_closed_streams
from gpuinfra.app.job_request import JobRequest, OnInterrupt
from gpuinfra.app.lease_renewal import renew_for, renewing
from gpuinfra.app.live_status import live_status
from gpuinfra.app.run_control import never_began
from gpuinfra.app.run_interrupts import RunInterrupts, interruptible
from gpuinfra.app.workspace import Workspace, linked, machine_of
from gpuinfra.diagnostics import Problem
from gpuinfra.models.run import Run, RunState

if TYPE_CHECKING:
    from gpuinfra.app.frontend import Frontend, JobOutput
    from gpuinfra.app.interrupt_question import MachineEnd
    from gpuinfra.app.settings import Settings
    from gpuinfra.models.consent import MachineRun
    from gpuinfra.models.plan import MachineId
    from gpuinfra.models.spec import Spec
    from gpuinfra.runner.follower import JobFollower
    from gpuinfra.runner.heartbeat import Heartbeat
    from gpuinfra.runner.job_spec import JobSpec
    from gpuinfra.runner.link import Link
    from gpuinfra.runner.log import LogFile
    from gpuinfra.runner.record import Record

CANCEL_GRACE = 10.0
# A preparation that takes longer than this is stuck.
PREPARING_SECONDS = 2 * 3600.0
# How long to retry a cancellation while the connection is down.
CANCEL_SECONDS = 60.0
# Older failed starts left nothing: the target removes copies that no run used for a day.
MOST_ABANDONED = 20
INTERRUPTED = "interrupted"
TITLE_WIDTH = 40


@dataclass
class JobSession:
    """A job that this process starts, and follows unless it detaches."""

    workspace: Workspace
    job: JobSpec
    frontend: Frontend
    sink: JobOutput
    on_interrupt: OnInterrupt
    spec: Spec | None = None
    request: JobRequest | None = None
    """What the user asked for, to repeat the run."""
    detach: bool = False
    without_terminal: OnInterrupt = OnInterrupt.DETACH
    """What Ctrl-C does without a terminal to ask."""
    after_run: str | None = None
    """What `run` does with the machine afterwards; None for `submit`."""
    stops_machine: bool = False
    """Whether the machine is to be deallocated or deleted after the job."""
    was_interrupted: bool = False
    """Whether Ctrl-C has already ended the job. A second Ctrl-C does not wait for the outputs."""
    neighbours: list[MachineRun] | None = None
    """Other runs on the target, from any workspace; None if it was not asked or did not answer."""
    is_unneeded: Callable[[], bool] | None = None
    """Return whether the machine goes off now, after its runs were listed: it then refuses new jobs."""
    hold: Callable[[], bool] | None = None
    """Keep the machine on for a look at the failed job, after its runs were listed. Return whether it stays on."""
    interrupts: RunInterrupts | None = None
    """How Ctrl-C reaches this job if it is one of several; None in the main thread."""
    closed_until: float = 0.0
    """See `MachineRuns`."""
    is_off: bool = False
    """Whether the machine was found off: evicted, or stopped by its agent or another client."""
    tree: str = field(default="", init=False)
    """The job's copy of the project on the target, once it was sent."""
    run: Run = field(init=False)
    _record: Record | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        run = new_run(self.job, self.spec)
        request = recorded_request(self.request, self.job) if self.request else None
        self.run = replace(run, after_run=self.after_run, request=request)

    def run_to_end(self) -> None:
        """Start the job, follow it and fetch its outputs. With `detach`, return as soon as it runs."""
        try:
            self._run()
        except KeyboardInterrupt:
            if self.run.state is RunState.PREPARING and self.run.job is None:  # there is nothing to follow
                end: dict[str, Any] = {"state": RunState.CANCELLED, "reason": INTERRUPTED, "ended": datetime.now(UTC)}
                self.run = replace(self.run, **end)
                with contextlib.suppress(Problem):  # it may not be recorded yet
                    history = self.workspace.history
                    # Read first: a write would create a state folder that is not complete.
                    history.update(history.find(self.run.id).id, **end)
            raise

    def _run(self) -> None:
        from gpuinfra.app.settlement import settle_runs
        from gpuinfra.runner.errors import job_problems

        target = self.job.target
        with (
            linked(target, self.frontend, send_credentials=self.job.send_credentials) as link,
            self.interrupts.of(link) if self.interrupts else contextlib.nullcontext(),
            job_problems(target.name),
        ):
            if self.machine:
                power = power_of(
                    self._target_settings, self.machine, is_there=self.is_of_run, resource_id=target.resource_id
                )
                link.power = power
            link.warm_up(engine=self.job.in_container)
            record = self._record = self.workspace.record(self._with_commit(), tracked=self.job.tracked)
            heartbeat = self._heartbeat(link)
            try:
                with self.workspace.log_of(self.run.id) as log, heartbeat:
                    log.try_lock()
                    record.begin()
                    with self._renewing(record, heartbeat):
                        self._begin(record, link)
                        if not self.detach:
                            self._follow(record, link, log, heartbeat)
            finally:
                self.run = record.run
                self.is_off = link.is_off
                if link.is_off and self.job.tracked:
                    (self.run,) = settle_runs(self.workspace.settings, [record.run]).runs
                if self.stops_machine:
                    self._leave_machine(link, heartbeat)
                if not self.job.tracked:
                    _leave_no_trace(record)

    def _leave_machine(self, link: Link, heartbeat: Heartbeat) -> None:
        """List the other runs. Keep the machine on for a look at a failed job, or close a machine that goes off now."""
        from gpuinfra.runner.errors import ConnectError, JobError
        from gpuinfra.runner.remote_runs import list_runs

        link.resume()  # an interrupt that came after the job's end has nothing left to end
        with contextlib.suppress(ConnectError, JobError, KeyboardInterrupt):
            self.neighbours = [each for each in list_runs(link.remote).runs if each.id != self.run.id]
            if self._is_worth_a_look and self.hold and self.hold():
                heartbeat.keep_machine()
                return
            if self.is_unneeded and self.is_unneeded():
                self.closed_until = list_runs(link.remote, close=True).closed_until

    @property
    def _is_worth_a_look(self) -> bool:
        """Whether the job failed by itself, and the user asked to look at the machine then."""
        run = self.run
        has_failed = run.state is RunState.FAILED and run.started is not None and bool(run.exit_code)
        return has_failed and self.stops_machine and bool(self.job.keep_on_failure) and not self.is_off

    def _with_commit(self) -> Run:
        from gpuinfra.runner.record import commit_of

        if commit := commit_of(self.workspace.path):
            self.run = replace(self.run, git_commit=commit.id, git_dirty=commit.dirty)
        return self.run

    @property
    def current_run(self) -> Run:
        """The run as it is now; `run` is its state at the end."""
        return self._record.run if self._record else self.run

    @property
    def is_of_run(self) -> bool:
        """Whether `run` prepared the machine for this job: then the job is followed to its end if possible."""
        return self.after_run is not None

    @property
    def machine(self) -> Spec | MachineId | None:
        """Our machine that the job runs on, or None."""
        return machine_of(self.job.target, self.spec)

    @property
    def _target_settings(self) -> Settings:
        return settings_for_target(self.workspace.settings, self.job.target)

    def _renewing(self, record: Record, heartbeat: Heartbeat) -> contextlib.AbstractContextManager[object]:
        """Renew the machine's lease while the job works; a target without a machine has no lease."""
        if self.machine is None:
            return contextlib.nullcontext()
        return renewing(self._target_settings, self.machine, self.frontend, _without_work(record, heartbeat))

    @property
    def _first_heartbeat(self) -> dict[str, Any]:
        """The first heartbeat for the target: whether a client follows, and what happens to the machine afterwards."""
        from gpuinfra.runner.heartbeat import first_heartbeat

        look = self.job.keep_on_failure if self.stops_machine else None
        return first_heartbeat(self.after_run, detached=self.detach, keep_on_failure=look)

    def _heartbeat(self, link: Link) -> Heartbeat:
        from gpuinfra.runner.heartbeat import Heartbeat

        return Heartbeat(link, self.run.id, self._first_heartbeat)

    def _follow(self, record: Record, link: Link, log: LogFile, heartbeat: Heartbeat) -> None:
        from gpuinfra.app.job_ports import forwarded_ports
        from gpuinfra.runner.follower import JobFollower

        with (
            forwarded_ports(link, record.run, self.frontend),
            live_status(self.workspace.settings, record, heartbeat, self.frontend),
        ):
            self._to_the_end(JobFollower(link, record, log, self.frontend, self.sink, heartbeat=heartbeat))

    def _begin(self, record: Record, link: Link) -> None:
        from gpuinfra.app.host_keys import record_first_use
        from gpuinfra.runner.errors import ConnectError
        from gpuinfra.runner.job import StopReason
        from gpuinfra.runner.submission import Submission

        # The project may come from others, and its spec decides which values leave this computer.
        if self.spec and self.spec.job and (names := ", ".join(self.spec.job.secrets)):
            self.frontend.note(f"secrets for the job, named by the spec: {names}")
        abandoned = self._abandoned()
        submission = Submission(
            job=self.job,
            link=link,
            record=record,
            project=self.workspace.project_key(),
            progress=self.frontend,
            output=self.frontend.note,
            first_heartbeat=self._first_heartbeat,
            abandoned=[run.id for run in abandoned],
            terminal={} if self.detach else self.frontend.terminal,
        )
        try:
            with interruptible(link):
                submission.start()
        except BaseException as error:
            if record.run.state is RunState.PREPARING:
                # The job may run there although the machine's answer to the start never arrived.
                if (isinstance(error, ConnectError) and record.run.job) or not submission.undo():
                    record.change(reason=_reason(error))  # so that it can be followed and cancelled
                else:
                    is_cancelled = isinstance(error, KeyboardInterrupt)
                    is_cancelled = is_cancelled or record.refresh().reason == StopReason.CANCELLED
                    state = RunState.CANCELLED if is_cancelled else RunState.FAILED
                    record.change(state=state, ended=datetime.now(UTC), reason=_reason(error), job=None)
            raise
        finally:
            self.tree = submission.tree
        if self.job.target.address:
            record_first_use(self.job.target, self.frontend)
        with contextlib.suppress(Problem):  # the next start tries again
            for run in abandoned:
                never_began(self.workspace, run)

    def _abandoned(self) -> list[Run]:
        """Return runs on the same target that never began and whose clients were killed or disconnected."""
        found = []
        history, target = self.workspace.history, self.run.target
        # The next `gpuinfra runs` records a run that never began as lost.
        lost = history.list(target=target, state=RunState.LOST, limit=MOST_ABANDONED)
        for run in (*history.list(target=target, state=RunState.PREPARING), *lost):
            with self.workspace.log_of(run.id) as log:
                if run.job is None and run.id != self.run.id and not log.is_followed:
                    found.append(run)
        return found

    @property
    def folder(self) -> Path:
        """The folder with its log and outputs."""
        return self.workspace.run_folder(self.run.id)

    def _to_the_end(self, following: JobFollower) -> None:
        while True:
            try:
                with interruptible(following.link):
                    following.follow_to_end()
            except BrokenPipeError:
                self._reader_left(following)
            except KeyboardInterrupt as interrupt:
                if self.was_interrupted:
                    raise
                self._follow_decision(following, self._decide(following, interrupt), interrupt)
            else:
                return

    def _follow_decision(self, following: JobFollower, decision: OnInterrupt, interrupt: KeyboardInterrupt) -> None:
        """Detach, which raises the interrupt; cancel the job; or do nothing, to keep following it."""
        from gpuinfra.runner.errors import ConnectError

        match decision:
            case OnInterrupt.DETACH:
                self.frontend.note("detaching: the job keeps running")
                if self.interrupts:  # the interrupt closed the connection, which the heartbeat uses
                    with contextlib.suppress(ConnectError):
                        _ = following.link.connection
                following.heartbeat.detach()
                if not following.record.run.state.is_over:
                    self.extend_lease()
                raise interrupt
            case OnInterrupt.CANCEL:
                self.was_interrupted = True
                self._cancel(following)

    def _reader_left(self, following: JobFollower) -> None:
        """Report and decide what happens to the job: `run` follows it to its end, `submit` detaches or cancels."""
        leave_closed_streams()
        if self.is_of_run:  # a machine that is to stop afterwards must not stay on
            self.frontend.note("standard output was closed: the job is followed to its end")
            return
        # A run that is not tracked could not be found again.
        is_cancelled = self.on_interrupt is OnInterrupt.CANCEL or not self.job.tracked
        what = "is cancelled" if is_cancelled else "keeps running, and the client detaches from it"
        self.frontend.note(f"standard output was closed: the job {what}")
        decision = OnInterrupt.CANCEL if is_cancelled else OnInterrupt.DETACH
        self._follow_decision(following, decision, TerminalClosedError())

    def extend_lease(self) -> None:
        """Extend the lease by the job's time limit, because no client will renew it."""
        if self.machine:
            renew_for(self._target_settings, self.machine, self.run.id, self._longest_seconds, self.frontend)

    @property
    def _longest_seconds(self) -> float | None:
        """The job's time limit, with the time for a look at its failure; None without a limit."""
        look = self.job.keep_on_failure if self.stops_machine else None
        return self.job.timeout + (look or 0.0) if self.job.timeout else None

    def _cancel(self, following: JobFollower) -> None:
        from gpuinfra.runner.errors import ConnectError, JobError
        from gpuinfra.runner.follower import open_job
        from gpuinfra.runner.job import StopReason
        from gpuinfra.runner.progress import in_thread

        if following.record.run.state.is_over:
            return  # it has already ended, and only its outputs are missing
        following.record.change(reason=StopReason.CANCELLED.value)
        self.frontend.note("cancelling")
        link, run = following.link, following.record.run
        policy = link.retry_policy(CANCEL_SECONDS, retry_engine=True)
        try:
            link.retry(lambda: open_job(link, run).cancel(CANCEL_GRACE), policy)
        except KeyboardInterrupt:
            # After a second Ctrl-C, kill the job without a grace period. Wait until it is killed, at most until its
            # grace period would end it anyway: without this client, nothing else kills it earlier.
            ending = in_thread(lambda: open_job(link, run).cancel(0), "kill")
            with contextlib.suppress(ConnectError, JobError, TimeoutError):
                ending.result(CANCEL_GRACE)
            raise
        except (ConnectError, JobError):
            following.record.change(reason="")  # it was not delivered: the job continues and may succeed
            raise

    def _decide(self, following: JobFollower, interrupt: KeyboardInterrupt) -> OnInterrupt:
        """Decide what happens to the job. Ask only if a person can answer; `ask` then means to keep following."""
        if following.record.run.state.is_over:
            # There is nothing to cancel. Outputs can be fetched later, except from a machine that is about to stop.
            return OnInterrupt.CANCEL if self.is_of_run else OnInterrupt.DETACH
        if not self.job.tracked:
            return OnInterrupt.CANCEL  # no command could find it again
        on_interrupt = (self.interrupts and self.interrupts.decision) or self.on_interrupt
        if on_interrupt is not OnInterrupt.ASK:
            return on_interrupt
        if not self.frontend.can_ask:
            # A closed terminal does not cancel the job. The machine still stops: its agent waits for the job to finish.
            return OnInterrupt.DETACH if isinstance(interrupt, TerminalClosedError) else self.without_terminal
        from gpuinfra.app.interrupt_question import interrupt_question

        try:
            question = interrupt_question(self.machine_end(), datetime.now(UTC))
            answer = self.frontend.ask_choice(question, "d", lambda: following.heartbeat.ended is not None)
        except KeyboardInterrupt:  # a second Ctrl-C before the question
            return OnInterrupt.DETACH
        return {"d": OnInterrupt.DETACH, "c": OnInterrupt.CANCEL}.get(answer or "", OnInterrupt.ASK)

    def machine_end(self) -> MachineEnd | None:
        """Return what ends the job's machine, as far as it is known here: Azure is not asked for it."""
        from gpuinfra.app.interrupt_question import MachineEnd, time_after_detach
        from gpuinfra.app.machine_costs import hourly_price

        if self.machine is None:
            return None
        within = time_after_detach(self.spec.lifecycle, self._longest_seconds) if self.spec else None
        simulated = self.run.simulated
        price = hourly_price(self.workspace.settings, self.machine.name, simulated=simulated)
        return MachineEnd(self.machine.name, self.after_run, within, price, has_local_time=not simulated)


def _without_work(record: Record, heartbeat: Heartbeat) -> Callable[[], float]:
    """Return a function for the seconds without work. Sending the project and building the environment are work."""
    began = time.monotonic()

    def seconds() -> float:
        if record.run.state is RunState.PREPARING:
            return max(0.0, time.monotonic() - began - PREPARING_SECONDS)
        return heartbeat.idle_seconds

    return seconds


def _reason(error: BaseException) -> str:
    if isinstance(error, Problem):
        return error.diagnostics[0].summary
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else str(error)[:300]


def _leave_no_trace(record: Record) -> None:
    """Delete everything but the outputs, for `TrackedRun: false`."""
    import shutil

    with contextlib.suppress(OSError):
        for each in record.folder.iterdir():
            if each.is_dir() and each.name != "outputs":
                shutil.rmtree(each)
            elif not each.is_dir():
                each.unlink()
        record.folder.rmdir()  # if it has no outputs


def _in_one_line(title: str) -> str:
    """Return a job's title for tables; the run's command has all of it."""
    words = " ".join(title.split())
    return words if len(words) <= TITLE_WIDTH else f"{words[: TITLE_WIDTH - 3]}..."


def new_run(job: JobSpec, spec: Spec | None) -> Run:
    """Return the record of a job that is about to start."""
    from gpuinfra.runner.record import new_run_id

    now, target = datetime.now(UTC), job.target
    return Run(
        id=new_run_id(now),
        target=target.name,
        type=target.type,
        configuration=job.configuration,
        command=job.command(["python"]),
        state=RunState.PREPARING,
        created=now,
        machine=target.machine if spec or target.resource_id else "",
        resource_id=target.resource_id,
        vm_id=target.vm_id,
        script=_in_one_line(job.title) if job.program else job.script,
        spec_digest=spec.digest() if spec else None,
        image=job.image_name if job.in_container else None,
        simulated=target.simulated,
        ports=dict(job.ports),
        environment_digest=environment_digest(job),
    )
