"""Log in to a machine, copy files and run commands beside a job with OpenSSH; configure OpenSSH for a machine."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from gpuinfra.app.host_keys import own_ssh_files
from gpuinfra.app.machine_names import bad_host_key, target_named, with_checked_key
from gpuinfra.app.settings import Settings
from gpuinfra.app.workspace import open_workspace, target_of_run
from gpuinfra.diagnostics import Code, Exit, problem
from gpuinfra.models.target import Target
from gpuinfra.programs import find_program
from gpuinfra.runner.beside import command_beside
from gpuinfra.runner.connection import openssh
from gpuinfra.runner.connection.known_hosts import host_name
from gpuinfra.runner.connection.openssh import SshFiles
from gpuinfra.runner.connection.private_keys import with_own_key
from gpuinfra.runner.errors import HostKeyInvalid


@dataclass(frozen=True)
class SshConfig:
    """The files that configure OpenSSH for a machine."""

    host: str
    known_hosts: Path
    config: Path
    changed: list[Path]
    is_included: bool
    """Whether the user's own configuration includes them."""


def login_command(settings: Settings, name: str, words: Sequence[str]) -> tuple[Target, list[str]]:
    """Return the machine, and the OpenSSH command that logs in to it or runs `words` there."""
    target, files, _ = _remember(target_named(settings, name), configures=False)
    return target, openssh.command(target, files.known_hosts, words)


def copy_command(settings: Settings, source: str, destination: str) -> tuple[Target, list[str]]:
    """Return the machine, and the command that copies between it and this computer. One path is `NAME:PATH`."""
    from_machine, to_machine = _remote_path(source), _remote_path(destination)
    if (from_machine is None) == (to_machine is None):
        note = "one of the two paths is on a machine, as `NAME:PATH`, and the other one is here"
        help_line = "for example `gpuinfra cp my-dsvm:data/a.csv .`; write `./a:b` for a file here whose name has a `:`"
        raise problem(Code.USAGE, "wrong usage", note, help_line, exit_code=Exit.USAGE)
    name, path = from_machine or to_machine or ("", "")
    target, files, _ = _remember(target_named(settings, name), configures=False)
    local = destination if from_machine else source
    is_upload = to_machine is not None
    return target, openssh.copy_command(target, files.known_hosts, path, local, is_upload=is_upload)


def _remote_path(word: str) -> tuple[str, str] | None:
    """Return the machine and the path in `NAME:PATH`, or None for a path on this computer."""
    name, mark, path = word.partition(":")
    return (name, path) if mark and name and "/" not in name else None


def exec_command(settings: Settings, run_id: str, words: Sequence[str], *, terminal: bool) -> list[str]:
    """Return the command that runs `words` beside the job of a run. With `terminal`, they get one."""
    if not words:
        help_line = f"for example `gpuinfra exec {quote(run_id)} -- nvidia-smi`"
        raise problem(
            Code.USAGE, "no command", "nothing says what to run beside the job", help_line, exit_code=Exit.USAGE
        )
    workspace = open_workspace(settings)
    run = workspace.history.find(run_id)
    if run.state.is_over or run.job is None:
        found = "has ended" if run.state.is_over else "has not started"
        help_line = "`gpuinfra runs` lists the runs that are active"
        raise problem(Code.NO_SUCH_RUN, "no running job", f"the job of run {run.id} {found}", help_line)
    target, _ = target_of_run(workspace, run)
    python = sys.executable if target.is_here else "python3"
    command = command_beside(run.job, run.id, words, python, terminal=terminal)
    if target.is_here:
        return command
    target = with_own_key(with_checked_key(settings, target))
    target, files, _ = _remember(target, configures=False)
    return openssh.command(target, files.known_hosts, [shlex.join(command)], terminal=terminal)


def configure_ssh(settings: Settings, name: str) -> SshConfig:
    """Write the machine's block of OpenSSH's configuration, and return the files."""
    target, files, changed = _remember(target_named(settings, name), configures=True)
    return SshConfig(host_name(target), files.known_hosts, files.config, changed, _is_included(files.config))


def _remember(target: Target, *, configures: bool) -> tuple[Target, SshFiles, list[Path]]:
    files = own_ssh_files()
    try:
        return target, files, files.configure(target) if configures else files.remember(target)
    except HostKeyInvalid as error:
        raise bad_host_key(error) from error
    except OSError as error:
        note = f"`{error.filename or files.folder}`: {error.strerror}"
        raise problem(Code.FILE_UNWRITABLE, "file cannot be written", note) from error


def _is_included(file: Path) -> bool:
    home = Path.home()
    try:
        text = (home / ".ssh" / "config").read_text("utf-8", "replace")
    except OSError:
        return False
    return openssh.includes(text, file, home)


def client_program(name: str) -> str:
    """Return the path of a program of this computer: `ssh`, `scp` or `docker`. Raise Problem if it is not installed."""
    program = name if "/" in name else find_program(name)
    if program is not None:
        return program
    if name == "docker":
        help_line = "install Docker's command line, as with `apt-get install docker-cli`"
        raise problem(Code.NO_ENGINE, "no `docker` on this computer", "it was not found in PATH", help_line)
    raise problem(
        Code.NO_SSH_PROGRAM,
        f"no `{name}` on this computer",
        "OpenSSH's client was not found in PATH",
        "install it, as with `apt-get install openssh-client`",
    )
