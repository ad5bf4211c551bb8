"""`gpuinfra prepare`: build a job's environment in advance."""

from __future__ import annotations

import typer

from gpuinfra.cli.options import (
    BuildSecretOption,
    ConfigurationOption,
    RebuildOption,
    SendCredentialsOption,
    open_frontend,
    start_command,
)


def prepare(
    context: typer.Context,
    configuration: ConfigurationOption = None,
    rebuild: RebuildOption = False,
    build_secret: BuildSecretOption = None,
    send_credentials: SendCredentialsOption = False,
) -> None:
    """Build the environment of a run configuration on its target, and check the GPU."""
    from gpuinfra.app.prepare import prepare as make_environment
    from gpuinfra.views import job as view

    settings = start_command(context, reaches_cloud=False)
    with open_frontend(settings) as frontend:
        made = make_environment(
            settings,
            configuration,
            build_secret or [],
            frontend,
            rebuild=rebuild,
            send_credentials=send_credentials,
        )
    found = made.environment
    view.show_environment(
        made.target, found.tag, found.image, found.gpu, made.unused, built=found.built, json=settings.json
    )
