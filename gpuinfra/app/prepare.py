"""Build the environment of a run configuration on its target, before a job needs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpuinfra.app.frontend import Frontend
from gpuinfra.app.host_keys import record_first_use
from gpuinfra.app.job_request import build_secrets_of, check_job_destination, check_packages, confirm_local_job
from gpuinfra.app.settings import Settings
from gpuinfra.app.workspace import linked, open_workspace, with_spec
from gpuinfra.runner.environment.builder import EnvironmentBuilder, JobEnvironment, note_for
from gpuinfra.runner.errors import job_problems
from gpuinfra.runner.resolve import read_job


@dataclass(frozen=True)
class Prepared:
    """An environment that is ready on a target."""

    target: str
    environment: JobEnvironment
    unused: str | None
    """Why the target ignores the conda file, or None if it does not."""


def prepare(
    settings: Settings,
    configuration: str,
    build_secrets: Sequence[str],
    frontend: Frontend,
    *,
    rebuild: bool,
    send_credentials: bool,
) -> Prepared:
    """Build image and packages, and check the GPU. `build_secrets` are names of environment variables."""
    workspace = open_workspace(settings)
    job = read_job(workspace.path, configuration)
    check_job_destination(workspace.path, job)
    job, _ = with_spec(workspace, job)
    # A run's variables do not affect the environment.
    job = replace(job, prepares=True, rebuild=rebuild, build_secrets=build_secrets_of(build_secrets), environment={})
    check_packages(job)
    confirm_local_job(job, settings, frontend)
    target = job.target
    with linked(target, frontend, send_credentials=send_credentials) as link, job_problems(target.name):
        environment = EnvironmentBuilder(job, link, frontend, frontend.note).make()
        record_first_use(target, frontend)
    return Prepared(target.name, environment, note_for(target.type) if job.conda else None)
