"""`gpuinfra attach`: make an existing machine a target."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuinfra.cli.options import open_frontend, start_command

LONGEST = "1m"


def attach(  # noqa: PLR0913, PLR0917 each is an option
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The target's name, and the name of its two files.")],
    address: Annotated[
        str, typer.Option("--address", metavar="HOST", help="Address of the machine: host or host:port.")
    ],
    username: Annotated[str, typer.Option("--username", metavar="USER", help="User name for SSH.")],
    port: Annotated[int | None, typer.Option("--port", min=1, max=65535, help="SSH port. Default: 22.")] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="PATH", help="Private key. Default: the SSH agent and your own keys."),
    ] = None,
    password_stdin: Annotated[
        bool, typer.Option("--password-stdin", help="Log in with a password, read from standard input.")
    ] = False,
    kind: Annotated[
        str, typer.Option("--type", help="remotedocker (jobs in containers) or remote (jobs in the machine's Python).")
    ] = "remotedocker",
    host_key: Annotated[
        str | None,
        typer.Option("--host-key", metavar="KEY", help="Expected host key or fingerprint. Without it, attach asks."),
    ] = None,
    base_image: Annotated[str | None, typer.Option("--base-image", metavar="IMAGE", help="Base image of jobs.")] = None,
    python: Annotated[
        str | None,
        typer.Option("--python", metavar="PATH", help="Python on the machine for jobs of `--type remote`."),
    ] = None,
    no_gpu: Annotated[bool, typer.Option("--no-gpu", help="Do not require or use a GPU.")] = False,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="TIME", help="Time limit for the login, and for the checks.")
    ] = LONGEST,
) -> None:
    """Make an existing machine a target: check SSH, Docker and GPU, then write its two files."""
    from gpuinfra.app.attach import AttachOptions, check_options, read_address, read_identity
    from gpuinfra.app.attach import attach as run_attach
    from gpuinfra.app.settings import seconds_of
    from gpuinfra.views import targets as view

    settings = start_command(context, reaches_cloud=False)
    host, at = read_address(address, port)
    options = AttachOptions(
        name=name,
        address=host,
        port=at,
        username=username,
        type=kind,
        gpu=not no_gpu,
        identity=read_identity(key) if key else None,
        by_password=password_stdin,
        host_key=host_key,
        image=base_image,
        python=python,
    )
    check_options(options)
    seconds = seconds_of("--timeout", timeout)
    with open_frontend(settings) as frontend:
        attached = run_attach(settings, options, seconds, frontend)
    view.show_attached(attached, json=settings.json)
