"""`gpuinfra ssh`: finds a machine and hands over to OpenSSH."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuinfra.app.settings import Settings
from gpuinfra.cli.options import begin
from gpuinfra.cli.signals import restore_signals
from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem
from gpuinfra.programs import find_program

if TYPE_CHECKING:
    from gpuinfra.models.target import Target
    from gpuinfra.runner.ssh_files import SshFiles

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
    from gpuinfra.app.host_keys import own_ssh_files
    from gpuinfra.app.machines import bad_host_key, target_named
    from gpuinfra.runner import openssh
    from gpuinfra.runner.machine.connection import HostKeyInvalid
    from gpuinfra.views import document

    settings = begin(context)
    if config and words:
        raise _usage("`--config` writes files and runs no command")
    target, files = target_named(settings, name), own_ssh_files()
    try:
        changed = files.configure(target) if config else files.remember(target)
    except HostKeyInvalid as error:
        raise bad_host_key(error) from error
    except OSError as error:
        note = f"`{error.filename or files.folder}`: {error.strerror}"
        raise Problem(Diagnostic(Code.FILE_UNWRITABLE, "file cannot be written", note=note)) from error
    if config:
        _show_config(settings, target, files, changed)
        return
    command = openssh.command(target, files.known_hosts, words or ())
    if settings.json:
        document.show({"name": target.machine, "target": target.as_json(), "command": command})
    else:
        _hand_over(command)


def _show_config(settings: Settings, target: Target, files: SshFiles, changed: list[Path]) -> None:
    from gpuinfra.runner.openssh import host_name
    from gpuinfra.views import document
    from gpuinfra.views import files as view

    included = _is_included(files.config)
    if settings.json:
        paths = [str(files.known_hosts), str(files.config)]
        document.show({"files": paths, "include": INCLUDE, "included": included})
        return
    hint = f"ssh {host_name(target)}" if included else f"put at the top of ~/.ssh/config: {INCLUDE}"
    view.show_written(changed, hint=hint)


def _is_included(file: Path) -> bool:
    from gpuinfra.runner import openssh

    home = Path.home()
    try:
        text = (home / ".ssh" / "config").read_text("utf-8", "replace")
    except OSError:
        return False
    return openssh.includes(text, file, home)


def _hand_over(command: list[str]) -> None:
    """Become `ssh`: the terminal, the signals and the exit code are its own from here on."""
    program = find_program(command[0])
    if program is None:
        raise Problem(
            Diagnostic(
                Code.NO_SSH_PROGRAM,
                "no `ssh` on this computer",
                note="OpenSSH's client was not found in PATH",
                help="install it, as with `apt-get install openssh-client`",
            )
        )
    sys.stdout.flush()
    sys.stderr.flush()
    restore_signals()
    os.execv(program, command)  # noqa: S606 no shell is wanted: the words are the user's own


def _usage(note: str) -> Problem:
    return Problem(
        Diagnostic(Code.USAGE, "wrong usage", note=note, help="`gpuinfra ssh --help` shows how"), exit_code=Exit.USAGE
    )
