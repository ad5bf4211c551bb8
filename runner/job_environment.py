"""What a job stands on: an image with its environment, an interpreter, and a GPU that answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuinfra.diagnostics import Code
from gpuinfra.models.gpu import GpuFacts
from gpuinfra.programs import find_job_program
from gpuinfra.runner.assignment import Assignment, WantsGpu
from gpuinfra.runner.environment.made import Environment
from gpuinfra.runner.jobs.order import Gpus
from gpuinfra.runner.jobs.port import JobError
from gpuinfra.runner.machine.link import Link
from gpuinfra.runner.progress import Progress
from gpuinfra.workbench.cuda import is_for_gpu

if TYPE_CHECKING:
    from gpuinfra.runner.engine.images import ImageFacts

PROBE_SECONDS = 120.0


@dataclass(frozen=True)
class JobEnvironment:
    """What there is now."""

    python: tuple[str, ...]
    """The words that start the interpreter."""
    image: str | None = None
    """The image's id."""
    tag: str | None = None
    built: bool = False
    gpu: GpuFacts | None = None
    timings: dict[str, float] = field(default_factory=dict)


@dataclass
class EnvironmentBuilder:
    """Makes it, on the target. Every call raises ConnectError, JobError and Problem."""

    assignment: Assignment
    gpus: Gpus | None
    """Those that the job is to get; None for a job without."""
    required: bool
    """Whether a job that finds none must not run."""
    link: Link
    progress: Progress
    output: Callable[[str], None]
    """Hears what the building of an environment prints."""
    rebuild: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    """The job's own variables: those for NVIDIA's runtime decide what it sees."""
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    """More of the job's own variables, whose values nothing prints."""
    build_secrets: dict[str, str] = field(default_factory=dict, repr=False)
    """Values for `${NAME}` in the requirements."""
    timings: dict[str, float] = field(default_factory=dict)

    def make(self) -> JobEnvironment:
        """All of it."""
        return self._in_container() if self.assignment.in_container else self._on_machine()

    def _in_container(self) -> JobEnvironment:
        from gpuinfra.runner.engine.images import ensure_image
        from gpuinfra.runner.environment.made import python_of

        with self._timed("environment"):
            base = ensure_image(self.link.engine, str(self.assignment.base_image), self.progress)
            made = self._environment(base)
        facts = self._probe_container(made.image) if self.gpus else None
        return JobEnvironment(python_of(made), made.image, made.tag, made.built, facts, self.timings)

    def _environment(self, base: ImageFacts) -> Environment:
        assigned = self.assignment
        if assigned.conda is None:
            return Environment(base.id, base.name, built=False, python=None, seconds=0.0)
        from gpuinfra.runner.environment.build import ensure_environment

        return ensure_environment(
            self.link.engine,
            base,
            assigned.conda,
            assigned.project,
            self.progress,
            self.output,
            fresh=self.rebuild,
            may_build=assigned.prepares or self.rebuild,
            build_secrets=self.build_secrets,
        )

    def _probe_container(self, image: str) -> GpuFacts:
        from gpuinfra.runner.engine.helper import run_once
        from gpuinfra.runner.gpu.contract import diagnose
        from gpuinfra.runner.gpu.probe import NoGpuError, probe_container

        link, engine, gpus = self.link, self.link.engine, self.gpus
        variables = {name: value for name, value in self.environment.items() if name.startswith("NVIDIA_")}
        with self._timed("gpu"), self._failure_told():
            self.progress.begin("gpu", "asking for it in the job's own image")
            try:
                facts = probe_container(
                    lambda command: run_once(
                        engine, image, command, gpus=gpus, timeout=PROBE_SECONDS, environment=variables
                    )
                )
            except (NoGpuError, JobError) as error:
                if isinstance(error, JobError) and error.code != Code.NO_GPU:
                    raise
                name = str(self.assignment.base_image)
                where = link.target.name
                raise diagnose(
                    error, shell=link.connection, in_container=True, wanted=gpus, image=name, where=where
                ) from error
            if problem := self._hidden(facts):
                raise problem
            self.progress.end("gpu", facts.summary)
        return facts

    def _hidden(self, facts: GpuFacts) -> JobError | None:
        """The error for a variable of the job that hides every GPU; None if the job sees one."""
        from gpuinfra.runner.gpu.contract import hidden, hides_all
        from gpuinfra.runner.gpu.facts import VISIBLE

        assigned, where = self.assignment, self.link.target.name
        if not assigned.in_container and self.gpus and (self.gpus.ids or self.gpus.count is not None):
            return None  # the target sets the variable itself
        own = {**self.environment, **self.secrets}
        value = own.get(VISIBLE, facts.cuda_visible_devices)
        if value is None or not hides_all(value, facts):
            return None
        if VISIBLE in own:
            place = variable_place(assigned, VISIBLE, value)
        elif assigned.in_container:
            place = f"in the image `{assigned.base_image}`"
        else:
            place = f"for logins on `{where}`" if self.link.target.address else "in the shell of this computer"
        return hidden(VISIBLE if VISIBLE in self.secrets else f"{VISIBLE}={value}", place)

    def _on_machine(self) -> JobEnvironment:
        from gpuinfra.runner.gpu.contract import diagnose, shortage
        from gpuinfra.runner.gpu.probe import NoGpuError, probe_host

        python = (self._own_python(),)
        if self.gpus is None:
            return JobEnvironment(python)
        connection = self.link.connection  # an attempt to connect is not a question for the GPU
        with self._timed("gpu"), self._failure_told():
            self.progress.begin("gpu", "asking for it")
            try:
                facts = probe_host(connection, PROBE_SECONDS)
            except NoGpuError as error:
                if self.required:
                    where = self.link.target.name
                    raise diagnose(
                        error, shell=connection, in_container=False, wanted=self.gpus, where=where
                    ) from error
                self.progress.end("gpu", "none")
                return JobEnvironment(python, timings=self.timings)
            if problem := shortage(facts, self.gpus, self.link.target.name):
                raise problem
            if problem := self._hidden(facts):
                if self.required:
                    raise problem
                self.progress.end("gpu", f"none: {problem}")
                return JobEnvironment(python, timings=self.timings)
            self.progress.end("gpu", facts.summary)
            return JobEnvironment(python, gpu=facts, timings=self.timings)

    def _own_python(self) -> str:
        """The interpreter of a target without containers."""
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
    def _failure_told(self) -> Iterator[None]:
        try:
            yield
        except JobError as error:
            self.progress.fail("gpu", error.summary)
            raise


def variable_place(assignment: Assignment, name: str, value: str) -> str:
    """Where a job's own variable gets this value, for a message."""
    if assignment.environment.get(name) == value:
        return f"in the environment variables of `{assignment.configuration}.runconfig`"
    return "by `--env`, `--env-file` or `--secret`"


def gpus_of(assignment: Assignment, wanted: Gpus | None) -> Gpus | None:
    """The GPUs that a job is to get: those that were asked for, or what the target's file says."""
    if wanted is not None:
        return wanted
    return None if assignment.gpu is WantsGpu.NO else Gpus()


def unused_gpu_image(assignment: Assignment, wanted: Gpus | None) -> str | None:
    """The warning for a job whose image is for GPUs and that gets none; None where that is not so."""
    image = assignment.base_image
    if not assignment.in_container or gpus_of(assignment, wanted) or not is_for_gpu(image):
        return None
    return f"the job runs on the CPU: its image {image} is for GPUs, and it gets none; `--gpus all` gives it all GPUs"


def is_required(assignment: Assignment, wanted: Gpus | None) -> bool:
    """Whether a job without a GPU must not run."""
    return assignment.gpu is WantsGpu.REQUIRED or wanted is not None
