"""Prepare the environment of a job: an image or an interpreter, and a working GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuinfra.diagnostics import Code
from gpuinfra.models.gpu import GpuFacts
from gpuinfra.programs import find_job_program
from gpuinfra.runner.environment.build import Environment
from gpuinfra.runner.errors import JobError
from gpuinfra.runner.job_spec import JobSpec
from gpuinfra.runner.link import Link
from gpuinfra.runner.progress import Progress
from gpuinfra.workbench.compute import LOCAL, REMOTE
from gpuinfra.workbench.cuda import is_for_gpu

if TYPE_CHECKING:
    from gpuinfra.runner.docker.images import ImageFacts


PROBE_SECONDS = 120.0


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
            base = ensure_image(self.link.engine, str(self.job.base_image), self.progress)
            made = self._environment(base)
        facts = self._probe_container(made.image, base.environment) if self.job.gpus else None
        return JobEnvironment(python_of(made), made.image, made.tag, made.built, facts)

    def _environment(self, base: ImageFacts) -> Environment:
        job = self.job
        if job.conda is None:
            return Environment(base.id, base.name, built=False, python=None, seconds=0.0)
        from gpuinfra.runner.environment.build import ensure_environment

        return ensure_environment(
            self.link.engine,
            base,
            job.conda,
            job.project,
            self.progress,
            self.output,
            fresh=job.rebuild,
            may_build=job.prepares or job.rebuild,
            build_secrets=job.build_secrets,
        )

    def _probe_container(self, image: str, image_variables: dict[str, str]) -> GpuFacts:
        from gpuinfra.runner.gpu.check import diagnose
        from gpuinfra.runner.gpu.nvidia_smi import NoGpuError
        from gpuinfra.runner.gpu.probe import probe_container
        from gpuinfra.runner.jobs.helper_containers import run_once

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
                name = str(self.job.base_image)
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
        from gpuinfra.runner.gpu.check import hidden_gpus, hides_all
        from gpuinfra.runner.gpu.probe import VISIBLE

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
            place = f"in the image `{job.base_image}`"
        else:
            place = f"for logins on `{where}`" if self.link.target.address else "in the shell of this computer"
        return hidden_gpus(VISIBLE if VISIBLE in job.secrets else f"{VISIBLE}={value}", place)

    def _on_machine(self) -> JobEnvironment:
        from gpuinfra.runner.gpu.check import diagnose, shortage
        from gpuinfra.runner.gpu.nvidia_smi import NoGpuError
        from gpuinfra.runner.gpu.probe import probe_host

        python = (self._own_python(),)
        if self.job.gpus is None:
            return JobEnvironment(python)
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
                return JobEnvironment(python)
            if problem := shortage(facts, self.job.gpus, self.link.target.name):
                raise problem
            if problem := self._hidden_gpus(facts, {}):
                if self.job.requires_gpu:
                    raise problem
                self.progress.end("gpu", f"none: {problem}")
                return JobEnvironment(python)
            self.progress.end("gpu", facts.summary)
            return JobEnvironment(python, gpu=facts)

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


def unused_gpu_image(job: JobSpec) -> str | None:
    """Return the warning for a job that gets no GPU although its image is for GPUs, or None."""
    image = job.base_image
    if not job.in_container or job.gpus or not is_for_gpu(image):
        return None
    return f"the job runs on the CPU: its image {image} is for GPUs, and it gets none; `--gpus all` gives it all GPUs"


def note_for(target_type: str, path: str = "conda_dependencies.yml") -> str | None:
    """Return the note for a conda file that is not used, because jobs run without a container; None if it is used."""
    owner = {LOCAL: "this computer", REMOTE: "the machine"}.get(target_type)
    return f"`{path}` is not used: a `{target_type}` target uses the Python and packages of {owner}" if owner else None
