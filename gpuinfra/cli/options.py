"""The start of every command: its shared options, its log and its frontend; the options of jobs."""

from __future__ import annotations

import logging
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand
from typer.main import get_command

from gpuinfra.app.job_request import OnInterrupt, usage
from gpuinfra.app.settings import Settings
from gpuinfra.cli import completion

if TYPE_CHECKING:
    from gpuinfra.views.frontend import TerminalFrontend

PANEL = "Options of every command"
_KEY = "gpuinfra.options"


def start_command(
    context: typer.Context, *, reaches_cloud: bool = True, needs_state: bool = True, searches: bool = True
) -> Settings:
    """Start the log, and the embedded Azure if needed, and return the command's settings."""
    from gpuinfra.app.settings import open_settings
    from gpuinfra.views.terminal import repeat_options

    given = given_options(context)
    repeat_options(sandbox=bool(given.get("sandbox")), workspace=given.get("workspace"))
    settings = open_settings(
        json=bool(given.get("json")),
        yes=bool(given.get("yes")),
        verbose=bool(given.get("verbose")),
        sandbox=bool(given.get("sandbox")),
        workspace=given.get("workspace"),
        correlation_id=_start_log(verbose=bool(given.get("verbose"))),
        needs_state=needs_state,
        searches=searches,
    )
    if settings.ignores_state:
        open_frontend(settings).note(
            "ignoring the `.gpuinfra` folder of this workspace: it belongs to another user or computer"
        )
    if settings.cloud == "sandbox" and reaches_cloud:
        from gpuinfra.app.sandbox import Sandbox

        if endpoint := Sandbox().start_if_needed():
            from gpuinfra.views.sandbox import show_starting

            show_starting(endpoint)
    return settings


def given_options(context: Any) -> dict[str, Any]:
    """Return the shared options that the user gave, by name."""
    found: dict[str, Any] = context.meta.get(_KEY, {})
    return found


def _start_log(*, verbose: bool) -> str:
    """Start the log of `--verbose`. Return its correlation id, which Azure's logs also have."""
    correlation_id = str(uuid.uuid4())
    logger = logging.getLogger("gpuinfra")
    logger.setLevel(logging.DEBUG if verbose else logging.CRITICAL)
    logger.propagate = False
    form = logging.Formatter(
        f"%(asctime)s.%(msecs)03dZ %(levelname)s [{correlation_id}] %(name)s: %(message)s",
        "%Y-%m-%dT%H:%M:%S",
    )
    form.converter = time.gmtime
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(form)
    logger.handlers = [handler]
    return correlation_id


def open_frontend(settings: Settings) -> TerminalFrontend:
    """Return the frontend for progress and questions: live lines on a terminal, else plain lines."""
    from gpuinfra.views.frontend import TerminalFrontend

    return TerminalFrontend(json=settings.json, verbose=settings.verbose)


def shared_parameters() -> list[Any]:
    """Return the options as parameters for a command. Their values go to the context."""
    app = typer.Typer(add_completion=False)
    app.command()(_shared)
    parameters = list(get_command(app).params)
    for parameter in parameters:
        parameter.expose_value = False
    return parameters


def _keep(context: typer.Context, parameter: typer.CallbackParam, value: Any) -> Any:
    # Keep only given options: a flag before the command's name also applies to the command.
    if value:
        context.meta.setdefault(_KEY, {})[parameter.name] = value
    return value


def _shared(
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on stdout.", callback=_keep, rich_help_panel=PANEL)
    ] = False,
    yes: Annotated[
        bool,
        typer.Option("--yes", "-y", help="Answer yes to every question.", callback=_keep, rich_help_panel=PANEL),
    ] = False,
    sandbox: Annotated[
        bool,
        typer.Option(
            "--sandbox",
            help="Use the embedded Azure instead of Azure. Also: GPUINFRA_CLOUD=sandbox.",
            callback=_keep,
            rich_help_panel=PANEL,
        ),
    ] = False,
    workspace: Annotated[
        Path | None,
        typer.Option(
            "--workspace",
            metavar="DIR",
            help="The project's folder. Default: GPUINFRA_WORKSPACE, or the project that the current folder is in.",
            callback=_keep,
            rich_help_panel=PANEL,
        ),
    ] = None,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            "-v",
            help="Log to stderr, with correlation ids for Azure.",
            callback=_keep,
            rich_help_panel=PANEL,
        ),
    ] = False,
) -> None:
    """Declare the shared options."""


SpecsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SPEC",
        help="Spec files or folders; - for standard input. Default: gpu.yaml, or the only spec.",
        show_default=False,
    ),
]
ScriptArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="SCRIPT", help="Path of the script in the project; or `--` and any command. Default: the spec's."
    ),
]
WordsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="ARGUMENTS", help="Arguments of the script or command.")
]
ConfigurationOption = Annotated[
    str | None,
    typer.Option(
        "--configuration",
        "-c",
        autocompletion=completion.targets,
        metavar="NAME",
        help="Name of the run configuration, such as the one that `up` writes. Default: the only target.",
    ),
]
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
    OnInterrupt,
    typer.Option(
        "--on-interrupt",
        help="What Ctrl-C does: ask, detach (the job keeps running) or cancel. When it asks, a second Ctrl-C detaches.",
    ),
]
SEPARATOR = "--"


class PassingCommand(TyperCommand):
    """A command that passes words to a job. A `--` before the first of them stays, because it begins a command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options. The parser drops the first `--`, so repeat it."""
        # Lenient: the second parser reports mistakes.
        lenient = self.context_class(self, resilient_parsing=True, ignore_unknown_options=True, **self.context_settings)
        values, left, _ = self.make_parser(lenient).parse_args(args=list(args))
        named = (values.get(each.name) for each in self.params if each.param_type_name == "argument")
        passed = [word for value in named for word in ([value] if isinstance(value, str) else value or ())]
        end = len(args) - len(passed) - len(left)
        if end and args[end - 1] == SEPARATOR:
            args = [*args[:end], SEPARATOR, *args[end:]]
        return super().parse_args(ctx, args)


def passed_words(script: str | None, words: Sequence[str] | None, command: str) -> dict[str, Any]:
    """Return the fields of a JobRequest for a script with its arguments, or for the command after a `--`."""
    if script != SEPARATOR:
        return {"script": script, "words": script_words(words, command)}
    if not words:
        help_line = f"for example `gpuinfra {command} … -- python -m train`"
        raise usage("no command", "there is nothing after `--`", help_line)
    return {"script": None, "command": tuple(words)}


def script_words(words: Sequence[str] | None, command: str) -> tuple[str, ...]:
    """Return the script's arguments without a leading `--`. Refuse `--sandbox` among them: it may be misplaced."""
    arguments = tuple(words or ())
    if arguments[:1] == (SEPARATOR,):
        return arguments[1:]
    if "--sandbox" in arguments:
        note = "`--sandbox` comes after the script, where all arguments go to the script"
        help_line = f"put it first: `gpuinfra {command} --sandbox …`; to pass it to the script, write `--` before it"
        raise usage("wrong usage", note, help_line)
    return arguments
