"""The program: run a command, and turn its result or error into output and an exit code."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

import typer
from typer.main import get_command

from gpuinfra.app.interruption import handled_signals, let_signals_end
from gpuinfra.cli.lazy_group import PROGRAM, app, asks_for_json
from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem
from gpuinfra.views.terminal import filter_commands, survive_closed_terminal


def program() -> NoReturn:
    """Run the installed program. It exits at once, without waiting for threads that hang."""
    let_signals_end()
    code = main()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # the reader has gone
            stream.flush()
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
