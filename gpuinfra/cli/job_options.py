"""Options of `submit`, `run` and `prepare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuinfra.app.job_request import OnInterrupt, usage

ScriptArgument = Annotated[str | None, typer.Argument(metavar="SCRIPT", help="Path of the script in the project.")]
WordsArgument = Annotated[list[str] | None, typer.Argument(metavar="ARGUMENTS", help="Arguments of the script.")]
GpusOption = Annotated[
    str | None,
    typer.Option("--gpus", metavar="N|IDS", help="GPUs for the job: all, a number, or ids such as 0,1 or device=0."),
]
MemoryOption = Annotated[str | None, typer.Option("--memory", metavar="SIZE", help="Memory limit, such as 16g.")]
ShmOption = Annotated[str | None, typer.Option("--shm-size", metavar="SIZE", help="Size of shared memory, such as 8g.")]
TimeoutOption = Annotated[
    str | None, typer.Option("--timeout", metavar="TIME", help="Stop the job after this time, such as 2h.")
]
EnvironmentOption = Annotated[
    list[str] | None,
    typer.Option("--env", metavar="NAME=VALUE", help="Environment variable for the job. Repeatable."),
]
EnvironmentFileOption = Annotated[
    list[Path] | None,
    typer.Option("--env-file", metavar="FILE", help="File of secret variables, one NAME=VALUE per line."),
]
SecretOption = Annotated[
    list[str] | None,
    typer.Option("--secret", metavar="NAME", help="Pass a variable of this shell as a secret. Repeatable."),
]
BuildSecretOption = Annotated[
    list[str] | None,
    typer.Option(
        "--build-secret", metavar="NAME", help="Variable of this shell for `${NAME}` in pip requirements. Repeatable."
    ),
]
SharedDirectoryOption = Annotated[
    str | None,
    typer.Option(
        "--shared-directory",
        metavar="DIR",
        help="Folder on the machine that jobs share, also outside ~/.azureml/share.",
    ),
]
RequireUseOption = Annotated[
    bool, typer.Option("--require-gpu-use", help="Fail, instead of warning, if the job never used the GPU.")
]
RebuildOption = Annotated[bool, typer.Option("--rebuild", help="Build the environment again.")]
SendCredentialsOption = Annotated[
    bool,
    typer.Option("--send-credentials", help="Send your Docker credentials even to a machine that you did not attach."),
]
InterruptOption = Annotated[
    OnInterrupt, typer.Option("--on-interrupt", help="What Ctrl-C does: ask, detach (the job keeps running) or cancel.")
]


def script_words(words: list[str] | None, command: str) -> tuple[str, ...]:
    """Return the script's arguments without a leading `--`. Refuse `--sandbox` among them: it may be misplaced."""
    arguments = tuple(words or ())
    if arguments[:1] == ("--",):
        return arguments[1:]
    if "--sandbox" in arguments:
        note = "`--sandbox` comes after the script, where all arguments go to the script"
        help_line = f"put it first: `gpuinfra {command} --sandbox …`; to pass it to the script, write `--` before it"
        raise usage("wrong usage", note, help_line)
    return arguments
