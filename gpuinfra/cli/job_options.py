"""Options that `submit` and `run` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuinfra.app.job_options import JobOptions, OnInterrupt, usage

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
