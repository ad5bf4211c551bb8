"""`gpuinfra ssh`: log in to a machine with OpenSSH."""

from __future__ import annotations

import os
import sys
from typing import Annotated, NoReturn

import typer

from gpuinfra.app.interruption import restore_signals
from gpuinfra.app.settings import Settings
from gpuinfra.cli import completion
from gpuinfra.cli.options import start_command
from gpuinfra.diagnostics import Code, Exit, Problem, problem

INCLUDE = "Include ~/.gpuinfra/ssh/config"


def ssh(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(autocompletion=completion.machines, metavar="NAME", help="The machine's name.")
    ],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="CMD", help="Command to run on the machine, after --.", show_default=False),
    ] = None,
    config: Annotated[
        bool, typer.Option("--config", help="Write a file for ~/.ssh/config to include, instead of logging in.")
    ] = False,
) -> None:
    """Log in to a machine with OpenSSH, using the right key, port and host key."""
    from gpuinfra.app.ssh import login_command
    from gpuinfra.views import json_output

    settings = start_command(context)
    if config and words:
        raise _usage("`--config` does not run a command")
    if config:
        _configure(settings, name)
        return
    target, command = login_command(settings, name, words or ())
    if settings.json:
        json_output.show({"name": target.machine, "target": target.as_json(), "command": command})
    else:
        hand_over(command)


def _configure(settings: Settings, name: str) -> None:
    from gpuinfra.app.ssh import configure_ssh
    from gpuinfra.views import files as view
    from gpuinfra.views import json_output

    written = configure_ssh(settings, name)
    if settings.json:
        paths = [str(written.known_hosts), str(written.config)]
        json_output.show({"files": paths, "include": INCLUDE, "included": written.is_included})
        return
    hint = f"ssh {written.host}" if written.is_included else f"put at the top of ~/.ssh/config: {INCLUDE}"
    view.show_written(written.changed, hint=hint)


def hand_over(command: list[str]) -> NoReturn:
    """Replace this process with OpenSSH or another client, which gets the terminal and the signals."""
    from gpuinfra.app.ssh import client_program

    program = client_program(command[0])
    sys.stdout.flush()
    sys.stderr.flush()
    restore_signals()
    os.execv(program, command)  # noqa: S606 no shell is wanted: the words are the user's own


def _usage(note: str) -> Problem:
    return problem(Code.USAGE, "wrong usage", note, "see `gpuinfra ssh --help`", exit_code=Exit.USAGE)
