"""`gpuinfra ssh`: finds a machine and hands over to OpenSSH."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from gpuinfra.app.settings import Settings
from gpuinfra.cli.options import begin
from gpuinfra.cli.signals import restore_signals
from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem

INCLUDE = "Include ~/.gpuinfra/ssh/config"


def ssh(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The machine's name.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="CMD", help="After --: a command to run there, instead of a login.", show_default=False),
    ] = None,
    config: Annotated[
        bool, typer.Option("--config", help="Write a file for ~/.ssh/config to include; log in nowhere.")
    ] = False,
) -> None:
    """Log in to a machine by OpenSSH, with the right key, port and host key; the exit code is OpenSSH's."""
    from gpuinfra.app.ssh import login_command
    from gpuinfra.views import document

    settings = begin(context)
    if config and words:
        raise _usage("`--config` writes files and runs no command")
    if config:
        _configure(settings, name)
        return
    target, command = login_command(settings, name, words or ())
    if settings.json:
        document.show({"name": target.machine, "target": target.as_json(), "command": command})
    else:
        _hand_over(command)


def _configure(settings: Settings, name: str) -> None:
    from gpuinfra.app.ssh import configure_ssh
    from gpuinfra.views import document
    from gpuinfra.views import files as view

    written = configure_ssh(settings, name)
    if settings.json:
        paths = [str(written.known_hosts), str(written.config)]
        document.show({"files": paths, "include": INCLUDE, "included": written.is_included})
        return
    hint = f"ssh {written.host}" if written.is_included else f"put at the top of ~/.ssh/config: {INCLUDE}"
    view.show_written(written.changed, hint=hint)


def _hand_over(command: list[str]) -> None:
    """Become `ssh`: the terminal, the signals and the exit code are its own from here on."""
    from gpuinfra.app.ssh import ssh_program

    program = ssh_program(command[0])
    sys.stdout.flush()
    sys.stderr.flush()
    restore_signals()
    os.execv(program, command)  # noqa: S606 no shell is wanted: the words are the user's own


def _usage(note: str) -> Problem:
    return Problem(
        Diagnostic(Code.USAGE, "wrong usage", note=note, help="`gpuinfra ssh --help` shows how"), exit_code=Exit.USAGE
    )
