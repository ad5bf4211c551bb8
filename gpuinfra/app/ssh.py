"""Log in to a machine with OpenSSH, or configure OpenSSH for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuinfra.app.host_keys import own_ssh_files
from gpuinfra.app.machine_names import bad_host_key, target_named
from gpuinfra.app.settings import Settings
from gpuinfra.diagnostics import Code, problem
from gpuinfra.models.target import Target
from gpuinfra.programs import find_program
from gpuinfra.runner.connection import openssh
from gpuinfra.runner.connection.known_hosts import host_name
from gpuinfra.runner.connection.openssh import SshFiles
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
    target, files, _ = _remember(settings, name, configures=False)
    return target, openssh.command(target, files.known_hosts, words)


def configure_ssh(settings: Settings, name: str) -> SshConfig:
    """Write the machine's block of OpenSSH's configuration, and return the files."""
    target, files, changed = _remember(settings, name, configures=True)
    return SshConfig(host_name(target), files.known_hosts, files.config, changed, _is_included(files.config))


def _remember(settings: Settings, name: str, *, configures: bool) -> tuple[Target, SshFiles, list[Path]]:
    target, files = target_named(settings, name), own_ssh_files()
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


def ssh_program(name: str) -> str:
    """Return the path of OpenSSH's client. Raise Problem if it is not installed."""
    program = find_program(name)
    if program is None:
        raise problem(
            Code.NO_SSH_PROGRAM,
            "no `ssh` on this computer",
            "OpenSSH's client was not found in PATH",
            "install it, as with `apt-get install openssh-client`",
        )
    return program
