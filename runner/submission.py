"""A job on its way: the project, its environment and its GPU, all at once; then the job itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any

from gpuinfra.diagnostics import Code, Diagnostic, Problem
from gpuinfra.models.run import JobRef, RunState
from gpuinfra.remote.run_folder import container_name
from gpuinfra.runner.background import begin
from gpuinfra.runner.environment.builder import (
    EnvironmentBuilder,
    JobEnvironment,
    unused_gpu_image,
)
from gpuinfra.runner.errors import ConnectError, JobError, RemoteError
from gpuinfra.runner.job_spec import JobSpec, StartRequest, too_large
from gpuinfra.runner.jobs.container import PROJECT_LABEL
from gpuinfra.runner.jobs.job import StopReason
from gpuinfra.runner.link import Link
from gpuinfra.runner.progress import Progress
from gpuinfra.runner.record import Record
from gpuinfra.runner.resolve import outside
from gpuinfra.workbench.compute import SHARE as USUAL_SHARE

if TYPE_CHECKING:
    from gpuinfra.runner.upload import Tree, Uploaded

PROJECT, SHARE = "/project", "/share"
SHARE_VARIABLE = "AZUREML_NATIVE_SHARE_DIRECTORY"
RUN_VARIABLE = "GPUINFRA_RUN_ID"
# A connection that breaks before the job has begun is retried for this long, and what was sent is not sent again.
RESUME_SECONDS = 120.0
KEEP_SECONDS = 60.0
GRACE_SECONDS = 10.0
RELEASE_SECONDS = 5.0
MOST_NAMED = 20
MOST_SCRUBS = 1
CANCELLED = StopReason.CANCELLED.value


@dataclass
class Submission:
    """One job, up to the moment at which it runs."""

    job: JobSpec
    link: Link
    record: Record
    project: str
    """The project's key on targets."""
    progress: Progress
    output: Callable[[str], None]
    """Hears what the building of an environment prints."""
    attended: dict[str, Any] | None = None
    """The first heartbeat of the run."""
    abandoned: Sequence[str] = ()
    """Earlier runs of the project on this target that never began, and whose clients are gone."""
    _has_sent: bool = field(default=False, init=False)

    def start(self) -> None:
        """Send everything, and begin the job. From then on the target owns it."""
        if warning := unused_gpu_image(self.job):
            self.progress.note(f"warning: {warning}")
            self.record.warn(warning)
        prepared = begin(self._make_environment, "environment")
        try:
            uploaded = self._upload(prepared.result)
            request = self._start_request(uploaded, self._awaited(prepared))
            self._begin(request)
        except BaseException:
            # Other threads have nothing left to do.
            self.link.drop()
            raise

    def _make_environment(self) -> JobEnvironment:
        work = EnvironmentBuilder(self.job, self.link, self.progress, self.output)
        try:
            made = self.link.retry(work.make, self.link.retry_policy(RESUME_SECONDS))
        finally:
            for phase, seconds in work.timings.items():
                self.record.note_time(phase, seconds)
        gpu = made.gpu
        self.record.note(
            image_digest=made.image,
            gpu=gpu.as_json() if gpu else None,
            simulated=self.record.run.simulated or (gpu is not None and gpu.simulated),
        )
        return made

    def _awaited(self, prepared: Future[JobEnvironment]) -> JobEnvironment:
        """Wait for the environment, and keep telling the target that what was sent is still needed."""
        while True:
            with contextlib.suppress(TimeoutError):
                return prepared.result(KEEP_SECONDS)
            with contextlib.suppress(ConnectError, RemoteError):
                self.link.remote.ask("run-keep", run=self.record.run.id)

    # The project

    def _upload(self, prepared: Callable[[], JobEnvironment]) -> Uploaded:
        from gpuinfra.runner.upload import read_tree, upload

        with self.record.phase("upload"):
            tree = read_tree(self.job.project, self.record.folder.parent.parent, self.progress)
            self._check_script(tree)
            self._check_engine()
            for skipped in tree.skipped:
                self.record.warn(f"`{skipped.path}` was not sent: {skipped.reason}")
            self._say_what_is_sent(tree)
            scrubs = 0
            self._has_sent = True
            while True:
                try:
                    return self.link.retry(
                        lambda: upload(
                            self.link.remote,
                            tree,
                            project=self._place,
                            run=self.record.run.id,
                            outputs="mount" if self.job.in_container else "link",
                            progress=self.progress,
                            attended=self.attended,
                            abandoned=self.abandoned,
                        ),
                        self.link.retry_policy(RESUME_SECONDS, self._report_loss),
                    )
                except RemoteError as error:
                    scrubs += 1
                    if error.code != "foreign-files" or not self.job.in_container or scrubs > MOST_SCRUBS:
                        raise
                    self._scrub(str(prepared().image), str(error))

    def _say_what_is_sent(self, tree: Tree) -> None:
        """Say what is not sent although no ignore file says so, and what is sent although git ignores it."""
        if tree.held_back:
            which = f"not sent, because they may hold credentials: {_named(tree.held_back)}"
            self.record.warn(f"{which}; to send one, write its name into `.gpuinfraignore`: `!{tree.held_back[0]}`")
        if tree.included:
            why = f"sent, because `{tree.ignore_file}` names them, although they usually hold credentials"
            self.record.warn(f"{why}: {_named(tree.included)}")
        if tree.copied:
            which = f"not sent, because they are copies of outputs: {_named(tree.copied)}"
            self.progress.note(f"{which}; to send one, write its name into `.gpuinfraignore`: `!{tree.copied[0]}`")
        if tree.unignored:
            self.progress.note(f"sent, although `.gitignore` names them: {_named(tree.unignored)}")

    @property
    def _place(self) -> str:
        """The key of its copies. Jobs without a container have their own: a container's root leaves files there."""
        return self.project if self.job.in_container else f"{self.project}.bare"

    def _check_script(self, tree: Tree) -> None:
        script = self.job.script
        if not tree.includes(script):
            raise outside(script, "an ignore file, or a link that leads out of the project, keeps it from being sent")

    def _check_engine(self) -> None:
        """Find out that Docker does not work before the project is sent."""
        if self.job.in_container:
            policy = self.link.retry_policy(RESUME_SECONDS, self._report_loss)
            self.link.retry(lambda: self.link.engine.api, policy)

    def _scrub(self, image: str, folder: str) -> None:
        """Files of an earlier job that its container's root owns become the user's own, who can then remove them."""
        from gpuinfra.runner.jobs.helper_containers import scrub

        who = self.link.remote.ask("hello")
        scrub(self.link.engine, image, folder, int(who["user"]), int(who["group"]))

    def _report_loss(self, error: Exception) -> None:
        self.progress.note(f"{error}; trying again")

    # The job

    def _start_request(self, uploaded: Uploaded, prepared: JobEnvironment) -> StartRequest:
        job = self.job
        command = job.command(prepared.python)
        environment = {
            "PYTHONUNBUFFERED": "1",  # what a job prints is seen when it prints it
            RUN_VARIABLE: self.record.run.id,
            **job.variables,
        }
        mounts: tuple[tuple[str, str], ...] = ()
        if job.share:
            below = None if job.is_share_chosen else USUAL_SHARE
            share = str(self.link.remote.ask("folder", path=job.share, below=below)["path"])
            environment[SHARE_VARIABLE] = f"{SHARE if job.in_container else share}/"
            mounts = ((share, SHARE),)
        if reason := too_large({**environment, **job.secrets}, command):
            raise Problem(
                Diagnostic(
                    Code.ENVIRONMENT_TOO_LARGE,
                    "too much for a program to begin with",
                    note=reason,
                    help="put it into a file of the project, and read that in the script",
                )
            )
        return StartRequest(
            run=self.record.run.id,
            command=command,
            folder=PROJECT if job.in_container else uploaded.tree,
            environment=environment,
            secrets=job.secrets,
            gpus=job.gpus if prepared.gpu else None,
            memory=job.memory,
            shm_size=job.shm_size,
            timeout=job.timeout,
            image=prepared.image,
            mounts=((uploaded.tree, PROJECT), (uploaded.outputs, f"{PROJECT}/outputs"), *mounts)
            if job.in_container
            else (),
            labels={PROJECT_LABEL: self.project},
        )

    def _begin(self, request: StartRequest) -> None:
        names = tuple(sorted({*request.environment, *request.secrets}))
        kind = "container" if self.job.in_container else "process"
        # Before it starts: if this process is killed now, the job can be found again.
        run = self.record.change(
            command=request.command, environment=names, job=JobRef(kind, job_id(request.run, kind))
        )
        if run.reason == CANCELLED:
            raise JobError("the run was cancelled", f"{run.id} was cancelled before the job began", "run it again")
        with self.record.phase("start"):
            policy = self.link.retry_policy(RESUME_SECONDS, self._report_loss)
            self.link.retry(lambda: self._start_once(request), policy)
        run = self.record.change(state=RunState.RUNNING, started=datetime.now(UTC))
        if run.reason == CANCELLED:  # cancelled before the job was found
            from gpuinfra.runner.jobs.follower import open_job

            open_job(self.link, run).cancel(GRACE_SECONDS)

    def undo(self) -> bool:
        """Stop a job that may have started; return whether it is certain that none runs."""
        from gpuinfra.runner.jobs.follower import open_job

        if self.record.run.job is None:
            self._release()
            return True
        try:
            job = open_job(self.link, self.record.run)
            job.cancel(0)
            job.remove()
            self.link.remote.ask("run-forget", run=self.record.run.id)
        except (ConnectError, RemoteError, JobError) as error:
            return isinstance(error, JobError) and error.code == Code.NO_SUCH_RUN
        return True

    def _release(self) -> None:
        """Let the next start use the copy of the project that was sent. What fails here, the next start does."""
        if not self._has_sent:
            return
        # In a thread, and not for long: after Ctrl-C the user wants to leave.
        done = begin(lambda: self.link.remote.ask("run-forget", run=self.record.run.id), "release")
        with contextlib.suppress(ConnectError, RemoteError, TimeoutError):
            done.result(RELEASE_SECONDS)

    def _start_once(self, request: StartRequest) -> None:
        """Twice is once: a job that was begun before the connection broke is found by its name."""
        if self.job.in_container:
            from gpuinfra.runner.jobs.container import start_container

            # While the engine works there is time for what comes next.
            begin(lambda: import_module("gpuinfra.runner.jobs.follower"), "imports")
            self._watch(request, start_container(self.link.engine, request).id)
        else:
            from gpuinfra.runner.jobs.process import start_process

            start_process(self.link.remote, request)

    def _watch(self, request: StartRequest, container: str) -> None:
        from gpuinfra.runner.jobs.remote_runs import start_watch

        gpu = request.gpus is not None
        try:
            start_watch(self.link.remote, request.run, container, timeout=request.timeout, grace=GRACE_SECONDS, gpu=gpu)
        except JobError as error:
            # It runs by now, and may have filled the disk itself. Only one whose time is limited must not go unwatched.
            if request.timeout is not None:
                raise
            what = "the use of the GPU was not measured" if gpu else "the job has no watcher"
            self.record.warn(f"{what}: {error}")


def job_id(run: str, kind: str) -> str:
    """By what a job is found on its target: a container's name, or the run itself."""
    return container_name(run) if kind == "container" else run


def _named(paths: tuple[str, ...]) -> str:
    """The first of them, and how many more there are."""
    shown = ", ".join(paths[:MOST_NAMED])
    return f"{shown}, and {len(paths) - MOST_NAMED} more" if len(paths) > MOST_NAMED else shown
