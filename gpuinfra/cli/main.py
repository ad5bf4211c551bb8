"""The program: its commands, and how a result or an error becomes output and an exit code.

Commands are imported when they run. To add a command, add a line to COMMANDS.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn

import typer
from typer.core import TyperGroup
from typer.main import get_command

from gpuinfra import __version__
from gpuinfra.app.interruption import handled_signals, let_signals_end
from gpuinfra.cli.options import shared_parameters, start_command
from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem, did_you_mean, problem
from gpuinfra.views.terminal import filter_commands, survive_closed_terminal


class CommandEntry(NamedTuple):
    """A command: the function, or Typer with subcommands, called `name` in `gpuinfra.cli.name`."""

    name: str
    panel: str
    module: str | None = None
    """The name of module and function, if the command's name is not a Python identifier."""
    passes_words: bool = False
    """Whether everything after its arguments, options included, is passed to the script."""


SPECS = "Describe a machine"
RUN = "Manage machines"
TARGETS = "Targets and projects"
JOBS = "Run jobs"
TRY = "Try it without an account"
COMMANDS = (
    CommandEntry("init", SPECS),
    CommandEntry("validate", SPECS),
    CommandEntry("schema", SPECS),
    CommandEntry("sizes", RUN),
    CommandEntry("plan", RUN),
    CommandEntry("up", RUN),
    CommandEntry("down", RUN),
    CommandEntry("status", RUN),
    CommandEntry("lease", RUN),
    CommandEntry("cost", RUN),
    CommandEntry("doctor", RUN),
    CommandEntry("reap", RUN),
    CommandEntry("ssh", RUN),
    CommandEntry("cp", RUN),
    CommandEntry("forward", RUN),
    CommandEntry("schedule", RUN),
    CommandEntry("attach", TARGETS),
    CommandEntry("detach", TARGETS),
    CommandEntry("targets", TARGETS),
    CommandEntry("export", TARGETS),
    CommandEntry("import", TARGETS, "import_project"),
    CommandEntry("lint", TARGETS),
    CommandEntry("submit", JOBS, passes_words=True),
    CommandEntry("run", JOBS, passes_words=True),
    CommandEntry("prepare", JOBS),
    CommandEntry("runs", JOBS),
    CommandEntry("logs", JOBS),
    CommandEntry("cancel", JOBS),
    CommandEntry("outputs", JOBS),
    CommandEntry("exec", JOBS, "exec_job"),
    CommandEntry("prune", JOBS),
    CommandEntry("sandbox", TRY),
)


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
        if passes_words:  # everything after the script is passed to it
            from gpuinfra.cli.options import PassingCommand

            app.command(name, cls=PassingCommand, context_settings={"allow_interspersed_args": False})(found)
        else:
            app.command(name)(found)
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
        value = _expanded(value, param.type_descriptor.annotation)
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


def _expanded(value: Any, kind: Any) -> Any:
    """Return a value with `~` as the home folder if it is a path: shells leave it in `--workspace=~/project`."""
    if kind is Path and isinstance(value, str):
        return os.path.expanduser(value)  # noqa: PTH111 never fails
    if kind == list[Path] and value:
        return [_expanded(each, Path) for each in value]
    return value


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


def program() -> NoReturn:
    """Run the installed program. It exits at once, without waiting for threads that hang."""
    let_signals_end()
    code = main()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # the reader has gone
            stream.flush()
    if sys.getprofile() or sys.gettrace():
        sys.exit(code)  # profilers and coverage tools write their results when Python exits
    os._exit(code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with handled_signals():
            return _main(words)
    except KeyboardInterrupt:  # while the last lines were printed
        return Exit.INTERRUPTED


def _main(words: list[str]) -> int:
    sys.stdout, sys.stderr = survive_closed_terminal(sys.stdout), survive_closed_terminal(sys.stderr)
    # Characters that the terminal cannot show must not end a command.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[attr-defined]
        filter_commands(stream)
    try:
        code = _run(words)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader is gone, as in `gpuinfra schema | head`. Without this, Python reports the error again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.FAILED
    return code


def _run(words: list[str]) -> int:
    try:
        result = get_command(app).main(words, prog_name=PROGRAM, standalone_mode=False)
    except Problem as problem:
        if problem.log:
            from gpuinfra.views.sandbox import show_log_tail

            show_log_tail(problem.log)
        _show(words, *problem.diagnostics)
        return problem.exit_code
    except typer.TyperException as error:
        _show(words, _usage(error))
        return Exit.USAGE
    except typer.Abort:
        result = Exit.INTERRUPTED
    except SystemExit as end:  # how typer's completion options end
        result = end.code
    except BrokenPipeError:
        raise
    except Exception as error:
        logging.getLogger(PROGRAM).exception("internal error")
        _show(words, _internal(error))
        return Exit.FAILED
    if result == Exit.INTERRUPTED:
        _say_interrupted()
    return result if isinstance(result, int) else Exit.DONE


def _usage(error: typer.TyperException) -> Diagnostic:
    context = getattr(error, "ctx", None)
    command = context.command_path if context else PROGRAM
    return Diagnostic(Code.USAGE, "wrong usage", note=error.format_message(), help=f"see `{command} --help`")


def _internal(error: Exception) -> Diagnostic:
    return Diagnostic(
        Code.INTERNAL,
        "internal error",
        note=f"{type(error).__name__}: {error}",
        help="this is a bug in gpuinfra; please report it with the log of `--verbose`",
    )


def _show(words: list[str], *diagnostics: Diagnostic) -> None:
    from gpuinfra.views import diagnostics as view
    from gpuinfra.views import json_output

    if asks_for_json(words):
        json_output.show({"diagnostics": [view.as_json(diagnostic) for diagnostic in diagnostics]})
    else:
        view.show(diagnostics)


def _say_interrupted() -> None:
    typer.echo("interrupted", err=True)
