"""`gpuinfra export`: a machine in the words of other programs, so that anybody can leave at any time."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from gpuinfra.app.settings import Settings
from gpuinfra.cli.options import begin, frontend
from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem
from gpuinfra.suggest import did_you_mean, listed

ARM, SSH_CONFIG, DOCKER_CONTEXT = "arm", "ssh-config", "docker-context"


@dataclass(frozen=True)
class _Export:
    """What was made, what it cannot say itself, and what to do with its file."""

    name: str
    content: str | bytes
    notes: tuple[str, ...]
    hint: Callable[[Path], str]


def export(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The machine's name; for arm also its spec's file.")],
    form: Annotated[
        str,
        typer.Option(
            "--format", metavar="FORMAT", help=f"One of {ARM}, {SSH_CONFIG} and {DOCKER_CONTEXT}.", show_default=False
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="Write to this file, not to stdout.", show_default=False),
    ] = None,
) -> None:
    """Give a machine away: as an ARM template, a block for ~/.ssh/config, or a Docker context."""
    from gpuinfra.app.files import write_file
    from gpuinfra.views import export as view

    make = _maker(form)
    # A template is made of a spec alone: it needs no account.
    settings = begin(context, reaches_cloud=form != ARM)
    if form == DOCKER_CONTEXT and output is None and not settings.json and sys.stdout.isatty():
        raise _usage("a Docker context is an archive, which no terminal can show", "`--output FILE` writes it")
    made = make(settings, name)
    if output:
        write_file(output, made.content, settings)
    view.show_notes(made.notes)
    if output:
        view.show_file(made.name, form, output, made.hint(output), json=settings.json)
    else:
        view.show(made.name, form, made.content, json=settings.json)


def _maker(form: str) -> Callable[[Settings, str], _Export]:
    makers = {ARM: _arm, SSH_CONFIG: _ssh_config, DOCKER_CONTEXT: _docker_context}
    if form in makers:
        return makers[form]
    note = f"there is no format `{form}`; it can be {listed(makers)}"
    raise _usage(note, did_you_mean(form, makers) or "`gpuinfra export --help` shows how")


def _usage(note: str, help_line: str) -> Problem:
    return Problem(Diagnostic(Code.USAGE, "wrong usage", note=note, help=help_line), exit_code=Exit.USAGE)


def _quoted(path: Path | str) -> str:
    return shlex.quote(str(path))


def _arm(settings: Settings, name: str) -> _Export:
    from gpuinfra.app.machines import one_spec, ssh_sources
    from gpuinfra.app.ssh_key import public_key_for
    from gpuinfra.provision.template import make_template, notes
    from gpuinfra.views.document import to_text

    spec = one_spec(settings, name)
    with frontend(settings) as progress:
        key = public_key_for(settings, spec, progress, creates=True)
    template = make_template(spec, ssh_sources(spec, simulated=settings.cloud == "sandbox"), key)
    group = _quoted(spec.group_name)
    return _Export(
        spec.name,
        to_text(template, indent=2),
        tuple(notes(spec)),
        lambda file: (
            f"az group create --name {group} --location {spec.regions[0]}, then: "
            f"az deployment group create --resource-group {group} --template-file {_quoted(file)}"
        ),
    )


def _ssh_config(settings: Settings, name: str) -> _Export:
    from gpuinfra.app.machines import bad_host_key, target_named
    from gpuinfra.runner import openssh
    from gpuinfra.runner.machine.connection import HostKeyInvalid

    target = target_named(settings, name)
    try:
        block = openssh.standalone_block(target)
    except HostKeyInvalid as error:
        raise bad_host_key(error) from error
    host = openssh.host_name(target)
    return _Export(
        target.machine,
        block,
        (),
        lambda file: f"put at the top of ~/.ssh/config: Include {_quoted(file.absolute())}, then: ssh {host}",
    )


def _docker_context(settings: Settings, name: str) -> _Export:
    from gpuinfra.app.machines import bad_host_key, target_named
    from gpuinfra.runner import docker_context
    from gpuinfra.runner.machine.connection import HostKeyInvalid
    from gpuinfra.runner.machine.host_key import HostKey

    target = target_named(settings, name)
    try:
        fingerprint, line = HostKey.parse(target.host_key).fingerprint, docker_context.known_hosts_line(target)
    except HostKeyInvalid as error:
        raise bad_host_key(error) from error
    notes = [
        f"docker reaches {target.machine} by ssh; its host key is {fingerprint}",
        f"for ssh to know it, add this line to ~/.ssh/known_hosts: {line}",
    ]
    if target.identity:
        notes.append(f"for ssh to have your key, run: ssh-add {_quoted(target.identity)}")
    return _Export(
        target.machine,
        docker_context.archive(target),
        tuple(notes),
        lambda file: f"docker context import {target.machine} {_quoted(file)}",
    )
