"""Options that `submit` and `run` share, and what they mean."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem
from gpuinfra.suggest import did_you_mean

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# More than variables ever are, and short enough for a file that has no end.
LONGEST_FILE = 4 << 20


class OnInterrupt(StrEnum):
    """What Ctrl-C does to a job that runs."""

    ASK = "ask"
    DETACH = "detach"
    CANCEL = "cancel"


ScriptArgument = Annotated[str | None, typer.Argument(metavar="SCRIPT", help="The script, by its path in the project.")]
WordsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="ARGUMENTS", help="Everything behind it is the script's own.")
]
GpusOption = Annotated[
    str | None, typer.Option("--gpus", metavar="N|IDS", help="all, how many, or which ones: 0,1 or device=0.")
]
MemoryOption = Annotated[str | None, typer.Option("--memory", metavar="SIZE", help="The most it may use, as 16g.")]
ShmOption = Annotated[str | None, typer.Option("--shm-size", metavar="SIZE", help="Shared memory, as 8g.")]
TimeoutOption = Annotated[
    str | None, typer.Option("--timeout", metavar="TIME", help="The job is ended after this long, as 2h.")
]
EnvironmentOption = Annotated[
    list[str] | None,
    typer.Option("--env", metavar="NAME=VALUE", help="A variable for the job; several times if need be."),
]
EnvironmentFileOption = Annotated[
    list[Path] | None, typer.Option("--env-file", metavar="FILE", help="Variables that nobody else sees, a line each.")
]
SecretOption = Annotated[
    list[str] | None, typer.Option("--secret", metavar="NAME", help="A variable of this shell that nobody else sees.")
]
BuildSecretOption = Annotated[
    list[str] | None,
    typer.Option("--build-secret", metavar="NAME", help="A variable of this shell for `${NAME}` in requirements."),
]
SharedDirectoryOption = Annotated[
    str | None,
    typer.Option("--shared-directory", metavar="DIR", help="The machine's folder that jobs share, wherever it is."),
]
RequireUseOption = Annotated[
    bool, typer.Option("--require-gpu-use", help="Fail if the job never used the GPU, instead of a warning.")
]
RebuildOption = Annotated[bool, typer.Option("--rebuild", help="Make the environment anew.")]
SendCredentialsOption = Annotated[
    bool,
    typer.Option("--send-credentials", help="Send your Docker credentials to a machine that you did not attach."),
]
InterruptOption = Annotated[
    OnInterrupt, typer.Option("--on-interrupt", help="What Ctrl-C does: ask, detach (the job goes on) or cancel.")
]


@dataclass(frozen=True)
class JobOptions:
    """What was given."""

    script: str | None
    words: tuple[str, ...]
    gpus: str | None = None
    memory: str | None = None
    shm_size: str | None = None
    timeout: str | None = None
    environment: tuple[str, ...] = ()
    environment_files: tuple[Path, ...] = ()
    secrets: tuple[str, ...] = ()
    build_secrets: tuple[str, ...] = ()
    shared_directory: str | None = None
    require_gpu_use: bool = False
    rebuild: bool = False
    send_credentials: bool = False
    variables: tuple[dict[str, str], dict[str, str]] | None = field(default=None, repr=False)
    """What the three options for variables say, once they were read: a file may be a pipe."""


def given(  # noqa: PLR0913 each is an option
    command: str,
    script: str | None,
    words: list[str] | None,
    *,
    gpus: str | None,
    memory: str | None,
    shm_size: str | None,
    timeout: str | None,
    env: list[str] | None,
    env_file: list[Path] | None,
    secret: list[str] | None,
    build_secret: list[str] | None,
    shared_directory: str | None,
    require_gpu_use: bool,
    rebuild: bool,
    send_credentials: bool = False,
) -> JobOptions:
    """What a command was given, as one."""
    return JobOptions(
        script=script,
        words=script_words(words, command),
        gpus=gpus,
        memory=memory,
        shm_size=shm_size,
        timeout=timeout,
        environment=tuple(env or ()),
        environment_files=tuple(env_file or ()),
        secrets=tuple(secret or ()),
        build_secrets=tuple(build_secret or ()),
        shared_directory=shared_directory,
        require_gpu_use=require_gpu_use,
        rebuild=rebuild,
        send_credentials=send_credentials,
    )


def script_words(words: list[str] | None, command: str) -> tuple[str, ...]:
    """The script's own words; a `--` before them is ours. An option of ours among them would be missed badly."""
    given = tuple(words or ())
    if given[:1] == ("--",):
        return given[1:]
    if "--sandbox" in given:
        note = "`--sandbox` stands behind the script, where everything is the script's own"
        help_line = f"put it first: `gpuinfra {command} --sandbox …`; or `--` before the script's words, if it is one"
        raise usage("wrong usage", note, help_line)
    return given


def usage(summary: str, note: str, help_line: str | None = None, code: Code = Code.USAGE) -> Problem:
    """An option that cannot be."""
    return Problem(Diagnostic(code, summary, note=note, help=help_line), exit_code=Exit.USAGE)


def size_of(option: str, text: str | None) -> int | None:
    """`16g` in bytes."""
    from gpuinfra.runner.wishes import parse_size

    if text is None:
        return None
    found = parse_size(text)
    if not found:
        raise usage("invalid size", f"`{option} {text}` is no size", "for example `512m`, `16g`")
    return found


def variables_of(options: JobOptions) -> tuple[dict[str, str], dict[str, str]]:
    """Variables that may be seen, and those that may not."""
    if options.variables is not None:
        return options.variables
    plain: dict[str, str] = {}
    for each in options.environment:
        name, mark, value = each.partition("=")
        if not mark or not _NAME.fullmatch(name):
            raise usage("invalid variable", f"`--env {name[:80]}`: expected NAME=VALUE", "or `--secret NAME`")
        plain[name] = value
    hidden: dict[str, str] = {}
    for file in options.environment_files:
        hidden |= _read_file(file)
    for name in options.secrets:
        hidden[name] = _own(name, f"`--secret {name[:80]}`")
    # What is said to be hidden stays so.
    return {name: value for name, value in plain.items() if name not in hidden}, hidden


def build_secrets_of(names: Iterable[str]) -> dict[str, str]:
    """Return the values of the variables that `--build-secret` names."""
    from gpuinfra.runner.environment.secrets import SHORTEST

    found = {name: _own(name, f"`--build-secret {name[:80]}`") for name in names}
    for name, value in found.items():
        if len(value) < SHORTEST or not value.isprintable():
            note = f"`--build-secret {name}`: its value is shorter than {SHORTEST} characters, or not one line of text"
            raise usage("invalid secret", note, "such a value cannot be kept out of the build's output")
    return found


def _own(name: str, shown: str) -> str:
    if not _NAME.fullmatch(name):
        raise usage("invalid variable", f"{shown} is no name of one: the value is taken from the environment")
    value = os.environ.get(name)
    if value is None:
        raise usage(
            "no such variable",
            f"{shown}: it is not set here",
            did_you_mean(name, os.environ) or f"set it first: `export {name}=…`",
            Code.MISSING_SECRET,
        )
    return value


def _read_file(file: Path) -> dict[str, str]:
    """A line each: `NAME=VALUE`, or `NAME` alone for one of this shell's. No line is ever shown."""
    try:
        with file.open("rb") as stream:
            content = stream.read(LONGEST_FILE + 1)
        lines = content.decode("utf-8").splitlines() if len(content) <= LONGEST_FILE else None
    except OSError as error:
        raise usage("file cannot be read", f"`{file}`: {error.strerror}", code=Code.FILE_UNREADABLE) from None
    except UnicodeDecodeError:
        lines = None  # the exception has the whole content in it, and goes no further
    if lines is None:
        raise usage("file cannot be read", f"`{file}` is too large, or not UTF-8", code=Code.FILE_UNREADABLE)
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, mark, value = line.lstrip().removeprefix("export ").partition("=")
        if not _NAME.fullmatch(name.strip()):
            raise usage("invalid variable", f"`{file}`, line {number}: expected NAME=VALUE", "it is shown nowhere")
        found[name.strip()] = value if mark else _own(name.strip(), f"`{file}`, line {number}")
    return found
