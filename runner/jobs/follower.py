"""Follow a job to its end: what it prints, what it writes, how it ends. It also runs without a follower."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from gpuinfra.models.run import GpuUsage, Outputs, Run
from gpuinfra.runner.errors import Broken, ConnectError, JobError, RemoteError, SwitchedOff, Unreachable
from gpuinfra.runner.gpu.check import usage_warning
from gpuinfra.runner.jobs.container import ContainerJob
from gpuinfra.runner.jobs.heartbeat import Heartbeat, ended_by_machine
from gpuinfra.runner.jobs.job import Ended, Frame, Job, StopReason
from gpuinfra.runner.jobs.log import LogFile
from gpuinfra.runner.jobs.process import ProcessJob
from gpuinfra.runner.jobs.remote_runs import (
    UNKNOWN_EXIT_CODE,
    count_of,
    ended_of,
    forget_run,
    read_state,
    read_usage,
    runs_there,
    start_watch,
)
from gpuinfra.runner.jobs.settle import CANCELLED, end_fields, off_help
from gpuinfra.runner.link import Link, is_passing
from gpuinfra.runner.outputs.fetch import Fetched, fetch
from gpuinfra.runner.progress import Progress
from gpuinfra.runner.record import Record

# A machine that restarts, or a laptop that wakes up elsewhere, is back within this.
LOST_SECONDS = 600.0
FINAL_SECONDS = 300.0
FIRST_FETCH, LONGEST_BETWEEN = 5.0, 30.0
# A connection that held for this long was one.
STEADY_SECONDS = 60.0

# Why the remote side gives something not: what it may not read, and what has nothing in it.
NOT_ALLOWED = "permission"
CARRY_NOTHING = ("neither a file nor a folder", "a symbolic link that leads out of `outputs`")


def open_job(link: Link, run: Run) -> Job:
    """A run's job, found again on its target."""
    if run.job is None:
        raise JobError("the job never began", f"run {run.id} ended before it", "run it again")
    if run.job.kind == "container":
        return ContainerJob(link.engine, run.job.id)
    return ProcessJob(link.remote, run.job.id)


class JobFollower:
    """One run, followed by this process alone: the follower writes its log and its outputs."""

    def __init__(
        self,
        link: Link,
        record: Record,
        log: LogFile,
        progress: Progress,
        show: Callable[[Frame], None],
        *,
        attending: Heartbeat | None = None,
        takes_over: bool = False,
    ) -> None:
        """The log is locked by now, so no other process follows. `takes_over`: another process started the job."""
        self._takes_over = takes_over
        self.link, self.record, self.progress = link, record, progress
        self._log, self._show = log, show
        self.attending = attending or Heartbeat(link, record.run.id)
        """It hears of what the job prints, and knows how the job was when the machine last answered."""
        if record.run.started:
            self.attending.began(record.run.started)
        self._retry_policy = link.retry_policy(LOST_SECONDS, self._report_loss, engine_too=True)
        self._is_lost = False
        self._is_kept = False
        """Whether the target has more of it than is here."""
        self._bringing: threading.Thread | None = None

    @property
    def outputs_folder(self) -> Path:
        """Where its outputs are brought to."""
        return self.record.folder / "outputs"

    def to_the_end(self) -> Run:
        """Follow it, bring what it wrote, and write down how it ended; or that its machine is off."""
        try:
            return self.finish(self.follow())
        except SwitchedOff as error:
            return self._gone_off(error)

    def follow(self) -> Ended:
        """Show what it prints until it ends; a lost connection is made again."""
        if self._takes_over and self._is_container:
            self._watch_again()
        with self._fetching(), self.attending.reporting_silence(self.progress.note):
            while True:
                began = time.monotonic()
                try:
                    if ended := self._read():
                        return ended
                except (ConnectError, JobError) as error:
                    if ended := self._ended_without_log(error):
                        return ended
                    if time.monotonic() - began > STEADY_SECONDS:
                        self._retry_policy.reset()  # it was reached meanwhile, and had nothing to say
                    self.link.lost(error)
                    self._wait(error)

    def _watch_again(self) -> None:
        """Start a watcher: the client that started the job may have been killed before. A second one is refused."""
        run = self.record.run
        with contextlib.suppress(ConnectError, JobError):
            job = ContainerJob(self.link.engine, run.job.id if run.job else "")
            limit = job.time_limit()
            if job.ended() is None:
                start_watch(self.link.remote, run.id, job.id, timeout=limit, gpu=run.gpu is not None)

    def _ended_without_log(self, error: Exception) -> Ended | None:
        """Return the end of a job whose log can no longer be read: its outputs are still fetched."""
        if is_passing(error, engine_too=True) or not isinstance(error, JobError):
            return None
        with contextlib.suppress(ConnectError, JobError):
            if ended := open_job(self.link, self.record.run).ended():
                self.record.warn(f"its log is not complete: {error}")
                self._is_kept = True
                return ended
        return None

    def _wait(self, error: Exception) -> None:
        try:
            self._retry_policy.wait(error)
        except Unreachable as last:
            # It was reached before: so it is lost, and not only silent.
            raise Broken(str(last), last.help) from last

    def _read(self) -> Ended | None:
        job = open_job(self.link, self.record.run)
        for frame in job.frames(self._log.position):
            if self._is_lost:
                self._found_again()
            if not frame.data:
                continue
            self._log.append(frame)
            self.attending.printed(frame)
            self._show(frame)
        return job.ended()

    def _report_loss(self, error: Exception) -> None:
        self._is_lost = True
        self.progress.note(f"{error}; the job keeps running, trying to reach it again")

    def _found_again(self) -> None:
        self._is_lost = False
        self._retry_policy.reset()
        self.progress.note("reached it again")

    # What it writes

    @contextlib.contextmanager
    def _fetching(self) -> Iterator[None]:
        """Bring what is finished already, so that little is left for the end. What goes wrong here comes again then."""
        over, before = threading.Event(), self._bringing

        def bring() -> None:
            pause = FIRST_FETCH
            if before:
                before.join(FINAL_SECONDS)
            elif not over.wait(pause):
                self._clear_up()
            while not over.wait(pause):
                with contextlib.suppress(ConnectError, RemoteError, JobError, OSError):
                    fetched = self._fetch(final=False)
                    self.record.change(outputs=Outputs(fetched.files, fetched.size))
                pause = min(pause * 1.5, LONGEST_BETWEEN)

        self._bringing = threading.Thread(target=bring, name="outputs", daemon=True)
        try:
            self._bringing.start()  # Ctrl-C may come while it starts
            yield
        finally:
            # It is not waited for: after Ctrl-C the user is asked at once, however large a file is.
            over.set()

    def _clear_up(self) -> None:
        """Remove what killed clients left on the target, while the job runs."""
        if self._is_container:
            from gpuinfra.runner.jobs.container import PROJECT_LABEL
            from gpuinfra.runner.jobs.helper_containers import remove_forgotten, remove_old

            with contextlib.suppress(ConnectError, JobError):
                remove_old(self.link.engine)
                job = self.record.run.job
                project = ContainerJob(self.link.engine, job.id if job else "").label(PROJECT_LABEL)
                if project:
                    known = lambda: {each.run for each in runs_there(self.link.remote)}  # noqa: E731
                    remove_forgotten(self.link.engine, project, known)

    def _fetch(self, *, final: bool) -> Fetched:
        return fetch(self.link.remote, self.record.run.id, self.outputs_folder, final=final, progress=self.progress)

    def look(self) -> Ended | None:
        """How it ended; None while it runs."""
        policy = self.link.retry_policy(FINAL_SECONDS, self._report_loss, engine_too=True)
        return self.link.retry(lambda: open_job(self.link, self.record.run).ended(), policy)

    def bring(self) -> Run:
        """What it has written so far."""
        policy = self.link.retry_policy(FINAL_SECONDS, self._report_loss)
        fetched = self.link.retry(lambda: self._fetch(final=False), policy)
        return self.record.change(outputs=Outputs(fetched.files, fetched.size))

    # The end

    def finish(self, ended: Ended) -> Run:
        """Bring the rest of the outputs, and write down how it ended. What cannot be brought raises, and is kept."""
        if ended.how is StopReason.LOST and self.record.refresh().state.is_over:
            return self._with_outputs()  # how it ended is known from before, and only its outputs are missing
        ended = self._as_kept(ended)
        how, detail = self._how(ended)
        self._note_end(replace(ended, how=how, detail=detail), ended.exit_code)
        return self._with_outputs()

    def _note_end(self, ended: Ended, exit_code: int | None) -> None:
        fields = end_fields(self.record.run, replace(ended, at=ended.at or datetime.now(UTC)), exit_code)
        if timings := fields.pop("timings", None):
            self.record.note_time("job", timings["job"])
        self.record.note(**fields)

    def _gone_off(self, error: SwitchedOff) -> Run:
        """The machine is off. What the job wrote is on its disk; how it ended, the machine may have said before."""
        self.record.warn(f"{error}: not all that the job wrote was fetched before")
        if not self.record.run.state.is_over and (ended := self.attending.ended):
            exit_code = None if ended.exit_code == UNKNOWN_EXIT_CODE else ended.exit_code
            self._note_end(ended, exit_code)
        if self.record.run.state.is_over:
            return self.record.change()
        self.record.change()
        raise SwitchedOff(str(error), off_help(self.record.run, "SPEC")) from error

    def _with_outputs(self) -> Run:
        try:
            with self.record.phase("outputs"):
                self._bring_all()
            self._note_usage()
            self._note_gap()
        finally:
            self.record.change()
        self._forget()
        return self.record.run

    def _as_kept(self, ended: Ended) -> Ended:
        """Of a container that the engine forgot, who kept watch on it may know how it ended."""
        if ended.how is not StopReason.LOST or not self._is_container:
            return ended
        with contextlib.suppress(ConnectError, JobError):
            kept = ended_of(read_state(self.link.remote, self.record.run.id))
            if kept and kept.how is not StopReason.LOST:
                return kept
        return ended

    def _how(self, ended: Ended) -> tuple[StopReason, str]:
        """Return why it ended, with the details. The target knows what the engine does not: a timeout, the end of the
        machine, or a request to cancel."""
        if self.record.refresh().reason == CANCELLED:
            return StopReason.CANCELLED, ended.detail
        if ended.how in {StopReason.EXITED, StopReason.ENGINE_STOPPED, StopReason.LOST} and self._is_container:
            with contextlib.suppress(ConnectError, JobError):
                state = read_state(self.link.remote, self.record.run.id)
                if ended.how is StopReason.EXITED and state.get("how") == StopReason.TIMED_OUT.value:
                    return StopReason.TIMED_OUT, ended.detail
                # Who kept watch on it may not have come to write down its end, if the machine's end was sooner.
                known = ended_of(state) or ended_by_machine(state.get("ending"))
                if known and known.how.is_by_machine:
                    return known.how, known.detail
        return ended.how, ended.detail

    def _bring_all(self) -> None:
        policy = self.link.retry_policy(FINAL_SECONDS, self._report_loss)
        if self._bringing:
            self._bringing.join()  # a large file may be on its way; each of its parts has a deadline
        fetched = self.link.retry(lambda: self._fetch(final=True), policy)
        if any(each.reason == NOT_ALLOWED for each in fetched.unreadable) and self._is_container:
            # A container's root wrote them, for itself alone.
            self.link.retry(self._own_outputs, policy)
            fetched = self.link.retry(lambda: self._fetch(final=True), policy)
        for path, reason in fetched.unreadable:
            self.record.warn(f"outputs/{path} was not fetched: {reason}")
        # Only files are results. One that cannot be fetched must not be deleted with the machine.
        left = any(each.reason not in CARRY_NOTHING for each in fetched.unreadable)
        if fetched.files:
            os.sync()  # what is deleted there must not be only in this computer's memory
        self.record.note(outputs=Outputs(fetched.files, fetched.size, fetched.complete and not left))

    def _own_outputs(self) -> None:
        self._own(f"{self.link.remote.ask('hello')['root']}/runs/{self.record.run.id}/outputs")

    def _own(self, folder: str) -> None:
        from gpuinfra.runner.jobs.helper_containers import scrub

        who = self.link.remote.ask("hello")
        image = str(self.record.run.image_digest)
        scrub(self.link.engine, image, folder, int(who["user"]), int(who["group"]))

    @property
    def _is_container(self) -> bool:
        job = self.record.run.job
        return job is not None and job.kind == "container"

    def _note_usage(self) -> None:
        usage: GpuUsage | None = None
        run = self.record.run
        if run.gpu:
            with contextlib.suppress(ConnectError, JobError):
                usage = read_usage(self.link.remote, run.id)
            if warning := usage_warning(usage, run.timings.get("job", 0.0)):
                self.record.warn(warning)
            self.record.note(usage=usage)

    def _note_gap(self) -> None:
        """Who stays with a job on the target keeps what it prints, and counts what a full disk does not take."""
        if self._is_container:
            return
        with contextlib.suppress(ConnectError, JobError):
            state = read_state(self.link.remote, self.record.run.id)
            if left := count_of(state, "leftProcesses"):
                is_one = left == 1
                what = (
                    "1 process that the job left running was"
                    if is_one
                    else f"{left} processes that it left running were"
                )
                self.record.warn(f"{what} ended with it")
            if gap := count_of(state, "logGap"):
                self.record.warn(f"{gap:,} bytes of what it printed are lost: the target could not write them down")

    def _forget(self) -> None:
        """Remove the run from the target when everything is here. A failure of that is not a failure of the run."""
        if self._is_kept or not self.record.run.outputs.complete:
            return
        run = self.record.run
        container = run.job.id if run.job and self._is_container else None
        with contextlib.suppress(ConnectError, JobError):
            if (left := forget_run(self.link.remote, run.id, container)) and container:
                # A container's root made folders in it.
                self._own(left)
                forget_run(self.link.remote, run.id)
