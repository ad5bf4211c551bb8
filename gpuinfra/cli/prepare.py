"""`gpuinfra prepare`: makes a target's environment before anything runs in it."""

from __future__ import annotations

from typing import Annotated

import typer

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
    from gpuinfra.app.prepare import prepare as make_environment
    from gpuinfra.views import environment as view

    settings = begin(context, reaches_cloud=False)
    with frontend(settings) as progress:
        made = make_environment(
            settings,
            configuration,
            build_secret or [],
            progress,
            rebuild=rebuild,
            send_credentials=send_credentials,
        )
    found = made.environment
    view.show(made.target, found.tag, found.image, found.gpu, made.unused, built=found.built, json=settings.json)
