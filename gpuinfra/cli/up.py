"""`gpuinfra up`: makes Azure match the file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gpuinfra.cli.options import begin, frontend

if TYPE_CHECKING:
    from gpuinfra.models.up_result import UpResult

LONGEST = "1h"


def up(
    context: typer.Context,
    specs: Annotated[list[str], typer.Argument(metavar="SPEC", help="Files and directories; - is standard input.")],
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="TIME", help="Give up after this long for each machine.")
    ] = LONGEST,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Put the tags back on a machine that has lost them; asks first.")
    ] = False,
    delete: Annotated[
        bool,
        typer.Option(
            "--delete", help="With --yes: let a replacement delete a disk with outputs that were not fetched."
        ),
    ] = False,
    host_key: Annotated[
        str | None,
        typer.Option("--host-key", metavar="KEY", help="Accept a machine with this host key, or this fingerprint."),
    ] = None,
) -> int:
    """Make Azure match specs: create, change or start machines, wait until they answer, write their targets."""
    from gpuinfra.app.durations import seconds_of
    from gpuinfra.app.error_collector import ErrorCollector
    from gpuinfra.app.machines import load_specs
    from gpuinfra.app.up import up as provision
    from gpuinfra.views import up as view

    settings = begin(context)
    seconds = seconds_of("--timeout", timeout)
    found = load_specs(specs)
    brought: list[UpResult] = []
    errors = ErrorCollector()
    try:
        with frontend(settings) as progress:
            for located in found:
                with errors.capture():
                    brought.append(
                        provision(
                            settings,
                            located,
                            seconds,
                            progress,
                            adopt=adopt,
                            delete=delete,
                            host_key=host_key,
                            asks=True,
                        )
                    )
    except KeyboardInterrupt:
        if brought:
            view.show(brought, errors.diagnostics, json=settings.json)
        raise
    view.show(brought, errors.diagnostics, json=settings.json)
    return errors.exit_code()
