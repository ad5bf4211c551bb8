"""The start of every command: its shared options, its log and its frontend."""

from __future__ import annotations

import logging
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.main import get_command

from gpuinfra.app.settings import Settings

if TYPE_CHECKING:
    from gpuinfra.views.frontend import TerminalFrontend

PANEL = "Options of every command"

_KEY = "gpuinfra.options"


def start_command(context: typer.Context, *, reaches_cloud: bool = True, needs_state: bool = True) -> Settings:
    """Start the log, and the embedded Azure if needed, and return the command's settings."""
    from gpuinfra.app.settings import open_settings
    from gpuinfra.views.terminal import repeat_options

    given: dict[str, Any] = context.meta.get(_KEY, {})
    repeat_options(sandbox=bool(given.get("sandbox")), workspace=given.get("workspace"))
    settings = open_settings(
        json=bool(given.get("json")),
        yes=bool(given.get("yes")),
        verbose=bool(given.get("verbose")),
        sandbox=bool(given.get("sandbox")),
        workspace=given.get("workspace"),
        correlation_id=_start_log(verbose=bool(given.get("verbose"))),
        needs_state=needs_state,
    )
    if settings.ignores_state:
        open_frontend(settings).note(
            "ignoring the `.gpuinfra` folder of this workspace: it belongs to another user or computer"
        )
    if settings.cloud == "sandbox" and reaches_cloud:
        from gpuinfra.app.sandbox import Sandbox

        if endpoint := Sandbox().start_if_needed():
            from gpuinfra.views.sandbox import show_starting

            show_starting(endpoint)
    return settings


def _start_log(*, verbose: bool) -> str:
    """Start the log of `--verbose`. Return its correlation id, which Azure's logs also have."""
    correlation_id = str(uuid.uuid4())
    logger = logging.getLogger("gpuinfra")
    logger.setLevel(logging.DEBUG if verbose else logging.CRITICAL)
    logger.propagate = False
    form = logging.Formatter(
        f"%(asctime)s.%(msecs)03dZ %(levelname)s [{correlation_id}] %(name)s: %(message)s",
        "%Y-%m-%dT%H:%M:%S",
    )
    form.converter = time.gmtime
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(form)
    logger.handlers = [handler]
    return correlation_id


def open_frontend(settings: Settings) -> TerminalFrontend:
    """Return the frontend for progress and questions: live lines on a terminal, else plain lines."""
    from gpuinfra.views.frontend import TerminalFrontend

    return TerminalFrontend(json=settings.json, verbose=settings.verbose)


def shared_parameters() -> list[Any]:
    """Return the options as parameters for a command. Their values go to the context."""
    app = typer.Typer(add_completion=False)
    app.command()(_shared)
    parameters = list(get_command(app).params)
    for parameter in parameters:
        parameter.expose_value = False
    return parameters


def _keep(context: typer.Context, parameter: typer.CallbackParam, value: Any) -> Any:
    # Keep only given options: a flag before the command's name also applies to the command.
    if value:
        context.meta.setdefault(_KEY, {})[parameter.name] = value
    return value


def _shared(
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on stdout.", callback=_keep, rich_help_panel=PANEL)
    ] = False,
    yes: Annotated[
        bool,
        typer.Option("--yes", "-y", help="Answer yes to every question.", callback=_keep, rich_help_panel=PANEL),
    ] = False,
    sandbox: Annotated[
        bool,
        typer.Option(
            "--sandbox",
            help="Use the embedded Azure instead of Azure. Also: GPUINFRA_CLOUD=sandbox.",
            callback=_keep,
            rich_help_panel=PANEL,
        ),
    ] = False,
    workspace: Annotated[
        Path | None,
        typer.Option(
            "--workspace",
            metavar="DIR",
            help="The project's folder. Default: GPUINFRA_WORKSPACE, or the current folder.",
            callback=_keep,
            rich_help_panel=PANEL,
        ),
    ] = None,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            "-v",
            help="Log to stderr, with correlation ids for Azure.",
            callback=_keep,
            rich_help_panel=PANEL,
        ),
    ] = False,
) -> None:
    """Declare the shared options."""
