"""The front door: finds a command by its name and loads no other."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from gpuinfra import __version__
from gpuinfra.cli.commands import COMMANDS
from gpuinfra.cli.group import Group
from gpuinfra.cli.options import begin, shared_parameters
from gpuinfra.cli.plain import read_plainly

PROGRAM = "gpuinfra"


class LazyGroup(Group):
    """A group that imports a command's module when the command is asked for."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.params += shared_parameters()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Options and the command's name. `--version` is answered at once."""
        if "--version" in args and set(args) <= {"--version", "--json"}:
            _show_version(json="--json" in args)
            ctx.exit()
        read_plainly(self)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 the signature is the base class's
        """All names, for help and completion."""
        return [entry.name for entry in COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """One command, with the shared options added."""
        entry = next((entry for entry in COMMANDS if entry.name == cmd_name), None)
        if entry is None:
            return None
        if cmd_name not in self.commands:
            self.commands[cmd_name] = load_command(*entry)
        return self.commands[cmd_name]


def load_command(name: str, panel: str, module: str | None = None, passes_words: bool = False) -> Any:  # noqa: FBT001, FBT002, RUF100 an entry, spread
    """Import a command and make it ready to run."""
    found = getattr(import_module(f"gpuinfra.cli.{module or name}"), module or name)
    if not isinstance(found, typer.Typer):
        app = typer.Typer(add_completion=False)
        # Behind the first word that is no option of ours, all are somebody else's.
        app.command(name, context_settings={"allow_interspersed_args": not passes_words})(found)
        found = app
    command: Any = get_command(found)
    command.name, command.rich_help_panel = name, panel
    for part in (command, *getattr(command, "commands", {}).values()):
        part.params += shared_parameters()
    read_plainly(command)
    return command


app = typer.Typer(cls=LazyGroup, invoke_without_command=True, pretty_exceptions_enable=False)


def asks_for_json(words: Sequence[str]) -> bool:
    """Return whether `--json` is among gpuinfra's own words. A command may have failed before its options were read."""
    command: Any = get_command(app)
    left = list(words)
    while command is not None:
        # Lenient: whatever else is wrong with the words, it has been reported.
        context = command.context_class(
            command, resilient_parsing=True, ignore_unknown_options=True, **command.context_settings
        )
        options, left, _ = command.make_parser(context).parse_args(args=left)
        if options.get("json"):
            return True
        if not left or not isinstance(command, TyperGroup):
            return False
        command = command.get_command(context, left.pop(0))
    return "--json" in left


@app.callback()
def front_door(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    """GPU machines in Azure from a YAML file in git: created, used, and provably switched off."""
    if version:
        _show_version(json=begin(context, reaches_cloud=False).json)
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _show_version(*, json: bool) -> None:
    if json:
        from gpuinfra.views import document

        document.show({"version": __version__})
    else:
        typer.echo(f"{PROGRAM} {__version__}")
