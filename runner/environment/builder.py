"""Prepare the environment of a job: an image or an interpreter, and a working GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gpuinfra.diagnostics import Code, Problem
from gpuinfra.models.target import GpuFacts
from gpuinfra.programs import find_job_program
from gpuinfra.runner.connection.port import Completed
from gpuinfra.runner.environment.build import Environment
from gpuinfra.runner.errors import JobError
from gpuinfra.runner.job_spec import JobSpec
from gpuinfra.runner.link import Link
from gpuinfra.runner.progress import Progress
from gpuinfra.runner.sources.dockerfile import Dockerfile
from gpuinfra.workbench.compute import LOCAL, REMOTE
from gpuinfra.workbench.cuda import is_for_gpu

if TYPE_CHECKING:
    from gpuinfra.runner.docker.images import ImageFacts


PROBE_SECONDS = 120.0
SEARCH_PATH = "PYTHONPATH"


@dataclass(frozen=True)
class JobEnvironment:
    """The environment of a job on its target."""

    python: tuple[str, ...]
    """The command that starts the interpreter."""
    image: str | None = None
    """The ID of the image."""
    tag: str | None = None
    built: bool = False
    gpu: GpuFacts | None = None
    folder: str | None = None
    """The folder of a Python environment, for a job without a container."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """The variables of the image."""

    def search_path(self, project: str) -> dict[str, str]:
        """Return the variable with which Python also finds modules in the project's top folder, for a container."""
        own = self.variables.get(SEARCH_PATH)
        return {SEARCH_PATH: f"{own}:{project}" if own else project} if self.image else {}


@dataclass
class EnvironmentBuilder:
    """Prepares the environment on the target. Raises ConnectError, JobError and Problem."""

    job: JobSpec
    link: Link
    progress: Progress
    output: Callable[[str], None]
    """Receives the output of a build."""
    timings: dict[str, float] = field(default_factory=dict)

    def make(self) -> JobEnvironment:
        """Return the environment. Build its image if necessary, and check the GPU."""
        return self._in_container() if self.job.in_container else self._on_machine()

    def _in_container(self) -> JobEnvironment:
        from gpuinfra.runner.docker.images import ensure_image
        from gpuinfra.runner.environment.build import python_of

        with self._timed("environment"):
            if self.job.dockerfile:
                made = self._from_dockerfile(self.job.dockerfile)
                base = ensure_image(self.link.engine, made.image, self.progress)
            else:
                base = ensure_image(self.link.engine, self._base_image(), self.progress)
                made = self._environment(base)
        facts = self._probe_container(made.image, base.environment) if self.job.gpus else None
        found = JobEnvironment(python_of(made), made.image, made.tag, made.built, facts, variables=base.environment)
        if facts:
            self._check_frameworks(found, facts)
        return found

    def _base_image(self) -> str:
        """Return the base image. Choose it if the job's files name none: later steps find it in the job."""
        if self.job.base_image:
            return self.job.base_image
        from gpuinfra.runner.nvidia_smi import NoGpuError, probe_host
        from gpuinfra.workbench.base_images import WITHOUT_CUDA, choose_base_image

        name = WITHOUT_CUDA
        if self.job.gpus:
            try:
                facts = probe_host(self.link.connection, PROBE_SECONDS)
                name, reason = choose_base_image(facts.driver, facts.cuda)
            except NoGpuError:  # the GPU check in the image reports the cause; the engine may be on another machine
                name, reason = choose_base_image(None)
            self.progress.note(f"image: {name} ({reason})")
        self.job = replace(self.job, base_image=name)
        return name

    def _check_frameworks(self, found: JobEnvironment, facts: GpuFacts) -> None:
        """Raise Problem if a framework in the environment would not use the GPU, unless the job needs none."""
        from gpuinfra.runner.environment import framework_check as check

        job = self.job
        if not job.requires_gpu:
            return
        own = {**job.variables, **{name: job.secrets[name] for name in job.secrets if name in check.OPEN_SECRETS}}
        variables = {name: value for name, value in own.items() if name.startswith(check.VARIABLES)}
        environment = found.image or found.tag
        request: dict[str, Any] = {"key": check.key_of(environment, facts, variables)} if environment else {}
        if found.tag and not found.image:
            request["environment"] = found.tag.rpartition("/")[2]
        if request and not job.rebuild and self.link.remote.ask("gpu-check", **request)["known"]:
            return
        with self._timed("frameworks"), self._failure_reported():
            self.progress.begin("gpu", "checking frameworks")
            reports = check.read_reports(self._run_in_environment(found, check.SCRIPT, variables, check.SECONDS))
            if problem := check.judge(reports, facts, job.packages):
                raise problem
            ready = ", ".join(each.title for each in reports if each.ran)
            self.progress.end("gpu", f"{facts.summary}{f'; used by {ready}' if ready else ''}")
        for each in reports:
            if not each.ran:
                self.progress.note(f"{each.title} cannot use a simulated GPU, so it was not checked")
        if request:
            self.link.remote.ask("gpu-check", **request, passed=True)

    def _run_in_environment(
        self, found: JobEnvironment, script: str, variables: Mapping[str, str], seconds: float
    ) -> Completed:
        """Run a Python script as the job would run. Without Python in the image, the output is empty."""
        from gpuinfra.runner.docker.check import CANNOT_RUN
        from gpuinfra.runner.helper_containers import run_once
        from gpuinfra.runner.nvidia_smi import NOT_FOUND

        if found.image is None:
            python = (self.job.python,) if self.job.python else found.python
            settings = [f"{name}={value}" for name, value in variables.items()]
            return self.link.connection.run(["env", *settings, *python, "-c", script], timeout=seconds)
        command = [*found.python, "-c", script]
        try:
            return run_once(
                self.link.engine,
                found.image,
                command,
                gpus=self.job.gpus,
                timeout=seconds,
                environment=dict(variables),
            )
        except JobError as error:
            if error.code in {Code.NO_PYTHON, Code.NO_PROGRAM} or error.summary == CANNOT_RUN:
                return Completed(NOT_FOUND[1], "", str(error))  # without Python, there are no frameworks
            raise

    def _from_dockerfile(self, dockerfile: Dockerfile) -> Environment:
        from gpuinfra.runner.environment.dockerfile_build import ensure_dockerfile

        job = self.job
        return ensure_dockerfile(
            self.link.engine,
            dockerfile,
            job.project,
            self.progress,
            self.output,
            fresh=job.rebuild,
            may_build=job.prepares or job.rebuild,
            more_outputs=job.more_outputs,
        )

    def _environment(self, base: ImageFacts) -> Environment:
        job = self.job
        if job.packages is None:
            return Environment(base.id, base.name, built=False, python=None, seconds=0.0)
        from gpuinfra.runner.environment.build import ensure_environment

        return ensure_environment(
            self.link.engine,
            base,
            job.packages,
            job.project,
            self.progress,
            self.output,
            fresh=job.rebuild,
            may_build=job.prepares or job.rebuild,
            build_secrets=job.build_secrets,
        )

    def _probe_container(self, image: str, image_variables: dict[str, str]) -> GpuFacts:
        from gpuinfra.runner.gpu import diagnose
        from gpuinfra.runner.helper_containers import run_once
        from gpuinfra.runner.nvidia_smi import NoGpuError, probe_container

        link, engine, gpus = self.link, self.link.engine, self.job.gpus
        own = {**self.job.variables, **self.job.secrets}
        variables = {name: value for name, value in own.items() if name.startswith("NVIDIA_")}
        with self._timed("gpu"), self._failure_reported():
            self.progress.begin("gpu", "checking it in the job's image")
            try:
                facts = probe_container(
                    lambda command: run_once(
                        engine, image, command, gpus=gpus, timeout=PROBE_SECONDS, environment=variables
                    )
                )
            except (NoGpuError, JobError) as error:
                if isinstance(error, JobError) and error.code != Code.NO_GPU:
                    raise
                name = str(self.job.image_name)
                where = link.target.name
                raise diagnose(
                    error, shell=link.connection, in_container=True, wanted=gpus, image=name, where=where
                ) from error
            if problem := self._hidden_gpus(facts, image_variables):
                raise problem
            self.progress.end("gpu", facts.summary)
        return facts

    def _hidden_gpus(self, facts: GpuFacts, inherited: Mapping[str, str]) -> JobError | None:
        """Return the error for a variable of the job that hides every GPU, or None if the job sees one.

        Without a shell in the image, the check cannot read the job's variables: `inherited` are those of the image.
        """
        from gpuinfra.runner.gpu import hidden_gpus, hides_all
        from gpuinfra.runner.nvidia_smi import VISIBLE

        job, where = self.job, self.link.target.name
        if not job.in_container and self.job.gpus and (self.job.gpus.ids or self.job.gpus.count is not None):
            return None  # the target sets the variable itself
        own = {**job.variables, **job.secrets}
        seen = facts.cuda_visible_devices
        value = own.get(VISIBLE, inherited.get(VISIBLE) if seen is None else seen)
        if value is None or not hides_all(value, facts):
            return None
        if VISIBLE in own:
            place = job.source_of(VISIBLE, value)
        elif job.in_container:
            place = f"in the image `{job.image_name}`"
        else:
            place = f"for logins on `{where}`" if self.link.target.address else "in the shell of this computer"
        return hidden_gpus(VISIBLE if VISIBLE in job.secrets else f"{VISIBLE}={value}", place)

    def _on_machine(self) -> JobEnvironment:
        from gpuinfra.runner.gpu import diagnose, shortage
        from gpuinfra.runner.nvidia_smi import NoGpuError, probe_host

        found = self._python_environment()
        if self.job.gpus is None:
            return found
        connection = self.link.connection  # connect before the step for the GPU
        with self._timed("gpu"), self._failure_reported():
            self.progress.begin("gpu", "checking it")
            try:
                facts = probe_host(connection, PROBE_SECONDS)
            except NoGpuError as error:
                if self.job.requires_gpu:
                    where = self.link.target.name
                    raise diagnose(
                        error, shell=connection, in_container=False, wanted=self.job.gpus, where=where
                    ) from error
                self.progress.end("gpu", "none")
                return found
            if problem := shortage(facts, self.job.gpus, self.link.target.name):
                raise problem
            if problem := self._hidden_gpus(facts, {}):
                if self.job.requires_gpu:
                    raise problem
                self.progress.end("gpu", f"none: {problem}")
                return found
            self.progress.end("gpu", facts.summary)
        self._check_frameworks(found, facts)
        return replace(found, gpu=facts)

    def _python_environment(self) -> JobEnvironment:
        """Return the job's own Python environment, or the target's Python."""
        job = self.job
        if not job.has_own_environment or job.packages is None:
            return JobEnvironment((self._own_python(),))
        from gpuinfra.runner.environment.venv import ensure_venv

        with self._timed("environment"):
            made = ensure_venv(
                self.link.remote,
                job.packages,
                job.project,
                self.progress,
                self.output,
                fresh=job.rebuild,
                may_build=job.prepares or job.rebuild,
                build_secrets=job.build_secrets,
            )
        if made is None:
            return JobEnvironment((self._own_python(),))
        return JobEnvironment((made.python,), tag=made.tag, built=made.built, folder=made.folder)

    def _own_python(self) -> str:
        """Return the interpreter of a target without containers."""
        if self.link.target.address:
            return "python3"
        import sys

        return find_job_program("python") or find_job_program("python3") or sys.executable

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.timings[phase] = round(time.monotonic() - began, 3)

    @contextmanager
    def _failure_reported(self) -> Iterator[None]:
        try:
            yield
        except JobError as error:
            self.progress.fail("gpu", error.summary)
            raise
        except Problem as problem:
            self.progress.fail("gpu", problem.diagnostics[0].summary)
            raise


def unused_gpu_image(job: JobSpec) -> str | None:
    """Return the warning for a job that gets no GPU, although its image is for GPUs or no file says so, or None."""
    image = job.base_image
    if not job.in_container or job.gpus or job.dockerfile:
        return None
    if image is None and not job.says_gpu:
        return f"the job runs on the CPU: `{job.target.name}` gives it no GPU; `--gpus all` gives it all GPUs"
    if not is_for_gpu(image):
        return None
    return f"the job runs on the CPU: its image {image} is for GPUs, and it gets none; `--gpus all` gives it all GPUs"


def note_for(job: JobSpec) -> str | None:
    """Return the note for a conda file that is not used, because jobs run without a container; None if it is used."""
    owner = {LOCAL: "this computer", REMOTE: "the machine"}.get(job.target.type)
    if owner is None or job.packages is None or job.has_own_environment:
        return None
    path, kind = job.packages.path.rpartition("/")[2], job.target.type
    return f"`{path}` is not used: a `{kind}` target uses the Python and packages of {owner}"
