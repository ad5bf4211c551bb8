"""The root command: finds a command by its name, imports only its module, and parses its words quickly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from gpuinfra import __version__
from gpuinfra.cli.commands import COMMANDS
from gpuinfra.cli.options import shared_parameters, start_command
from gpuinfra.diagnostics import Code, Exit, problem
from gpuinfra.suggest import did_you_mean


class Group(TyperGroup):
    """A command with subcommands. An unknown subcommand gets a suggestion."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the first word names."""
        word = args[0]
        if self.get_command(ctx, word) is None and not word.startswith("-") and not ctx.resilient_parsing:
            path = ctx.command_path
            raise problem(
                Code.UNKNOWN_COMMAND,
                "unknown command",
                f"`{word}` is not a command of `{path}`",
                did_you_mean(word, self.list_commands(ctx)) or f"`{path} --help` lists all commands",
                exit_code=Exit.USAGE,
            )
        return super().resolve_command(ctx, args)


PROGRAM = "gpuinfra"


class LazyGroup(Group):
    """A group that imports a command's module when the command runs."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.params += shared_parameters()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse options and the command's name. `--version` prints and exits at once."""
        if "--version" in args and set(args) <= {"--version", "--json"}:
            _show_version(json="--json" in args)
            ctx.exit()
        use_fast_parsing(self)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 the signature is the base class's
        """Return all names, for help and completion."""
        return [entry.name for entry in COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """Return a command with the shared options added."""
        entry = next((entry for entry in COMMANDS if entry.name == cmd_name), None)
        if entry is None:
            return None
        if cmd_name not in self.commands:
            self.commands[cmd_name] = load_command(*entry)
        return self.commands[cmd_name]


def load_command(name: str, panel: str, module: str | None = None, passes_words: bool = False) -> Any:  # noqa: FBT001, FBT002, RUF100 an entry, spread
    """Import a command and add the shared options."""
    found = getattr(import_module(f"gpuinfra.cli.{module or name}"), module or name)
    if not isinstance(found, typer.Typer):
        app = typer.Typer(add_completion=False)
        # Everything after the script is passed to it.
        app.command(name, context_settings={"allow_interspersed_args": not passes_words})(found)
        found = app
    command: Any = get_command(found)
    command.name, command.rich_help_panel = name, panel
    for part in (command, *getattr(command, "commands", {}).values()):
        part.params += shared_parameters()
    use_fast_parsing(command)
    return command


app = typer.Typer(cls=LazyGroup, invoke_without_command=True, pretty_exceptions_enable=False)


def asks_for_json(words: Sequence[str]) -> bool:
    """Return whether `--json` is among gpuinfra's own words. A command may have failed before its options were read."""
    command: Any = get_command(app)
    left = list(words)
    while command is not None:
        # Lenient: other mistakes have already been reported.
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
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Create GPU machines in Azure from a YAML file, run jobs on them, and switch them off with proof."""
    if version:
        _show_version(json=start_command(context, reaches_cloud=False).json)
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _show_version(*, json: bool) -> None:
    if json:
        from gpuinfra.views import json_output

        json_output.show({"version": __version__})
    else:
        typer.echo(f"{PROGRAM} {__version__}")


# Typer converts every value with pydantic, and importing pydantic takes as long as a whole quick command.
# Plain text and absent options need no conversion.


class LazyConverter:
    """Replaces a parameter's converter, and creates the real one only when needed."""

    def __init__(self) -> None:
        self._reader: Any = None

    def coerce(self, value: Any, *, param: Any, ctx: Any) -> Any:
        """Return the value for the command's function."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if self._is_plain(value, param):
            return value
        if self._reader is None:
            from typer._coercion import build_runtime_param

            self._reader = build_runtime_param(param.type_descriptor)
        return self._reader.coerce(value, param=param, ctx=ctx)

    def _is_plain(self, value: Any, param: Any) -> bool:
        kind = param.type_descriptor.annotation
        if param.multiple or param.nargs == -1:
            return kind == list[str] and all(isinstance(each, str) for each in value) if value else True
        # Text, or a default that is what it should be.
        return isinstance(kind, type) and isinstance(value, kind)


def use_fast_parsing(command: Any) -> None:
    """Use lazy converters for all parameters of a command and its subcommands."""
    for part in (command, *getattr(command, "commands", {}).values()):
        for parameter in part.params:
            _use_lazy_converter(parameter)
        part.get_help_option = _with_fast_option(part.get_help_option)


def _with_fast_option(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap the factory of `--help`, which typer calls later."""

    def made(context: Any) -> Any:
        option = make(context)
        _use_lazy_converter(option)
        return option

    return made


def _use_lazy_converter(parameter: Any) -> None:
    if getattr(parameter, "type_descriptor", None) is not None and parameter._runtime_param is None:
        parameter._runtime_param = LazyConverter()
