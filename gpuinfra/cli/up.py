"""`gpuinfra up`: make Azure match the specs."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuinfra.cli.options import SpecsArgument, open_frontend, start_command

LONGEST = "1h"


def up(
    context: typer.Context,
    specs: SpecsArgument = None,
    timeout: Annotated[str, typer.Option("--timeout", metavar="TIME", help="Time limit for each machine.")] = LONGEST,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Restore gpuinfra's tags on a machine that has lost them.")
    ] = False,
    delete: Annotated[
        bool,
        typer.Option("--delete", help="With --yes: allow a replacement to delete a disk with unfetched outputs."),
    ] = False,
    host_key: Annotated[
        str | None,
        typer.Option("--host-key", metavar="KEY", help="Accept this host key or fingerprint."),
    ] = None,
) -> int:
    """Make Azure match the specs: create, change or start machines, wait for SSH, and write target files."""
    from gpuinfra.app.down import note_left_on
    from gpuinfra.app.settings import seconds_of
    from gpuinfra.app.specs import specs_at
    from gpuinfra.app.up import UpOptions, up_all
    from gpuinfra.views import plan as view

    settings = start_command(context)
    options = UpOptions(seconds_of("--timeout", timeout), adopt=adopt, delete=delete, host_key=host_key)
    found = specs_at(settings, specs or [])
    with open_frontend(settings) as frontend:
        brought, errors, ended_by = up_all(settings, found, options, frontend)
    if brought or not ended_by:
        view.show_up(brought, errors.diagnostics, json=settings.json)
    if ended_by:
        raise ended_by
    with open_frontend(settings) as frontend:
        note_left_on(settings, [located.spec.name for located in found], frontend)
    return errors.exit_code()
