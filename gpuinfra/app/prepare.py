"""Make the environment of a run configuration on its target, before a job needs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuinfra.app.job_options import build_secrets_of

if TYPE_CHECKING:
    from gpuinfra.app.frontend import Frontend
    from gpuinfra.app.settings import Settings
    from gpuinfra.runner.job_environment import JobEnvironment


@dataclass(frozen=True)
class Prepared:
    """An environment that is ready on a target."""

    target: str
    environment: JobEnvironment
    unused: str | None
    """Why the target does not use the conda file, if it does not."""


def prepare(
    settings: Settings,
    configuration: str,
    build_secrets: Sequence[str],
    progress: Frontend,
    *,
    rebuild: bool,
    send_credentials: bool,
) -> Prepared:
    """Make image and packages, and check the GPU. `build_secrets` are names of environment variables."""
    from gpuinfra.app.host_keys import record_first_use
    from gpuinfra.app.job_checks import check_packages
    from gpuinfra.app.job_destination import check_job_destination
    from gpuinfra.app.workspace import linked, open_workspace, with_spec
    from gpuinfra.runner.assignment import assign
    from gpuinfra.runner.environment.unused import note_for
    from gpuinfra.runner.job_environment import EnvironmentBuilder, gpus_of, is_required
    from gpuinfra.runner.problems import explained

    workspace = open_workspace(settings)
    assigned = assign(workspace.path, configuration)
    check_job_destination(workspace.path, assigned)
    assigned, _ = with_spec(workspace, assigned)
    secrets = build_secrets_of(build_secrets)
    check_packages(assigned, None, secrets)
    target = assigned.target
    with linked(target, progress, send_credentials=send_credentials) as link, explained(target.name):
        assigned = replace(assigned, prepares=True)
        gpus, required = gpus_of(assigned, None), is_required(assigned, None)
        environment = EnvironmentBuilder(
            assigned, gpus, required, link, progress, progress.note, rebuild=rebuild, build_secrets=secrets
        ).make()
        record_first_use(target, progress)
    return Prepared(target.name, environment, note_for(target.type) if assigned.conda else None)
