"""Export a machine for other programs: an ARM template, a block for ~/.ssh/config, or a Docker context."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuinfra.app.frontend import Frontend
from gpuinfra.app.machine_names import bad_host_key, target_named
from gpuinfra.app.plan import public_key_for, ssh_sources
from gpuinfra.app.settings import Settings
from gpuinfra.app.specs import one_spec
from gpuinfra.diagnostics import Code, Exit, Problem, did_you_mean, listed, problem
from gpuinfra.provision.template import make_template, notes
from gpuinfra.runner.connection import openssh
from gpuinfra.runner.connection.known_hosts import HostKey, host_name
from gpuinfra.runner.docker import context
from gpuinfra.runner.errors import HostKeyInvalid

ARM, SSH_CONFIG, DOCKER_CONTEXT = "arm", "ssh-config", "docker-context"


@dataclass(frozen=True)
class Export:
    """The exported content, notes about its limits, and a hint how to use the file."""

    name: str
    content: str | bytes | dict[str, Any]
    """A dict is written as JSON."""
    notes: tuple[str, ...]
    hint: Callable[[Path], str]


def check_format(form: str) -> None:
    """Raise Problem if the format does not exist."""
    _maker(form)


def export(settings: Settings, name: str, form: str, frontend: Frontend) -> Export:
    """Return a machine in a format: `arm`, `ssh-config` or `docker-context`."""
    return _maker(form)(settings, name, frontend)


def _maker(form: str) -> Callable[[Settings, str, Frontend], Export]:
    makers = {ARM: _arm, SSH_CONFIG: _ssh_config, DOCKER_CONTEXT: _docker_context}
    if form in makers:
        return makers[form]
    note = f"there is no format `{form}`; it can be {listed(makers)}"
    raise usage(note, did_you_mean(form, makers) or "`gpuinfra export --help` shows how")


def usage(note: str, help_line: str) -> Problem:
    """Return the Problem for an invalid option."""
    return problem(Code.USAGE, "wrong usage", note, help_line, exit_code=Exit.USAGE)


def _quoted(path: Path | str) -> str:
    return shlex.quote(str(path))


def _arm(settings: Settings, name: str, frontend: Frontend) -> Export:
    spec = one_spec(settings, name)
    key = public_key_for(settings, spec, frontend, creates=True)
    template = make_template(spec, ssh_sources(spec, simulated=settings.cloud == "sandbox"), key)
    group = _quoted(spec.group_name)
    return Export(
        spec.name,
        template,
        tuple(notes(spec)),
        lambda file: (
            f"az group create --name {group} --location {spec.regions[0]}, then: "
            f"az deployment group create --resource-group {group} --template-file {_quoted(file)}"
        ),
    )


def _ssh_config(settings: Settings, name: str, _: Frontend) -> Export:
    target = target_named(settings, name)
    try:
        block = openssh.standalone_block(target)
    except HostKeyInvalid as error:
        raise bad_host_key(error) from error
    host = host_name(target)
    return Export(
        target.machine,
        block,
        (),
        lambda file: f"put at the top of ~/.ssh/config: Include {_quoted(file.absolute())}, then: ssh {host}",
    )


def _docker_context(settings: Settings, name: str, _: Frontend) -> Export:
    target = target_named(settings, name)
    try:
        fingerprint, line = HostKey.parse(target.host_key).fingerprint, context.known_hosts_line(target)
    except HostKeyInvalid as error:
        raise bad_host_key(error) from error
    notes = [
        f"docker reaches {target.machine} by ssh; its host key is {fingerprint}",
        f"for ssh to know it, add this line to ~/.ssh/known_hosts: {line}",
    ]
    if target.identity:
        notes.append(f"for ssh to have your key, run: ssh-add {_quoted(target.identity)}")
    return Export(
        target.machine,
        context.archive(target),
        tuple(notes),
        lambda file: f"docker context import {target.machine} {_quoted(file)}",
    )
