"""`gpuinfra attach`: a machine that exists already becomes a target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gpuinfra.app.attach_options import DOCKER, AttachOptions, check_options, read_address, read_identity
from gpuinfra.cli.options import begin, frontend

if TYPE_CHECKING:
    pass

LONGEST = "1m"


def attach(  # noqa: PLR0913, PLR0917 each is an option
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The target's name, which names its two files.")],
    address: Annotated[str, typer.Option("--address", metavar="HOST", help="The machine: host, or host:port.")],
    username: Annotated[str, typer.Option("--username", metavar="USER", help="Who logs in.")],
    port: Annotated[int | None, typer.Option("--port", min=1, max=65535, help="SSH's port; 22 if left out.")] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="PATH", help="The private key; the SSH agent's and your own if left out."),
    ] = None,
    password_stdin: Annotated[
        bool, typer.Option("--password-stdin", help="Log in by a password, the first line of standard input.")
    ] = False,
    kind: Annotated[
        str, typer.Option("--type", help="remotedocker: jobs in containers; remote: in the machine's Python.")
    ] = DOCKER,
    host_key: Annotated[
        str | None,
        typer.Option("--host-key", metavar="KEY", help="The machine's host key, or its fingerprint: nobody is asked."),
    ] = None,
    base_image: Annotated[
        str | None, typer.Option("--base-image", metavar="IMAGE", help="The image that jobs are built on.")
    ] = None,
    no_gpu: Annotated[bool, typer.Option("--no-gpu", help="The machine has no GPU, and jobs get none.")] = False,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="TIME", help="How long the login may take, and then the look.")
    ] = LONGEST,
) -> None:
    """Make a machine that exists already a target: check SSH, Docker and GPU, and write its two files."""
    from gpuinfra.app.attach import attach as run_attach
    from gpuinfra.app.durations import seconds_of
    from gpuinfra.views import attached as view

    settings = begin(context, reaches_cloud=False)
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
    )
    check_options(options)
    seconds = seconds_of("--timeout", timeout)
    with frontend(settings) as progress:
        attached = run_attach(settings, options, seconds, progress)
    view.show(attached, json=settings.json)
