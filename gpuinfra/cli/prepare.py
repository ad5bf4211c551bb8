"""`gpuinfra prepare`: makes a target's environment before anything runs in it."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from gpuinfra.app.job_options import build_secrets_of
from gpuinfra.cli.job_options import BuildSecretOption, RebuildOption, SendCredentialsOption
from gpuinfra.cli.options import begin, frontend


def prepare(
    context: typer.Context,
    configuration: Annotated[
        str, typer.Option("--configuration", "-c", metavar="NAME", help="The run configuration, as `up` writes it.")
    ],
    rebuild: RebuildOption = False,
    build_secret: BuildSecretOption = None,
    send_credentials: SendCredentialsOption = False,
) -> None:
    """Make the environment of a run configuration on its target: image, packages, and a look at the GPU."""
    from gpuinfra.app.job_checks import check_packages
    from gpuinfra.app.workspace import linked, open_workspace, with_spec
    from gpuinfra.runner.assignment import assign
    from gpuinfra.runner.environment.unused import note_for
    from gpuinfra.runner.job_environment import EnvironmentBuilder, gpus_of, is_required
    from gpuinfra.runner.problems import explained
    from gpuinfra.views import environment as view

    settings = begin(context, reaches_cloud=False)
    desk = open_workspace(settings)
    assigned, _ = with_spec(desk, assign(desk.workspace, configuration))
    build_secrets = build_secrets_of(build_secret or ())
    check_packages(assigned, None, build_secrets)
    with (
        frontend(settings) as progress,
        linked(assigned.target, progress, send_credentials=send_credentials) as link,
        explained(assigned.target.name),
    ):
        assigned = replace(assigned, prepares=True)
        gpus, required = gpus_of(assigned, None), is_required(assigned, None)
        ground = EnvironmentBuilder(
            assigned, gpus, required, link, progress, progress.note, rebuild=rebuild, build_secrets=build_secrets
        ).make()
    unused = note_for(assigned.target.type) if assigned.conda else None
    view.show(
        assigned.target.name, ground.tag, ground.image, ground.gpu, unused, built=ground.built, json=settings.json
    )
