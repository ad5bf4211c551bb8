"""The program: runs a command and turns whatever happens into an exit code and words."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

import typer
from typer.main import get_command

from gpuinfra.cli.lazy_group import PROGRAM, app, asks_for_json
from gpuinfra.cli.signals import handled_signals
from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem
from gpuinfra.views.ci_commands import filter_commands


def program() -> None:
    """The installed program. After Ctrl-C nothing is waited for: a call that hangs in a thread must not hold it up."""
    code = main()
    if code == Exit.INTERRUPTED:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)
    sys.exit(code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and give the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    with handled_signals():
        return _main(words)


def _main(words: list[str]) -> int:
    # A file's name or value that this terminal cannot show must not end a command half-way.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        filter_commands(stream)
    try:
        code = _run(words)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has gone, as in `gpuinfra schema | head`. Python would complain once more at the very end.
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
    return Diagnostic(Code.USAGE, "wrong usage", note=error.format_message(), help=f"`{command} --help` shows how")


def _internal(error: Exception) -> Diagnostic:
    return Diagnostic(
        Code.INTERNAL,
        "internal error",
        note=f"{type(error).__name__}: {error}",
        help="this is a mistake in gpuinfra; run it again with `--verbose` and report what it logs",
    )


def _show(words: list[str], *diagnostics: Diagnostic) -> None:
    from gpuinfra.views import diagnostics as view
    from gpuinfra.views import document

    if asks_for_json(words):
        document.show({"diagnostics": [view.as_json(diagnostic) for diagnostic in diagnostics]})
    else:
        view.show(diagnostics)


def _say_interrupted() -> None:
    typer.echo("interrupted", err=True)
