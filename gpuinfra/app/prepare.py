"""Build the environment of a run configuration on its target, before a job needs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpuinfra.app.frontend import Frontend
from gpuinfra.app.host_keys import record_first_use
from gpuinfra.app.job_request import (
    build_secrets_of,
    check_job_destination,
    check_packages,
    confirm_local_job,
    with_environment_here,
)
from gpuinfra.app.settings import Settings
from gpuinfra.app.targets import default_configuration
from gpuinfra.app.workspace import linked, open_workspace, with_spec
from gpuinfra.runner.environment.builder import EnvironmentBuilder, JobEnvironment, note_for
from gpuinfra.runner.errors import job_problems
from gpuinfra.runner.resolve import read_job, with_spec_job


@dataclass(frozen=True)
class Prepared:
    """An environment that is ready on a target."""

    target: str
    environment: JobEnvironment
    unused: str | None
    """Why the target ignores the conda file, or None if it does not."""


def prepare(
    settings: Settings,
    configuration: str | None,
    build_secrets: Sequence[str],
    frontend: Frontend,
    *,
    rebuild: bool,
    send_credentials: bool,
) -> Prepared:
    """Build image and packages, and check the GPU. `build_secrets` are names of environment variables.

    Without a configuration, see `default_configuration`.
    """
    workspace = open_workspace(settings)
    job = read_job(workspace.path, configuration or default_configuration(workspace.path))
    check_job_destination(workspace.path, job)
    job, spec = with_spec(workspace, job)
    job = with_spec_job(with_environment_here(workspace.path, job), spec)
    # A run's variables do not affect the environment.
    job = replace(job, prepares=True, rebuild=rebuild, build_secrets=build_secrets_of(build_secrets), environment={})
    job = replace(job, spec_environment={})
    check_packages(job)
    confirm_local_job(job, settings, frontend, is_named=bool(configuration))
    target = job.target
    if job.environment_source:
        frontend.note(f"environment: {job.environment_source}")
    with linked(target, frontend, send_credentials=send_credentials) as link, job_problems(target.name):
        environment = EnvironmentBuilder(job, link, frontend, frontend.note).make()
        record_first_use(target, frontend)
    return Prepared(target.name, environment, note_for(job))
