"""Submit a job: upload the project and build the environment in parallel, then start the job."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any

from gpuinfra.diagnostics import Code, Diagnostic, Problem
from gpuinfra.models.run import JobRef, RunState
from gpuinfra.remote.run_folder import container_name
from gpuinfra.runner.container import PROJECT_LABEL, ContainerJob
from gpuinfra.runner.docker.check import CANNOT_RUN
from gpuinfra.runner.environment.builder import (
    EnvironmentBuilder,
    JobEnvironment,
    unused_gpu_image,
)
from gpuinfra.runner.errors import ConnectError, JobError, RemoteError
from gpuinfra.runner.job import StopReason
from gpuinfra.runner.job_spec import JobSpec, StartRequest, too_large
from gpuinfra.runner.link import Link
from gpuinfra.runner.progress import Progress, in_thread
from gpuinfra.runner.record import Record
from gpuinfra.runner.resolve import script_not_sent
from gpuinfra.workbench.compute import SHARE as DEFAULT_SHARE

if TYPE_CHECKING:
    from pathlib import Path

    from gpuinfra.runner.project_tree import Tree
    from gpuinfra.runner.upload import Uploaded

PROJECT, SHARE = "/project", "/share"
SHARE_VARIABLE = "AZUREML_NATIVE_SHARE_DIRECTORY"
RUN_VARIABLE = "GPUINFRA_RUN_ID"
# How long to retry a lost connection before the job has started. Files that were sent are not sent again.
RESUME_SECONDS = 120.0
# How often the target learns that the upload is still needed.
KEEP_SECONDS = 60.0
GRACE_SECONDS = 10.0
RELEASE_SECONDS = 5.0
MAX_NAMED = 20


@dataclass
class Submission:
    """One job until it runs."""

    job: JobSpec
    link: Link
    record: Record
    project: str
    """The project's key on targets."""
    progress: Progress
    output: Callable[[str], None]
    """Receives the output of the environment's build."""
    first_heartbeat: dict[str, Any] | None = None
    abandoned: Sequence[str] = ()
    """Earlier runs of the project on this target that never started, and whose clients are gone."""
    tree: str = field(default="", init=False)
    """The job's copy of the project on the target, once it was sent."""
    terminal: Mapping[str, str] = field(default_factory=dict)
    """Variables that describe the terminal on which the job's output appears."""
    _has_sent: bool = field(default=False, init=False)

    def start(self) -> None:
        """Send everything and start the job, which then runs without this client."""
        if self.job.environment_source:
            self.progress.note(f"environment: {self.job.environment_source}")
        if warning := unused_gpu_image(self.job):
            self.progress.note(f"warning: {warning}")
            self.record.warn(warning)
        environment = in_thread(self._make_environment, "environment")
        try:
            uploaded = self._upload(environment.result)
            self.tree = uploaded.tree
            request = self._start_request(uploaded, self._wait_for(environment))
            self._start_job(request)
        except BaseException:
            self.link.drop()  # which ends the other threads
            raise

    def _make_environment(self) -> JobEnvironment:
        builder = EnvironmentBuilder(self.job, self.link, self.progress, self.output)
        try:
            environment = self.link.retry(builder.make, self.link.retry_policy(RESUME_SECONDS))
        finally:
            for phase, seconds in builder.timings.items():
                self.record.note_time(phase, seconds)
            self.job = builder.job  # with the base image, which may have been chosen for the driver
            if self.job.in_container:
                self.record.note(image=self.job.image_name)
        gpu = environment.gpu
        self.record.note(
            image_digest=environment.image,
            gpu=gpu.as_json() if gpu else None,
            simulated=self.record.run.simulated or (gpu is not None and gpu.simulated),
        )
        return environment

    def _wait_for(self, environment: Future[JobEnvironment]) -> JobEnvironment:
        """Wait for the environment. Meanwhile, keep the target from removing the upload."""
        from gpuinfra.runner.remote_runs import keep_run

        while True:
            with contextlib.suppress(TimeoutError):
                return environment.result(KEEP_SECONDS)
            with contextlib.suppress(ConnectError, JobError):
                keep_run(self.link.remote, self.record.run.id)

    # The project

    def _upload(self, environment: Callable[[], JobEnvironment]) -> Uploaded:
        from gpuinfra.runner.project_tree import read_tree
        from gpuinfra.runner.upload import upload

        with self.record.phase("upload"):
            state = self.record.folder.parent.parent
            tree = read_tree(self.job.project, state, self.progress, self.job.more_outputs)
            self._check_script(tree)
            self._check_engine()
            for skipped in tree.skipped:
                self.record.warn(f"`{skipped.path}` was not sent: {skipped.reason}")
            self._report_exceptions(tree)
            if tree.ignored:
                in_thread(lambda: self._report_ignored(tree), "not-sent")

            def send() -> Uploaded:
                return upload(
                    self.link.remote,
                    tree,
                    project=self._upload_key,
                    run=self.record.run.id,
                    progress=self.progress,
                    first_heartbeat=self.first_heartbeat,
                    abandoned=self.abandoned,
                    more_outputs=self.job.more_outputs,
                )

            policy = self.link.retry_policy(RESUME_SECONDS, self._report_loss)
            self._has_sent = True
            try:
                return self.link.retry(send, policy)
            except RemoteError as error:
                if error.code != "foreign-files" or not self.job.in_container:
                    raise
                self._take_ownership(str(environment().image), folder=str(error))
            policy.reset()
            return self.link.retry(send, policy)

    def _report_ignored(self, tree: Tree) -> None:
        """Report what ignore files left out. Nothing waits for it: the folders may have many files."""
        from gpuinfra.runner.not_sent import describe

        if line := describe(tree.root, tree.ignored):
            self.progress.note(line)

    def _report_exceptions(self, tree: Tree) -> None:
        """Report files that are not sent although no ignore file names them, and the reverse."""
        if tree.held_back:
            which = f"not sent, because they may hold credentials: {_list(tree.held_back)}"
            self.record.warn(f"{which}; to send one, add it to `.gpuinfraignore`: `!{tree.held_back[0]}`")
        if tree.included:
            which = f"sent, because `{tree.ignore_file}` names them, although they usually hold credentials"
            self.record.warn(f"{which}: {_list(tree.included)}")
        if tree.copied:
            which = f"not sent, because they are copies of outputs: {_list(tree.copied)}"
            self.progress.note(f"{which}; to send one, add it to `.gpuinfraignore`: `!{tree.copied[0]}`")
        if kept := [f"{name}/" for name in self.job.more_outputs if _has_files(self.job.project / name)]:
            self.progress.note(f"not sent, because they are for outputs: {', '.join(kept)}")
        if tree.unignored:
            self.progress.note(f"sent, although `.gitignore` names them: {_list(tree.unignored)}")

    @property
    def _upload_key(self) -> str:
        """The key of the project's copies on the target. Containers leave root's files in theirs, so they are apart."""
        return self.project if self.job.in_container else f"{self.project}.bare"

    def _check_script(self, tree: Tree) -> None:
        script = self.job.script
        if script and not tree.includes(script):
            raise script_not_sent(script, "an ignore file names it, or a link in its path leads out of the project")

    def _check_engine(self) -> None:
        """Raise an error before the upload if Docker does not work."""
        if self.job.in_container:
            policy = self.link.retry_policy(RESUME_SECONDS, self._report_loss)
            self.link.retry(lambda: self.link.engine.api, policy)

    def _take_ownership(self, image: str, folder: str) -> None:
        """Make the user the owner of root's files from an earlier container, so that the upload can remove them."""
        from gpuinfra.runner.helper_containers import take_ownership

        user = self.link.remote.ask("hello")
        take_ownership(self.link.engine, image, folder, int(user["user"]), int(user["group"]))

    def _report_loss(self, error: Exception) -> None:
        self.progress.note(f"{error}; trying again")

    # The job

    def _start_request(self, uploaded: Uploaded, prepared: JobEnvironment) -> StartRequest:
        job = self.job
        command = job.command(prepared.python)
        environment = {
            "PYTHONUNBUFFERED": "1",  # so that output appears when the job prints it
            RUN_VARIABLE: self.record.run.id,
            **prepared.search_path(PROJECT),
            **self.terminal,
            **job.variables,
        }
        mounts = [(uploaded.tree, PROJECT)]
        if job.share:
            below = None if job.is_share_chosen else DEFAULT_SHARE
            share = str(self.link.remote.ask("folder", path=job.share, below=below)["path"])
            environment[SHARE_VARIABLE] = f"{SHARE if job.in_container else share}/"
            mounts.append((share, SHARE))
        if reason := too_large({**environment, **job.secrets}, command):
            raise Problem(
                Diagnostic(
                    Code.ENVIRONMENT_TOO_LARGE,
                    "the environment or the command line is too large",
                    note=reason,
                    help="put large values into a file of the project, and read it in the script",
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
            mounts=tuple(mounts) if job.in_container else (),
            environment_folder=prepared.folder,
            ports=tuple(dict.fromkeys(job.ports.values())) if job.in_container else (),
            labels={PROJECT_LABEL: self.project},
        )

    def _start_job(self, request: StartRequest) -> None:
        names = tuple(sorted({*request.environment, *request.secrets}))
        kind = "container" if self.job.in_container else "process"
        # Saved before the start, so that the job can be found if this process is killed now.
        run = self.record.change(
            command=request.command, environment=names, job=JobRef(kind, job_id(request.run, kind))
        )
        if run.reason == StopReason.CANCELLED:
            raise JobError("the run was cancelled", f"{run.id} was cancelled before the job started", "run it again")
        with self.record.phase("start"):
            policy = self.link.retry_policy(RESUME_SECONDS, self._report_loss)
            self.link.retry(lambda: self._start_once(request), policy)
        run = self.record.change(state=RunState.RUNNING, started=datetime.now(UTC))
        if run.reason == StopReason.CANCELLED:  # meanwhile, when the job could not be found yet
            from gpuinfra.runner.follower import open_job

            open_job(self.link, run).cancel(GRACE_SECONDS)

    def undo(self) -> bool:
        """Stop the job if it started, and return whether it certainly does not run."""
        from gpuinfra.runner.follower import open_job

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
        """Free the uploaded copy of the project for the next submission, which does it if this fails."""
        if not self._has_sent:
            return
        # In a thread with a short limit: after Ctrl-C, the program must end soon.
        done = in_thread(lambda: self.link.remote.ask("run-forget", run=self.record.run.id), "release")
        with contextlib.suppress(ConnectError, RemoteError, TimeoutError):
            done.result(RELEASE_SECONDS)

    def _start_once(self, request: StartRequest) -> None:
        """Start the job. A repeated start finds the job by its name and does not start it again."""
        try:
            self._start_anywhere(request)
        except JobError as error:
            is_other = self.job.program or self.job.interpreter
            if is_other and (error.code == Code.NO_PYTHON or error.summary == CANNOT_RUN):
                place = f"the image `{self.job.image_name}`" if self.job.in_container else f"`{self.link.target.name}`"
                help_line = "install it in the job's environment, or correct the command"
                note = f"the job starts `{request.command[0]}`, which must be a program of {place}: {error.note}"
                raise JobError("no such program", note, help_line, Code.NO_PROGRAM) from error
            raise

    def _start_anywhere(self, request: StartRequest) -> None:
        if self.job.in_container:
            from gpuinfra.runner.container import start_container

            # Import the next module while the engine works.
            in_thread(lambda: import_module("gpuinfra.runner.follower"), "imports")
            job = start_container(self.link.engine, request, before_start=self._start_recorder)
            self._start_watcher(request, job.id)
        else:
            from gpuinfra.runner.process import start_process

            start_process(self.link.remote, request)

    def _start_recorder(self, job: ContainerJob) -> None:
        from gpuinfra.runner.remote_runs import start_recorder

        try:
            start_recorder(self.link.remote, self.record.run.id, job.id)
        except JobError as error:
            if error.code == Code.UPLOAD_FAILED:
                raise  # the copy of the project belongs to another run by now
            # Without it, the client reads the engine's log, where a line appears when it ends.

    def _start_watcher(self, request: StartRequest, container: str) -> None:
        from gpuinfra.runner.remote_runs import start_watcher

        run, timeout, gpu = request.run, request.timeout, request.gpus is not None
        try:
            start_watcher(self.link.remote, run, container, timeout=timeout, grace=GRACE_SECONDS, gpu=gpu)
        except JobError as error:
            # The job runs already. Only the time limit needs the watcher.
            if timeout is not None:
                raise
            effect = "the GPU usage was not measured" if gpu else "the job has no watcher"
            self.record.warn(f"{effect}: {error}")


def job_id(run: str, kind: str) -> str:
    """Return the id of a job on its target: the name of its container, or the id of its run."""
    return container_name(run) if kind == "container" else run


def _has_files(folder: Path) -> bool:
    try:
        return folder.is_file() or any(folder.iterdir())
    except OSError:
        return False


def _list(paths: tuple[str, ...]) -> str:
    """Return the first paths, and the number of the others."""
    shown = ", ".join(paths[:MAX_NAMED])
    return f"{shown}, and {len(paths) - MAX_NAMED} more" if len(paths) > MAX_NAMED else shown
