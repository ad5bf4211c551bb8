"""Follow a job to its end: show its output, fetch its files, record how it ended. Jobs also run without a follower."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime

from gpuinfra.models.run import LOG_INCOMPLETE, Frame, GpuUsage, Outputs, Run
from gpuinfra.runner.connection.port import Connection
from gpuinfra.runner.container import ContainerJob
from gpuinfra.runner.errors import Broken, ConnectError, JobError, RemoteError, SwitchedOff, Unreachable
from gpuinfra.runner.fetch import Fetched, fetch
from gpuinfra.runner.gpu import usage_warning
from gpuinfra.runner.heartbeat import Heartbeat, parse_machine_stop
from gpuinfra.runner.job import Job, JobEnd, StopReason
from gpuinfra.runner.link import Link, is_transient
from gpuinfra.runner.log import LogFile
from gpuinfra.runner.process import ProcessJob
from gpuinfra.runner.progress import Progress
from gpuinfra.runner.record import Record
from gpuinfra.runner.remote_runs import (
    UNKNOWN_EXIT_CODE,
    count_of,
    forget_run,
    list_runs,
    parse_job_end,
    read_state,
    read_usage,
    start_watcher,
)
from gpuinfra.runner.settle import end_fields, off_help

# How long to retry a lost connection: a machine may restart, or a laptop may wake up on another network.
LOST_SECONDS = 600.0
FINAL_SECONDS = 300.0
FIRST_FETCH_SECONDS, MAX_FETCH_SECONDS = 5.0, 30.0
# A connection that worked for this long resets the retries.
STEADY_SECONDS = 60.0
# A connection that was opened again and worked for this long is reported when it is lost again.
REPORT_SECONDS = 5.0
# The target's reasons for not sending an output: the user may not read it, or it is not a file.
NOT_ALLOWED = "permission"
NOT_A_FILE = ("neither a file nor a folder", "a symbolic link that leads out of `outputs`")


def open_job(link: Link, run: Run) -> Job:
    """Return the job of a run on its target."""
    if run.job is None:
        raise JobError("the job never started", f"run {run.id} ended before its job started", "run it again")
    if run.job.kind == "container":
        return ContainerJob(link.engine, run.job.id, remote=link.remote, run=run.id)
    return ProcessJob(link.remote, run.job.id)


class JobFollower:
    """Follows one run, and writes its log and outputs. Only one process does so for a run."""

    def __init__(
        self,
        link: Link,
        record: Record,
        log: LogFile,
        progress: Progress,
        show: Callable[[Frame], None],
        *,
        heartbeat: Heartbeat | None = None,
        takes_over: bool = False,
    ) -> None:
        """The caller has locked the log. `takes_over` if another process started the job."""
        self._takes_over = takes_over
        self.link, self.record, self.progress = link, record, progress
        self._log, self._show = log, show
        self.heartbeat = heartbeat or Heartbeat(link, record.run.id)
        if record.run.started:
            self.heartbeat.note_start(record.run.started)
        self._retry_policy = link.retry_policy(LOST_SECONDS, self._report_loss, retry_engine=True)
        self._is_lost = False
        self._is_unheard = False
        """Whether the job has printed nothing since the last loss."""
        self._connection: Connection | None = None
        """The connection on which the log was read last."""
        self._is_log_incomplete = False
        """Whether the target has output of the job that is not in the log here."""
        self._fetch_thread: threading.Thread | None = None

    def follow_to_end(self) -> Run:
        """Show the output until the job ends, fetch its files, and record how it ended, or that its machine is off."""
        try:
            return self.finish(self.follow())
        except SwitchedOff as error:
            return self._finish_switched_off(error)

    def follow(self) -> JobEnd:
        """Show the output until the job ends. A lost connection is opened again."""
        if self._takes_over and self._is_container:
            self._restart_watcher()
        with self._fetching(), self.heartbeat.report_silence(self.progress.note):
            while True:
                began = time.monotonic()
                try:
                    if ended := self._read():
                        return ended
                except (ConnectError, JobError) as error:
                    if ended := self._ended_without_log(error):
                        return ended
                    if time.monotonic() - began > STEADY_SECONDS:
                        self._retry_policy.reset()  # the connection worked, without output
                    self.link.handle_loss(error)
                    if self._is_unheard and not self._is_lost and time.monotonic() - began > REPORT_SECONDS:
                        self._report_loss(error)  # lost again, before the job printed anything
                    self._wait(error)

    def _restart_watcher(self) -> None:
        """Start the watcher if none runs: the client that started the job may have been killed before it did."""
        run = self.record.run
        with contextlib.suppress(ConnectError, JobError):
            job = ContainerJob(self.link.engine, run.job.id if run.job else "")
            limit = job.time_limit()
            if job.ended() is None:
                start_watcher(self.link.remote, run.id, job.id, timeout=limit, gpu=run.gpu is not None)

    def _ended_without_log(self, error: Exception) -> JobEnd | None:
        """Return the end of a job whose log can no longer be read, so that its outputs are still fetched."""
        if is_transient(error, retry_engine=True) or not isinstance(error, JobError):
            return None
        with contextlib.suppress(ConnectError, JobError):
            if ended := open_job(self.link, self.record.run).ended():
                self.record.warn(f"{LOG_INCOMPLETE}: {error}")
                self._is_log_incomplete = True
                return ended
        return None

    def _wait(self, error: Exception) -> None:
        try:
            self._retry_policy.wait(error)
        except Unreachable as last:
            # It was connected before, so the connection is lost.
            raise Broken(str(last), last.help) from last

    def _read(self) -> JobEnd | None:
        job = open_job(self.link, self.record.run)
        before, self._connection = self._connection, self.link.connection
        if self._is_lost and self._connection is not before:
            # The job may print nothing for long. Retries end only after output: the connection may break again at once.
            self._report_recovery()
        for frame in job.frames(self._log.position):
            if self._is_lost:
                self._report_recovery()
            if self._is_unheard:
                self._is_unheard = False
                self._retry_policy.reset()
            if not frame.data:
                continue
            self._log.append(frame)
            self.heartbeat.note_output(frame)
            self._show(frame)
        return job.ended()

    def _report_loss(self, error: Exception) -> None:
        self._is_lost = self._is_unheard = True
        self.progress.note(f"{error}; the job keeps running, trying to reach it again")

    def _report_recovery(self) -> None:
        self._is_lost = False
        self.progress.note("reached it again")

    # Outputs

    @contextlib.contextmanager
    def _fetching(self) -> Iterator[None]:
        """Fetch finished files during the block, so that little is left for the end. The end reports any failure."""
        over, previous = threading.Event(), self._fetch_thread

        def fetch_regularly() -> None:
            pause = FIRST_FETCH_SECONDS
            if previous:
                previous.join(FINAL_SECONDS)
            elif not over.wait(pause):
                self._remove_old_containers()
            while not over.wait(pause):
                with contextlib.suppress(ConnectError, RemoteError, JobError, OSError):
                    fetched = self._fetch(final=False)
                    self.record.change(outputs=Outputs(fetched.files, fetched.size))
                pause = min(pause * 1.5, MAX_FETCH_SECONDS)

        self._fetch_thread = threading.Thread(target=fetch_regularly, name="outputs", daemon=True)
        try:
            self._fetch_thread.start()  # Ctrl-C may arrive during the call
            yield
        finally:
            # Do not wait for the thread: after Ctrl-C the user is asked at once, even during a large file.
            over.set()

    def _remove_old_containers(self) -> None:
        """Remove containers that killed clients left on the target, while the job runs."""
        if not self._is_container:
            return
        from gpuinfra.runner.container import PROJECT_LABEL
        from gpuinfra.runner.helper_containers import remove_forgotten, remove_old

        def known_runs() -> set[str]:
            return {each.id for each in list_runs(self.link.remote).runs}

        with contextlib.suppress(ConnectError, JobError):
            remove_old(self.link.engine)
            job = self.record.run.job
            project = ContainerJob(self.link.engine, job.id if job else "").label(PROJECT_LABEL)
            if project:
                remove_forgotten(self.link.engine, project, known_runs)

    def _fetch(self, *, final: bool, now: bool = False) -> Fetched:
        folder = self.record.folder / "outputs"
        return fetch(self.link.remote, self.record.run.id, folder, final=final, now=now, progress=self.progress)

    def ended(self) -> JobEnd | None:
        """Return how the job ended, or None while it runs."""
        policy = self.link.retry_policy(FINAL_SECONDS, self._report_loss, retry_engine=True)
        return self.link.retry(lambda: open_job(self.link, self.record.run).ended(), policy)

    def fetch_outputs(self, report: Callable[[Fetched], None]) -> Run:
        """Fetch the files that the job has written so far, and report which could not be read."""
        policy = self.link.retry_policy(FINAL_SECONDS, self._report_loss)
        fetched = self.link.retry(lambda: self._fetch(final=False, now=True), policy)
        report(fetched)
        return self.record.change(outputs=Outputs(fetched.files, fetched.size))

    # End

    def finish(self, ended: JobEnd) -> Run:
        """Record how the job ended, and fetch the rest of its outputs. If that fails, the target keeps them."""
        if ended.stop_reason is StopReason.LOST and self.record.refresh().state.is_over:
            return self._fetch_all()  # the end was recorded before, and only the outputs are missing
        ended = self._with_stop_reason(self._with_watcher_record(ended))
        self._note_end(ended, ended.exit_code)
        return self._fetch_all()

    def _note_end(self, ended: JobEnd, exit_code: int | None) -> None:
        fields = end_fields(self.record.run, replace(ended, at=ended.at or datetime.now(UTC)), exit_code)
        if timings := fields.pop("timings", None):
            self.record.note_time("job", timings["job"])
        self.record.note(**fields)

    def _finish_switched_off(self, error: SwitchedOff) -> Run:
        """Record the end of a job whose machine is off, if the last heartbeat had it. The outputs are on its disk."""
        self.record.warn(f"{error}: not all that the job wrote was fetched before")
        if not self.record.run.state.is_over and (ended := self.heartbeat.ended):
            exit_code = None if ended.exit_code == UNKNOWN_EXIT_CODE else ended.exit_code
            self._note_end(ended, exit_code)
        if self.record.run.state.is_over:
            return self.record.change()
        self.record.change()
        raise SwitchedOff(str(error), off_help(self.record.run, "SPEC")) from error

    def _fetch_all(self) -> Run:
        try:
            with self.record.phase("outputs"):
                self._fetch_final_outputs()
            self._note_usage()
            self._warn_of_lost_output()
        finally:
            self.record.change()
        self._forget()
        return self.record.run

    def _with_watcher_record(self, ended: JobEnd) -> JobEnd:
        """Return the end that the watcher recorded, for a container that the engine no longer knows."""
        if ended.stop_reason is not StopReason.LOST or not self._is_container:
            return ended
        with contextlib.suppress(ConnectError, JobError):
            recorded = parse_job_end(read_state(self.link.remote, self.record.run.id))
            if recorded and recorded.stop_reason is not StopReason.LOST:
                return recorded
        return ended

    def _with_stop_reason(self, ended: JobEnd) -> JobEnd:
        """Return the end with a reason that the engine does not know: a cancellation, a timeout, or the machine."""
        if self.record.refresh().reason == StopReason.CANCELLED:
            return replace(ended, stop_reason=StopReason.CANCELLED)
        uncertain = {StopReason.EXITED, StopReason.ENGINE_STOPPED, StopReason.LOST}
        if ended.stop_reason not in uncertain or not self._is_container:
            return ended
        with contextlib.suppress(ConnectError, JobError):
            state = read_state(self.link.remote, self.record.run.id)
            if ended.stop_reason is StopReason.EXITED and state.get("how") == StopReason.TIMED_OUT.value:
                return replace(ended, stop_reason=StopReason.TIMED_OUT)
            # If the machine went off first, the watcher has not recorded the end.
            recorded = parse_job_end(state) or parse_machine_stop(state.get("ending"))
            if recorded and recorded.stop_reason.is_by_machine:
                return replace(ended, stop_reason=recorded.stop_reason, detail=recorded.detail)
        return ended

    def _fetch_final_outputs(self) -> None:
        policy = self.link.retry_policy(FINAL_SECONDS, self._report_loss)
        if self._fetch_thread:
            self._fetch_thread.join()  # it may be fetching a large file, whose parts have deadlines
        fetched = self.link.retry(lambda: self._fetch(final=True), policy)
        if self._is_container and any(each.reason == NOT_ALLOWED for each in fetched.unreadable):
            # The job ran as root in its container, so root owns its files.
            self.link.retry(lambda: self._own_all(fetched.folders), policy)
            fetched = self.link.retry(lambda: self._fetch(final=True), policy)
        for path, reason in fetched.unreadable:
            self.record.warn(f"outputs/{path} was not fetched: {reason}")
        # A file that cannot be fetched makes the outputs incomplete, so that it is not deleted with the machine.
        is_complete = fetched.complete and all(each.reason in NOT_A_FILE for each in fetched.unreadable)
        if fetched.files:
            os.sync()  # before they are deleted on the target
        self.record.note(outputs=Outputs(fetched.files, fetched.size, is_complete))

    def _own_all(self, folders: Iterable[str]) -> None:
        for folder in folders:
            self._own(folder)

    def _own(self, folder: str) -> None:
        from gpuinfra.runner.helper_containers import take_ownership

        user = self.link.remote.ask("hello")
        image = str(self.record.run.image_digest)
        take_ownership(self.link.engine, image, folder, int(user["user"]), int(user["group"]))

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

    def _warn_of_lost_output(self) -> None:
        """Warn of processes that were ended with the job, and of output that did not fit on the target's disk."""
        if self._is_container:
            return
        with contextlib.suppress(ConnectError, JobError):
            state = read_state(self.link.remote, self.record.run.id)
            if count := count_of(state, "leftProcesses"):
                processes, were = ("1 process", "was") if count == 1 else (f"{count} processes", "were")
                self.record.warn(f"{processes} that the job left running {were} ended with it")
            if gap := count_of(state, "logGap"):
                self.record.warn(f"{gap:,} bytes of what it printed are lost: the target could not write them")

    def _forget(self) -> None:
        """Delete the run on the target if everything was fetched. A failure does not fail the run."""
        if self._is_log_incomplete or not self.record.run.outputs.complete:
            return
        run = self.record.run
        container = run.job.id if run.job and self._is_container else None
        with contextlib.suppress(ConnectError, JobError):
            if (left := forget_run(self.link.remote, run.id, container)) and container:
                # The container created folders as root.
                self._own(left)
                forget_run(self.link.remote, run.id)
