"""How commands reach the embedded Azure, and what they say when they cannot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem

if TYPE_CHECKING:
    from gpuinfra.sandbox.running.client import Client

START = "`gpuinfra sandbox start` starts it"


def client_of(folder: Path) -> Client:
    """A client for the server of this folder, or a problem that says how to start one."""
    from gpuinfra.sandbox.running import process

    client = process.client(folder)
    if client is None:
        raise not_running(folder)
    return client


def start_if_need_be() -> None:
    """What `--sandbox` does on every command: the server runs, from now on at the latest."""
    from gpuinfra.sandbox.running import process

    folder = process.default_folder()
    with problems(folder):
        if process.status(folder) is None:
            from gpuinfra.views import sandbox as view

            view.show_starting(process.ensure_started(folder).endpoint)


def not_running(folder: Path) -> Problem:
    """Nothing serves the folder."""
    note = f"nothing serves `{folder}`"
    return Problem(Diagnostic(Code.SANDBOX_NOT_RUNNING, "the sandbox is not running", note=note, help=START))


@contextmanager
def problems(folder: Path) -> Iterator[None]:
    """What goes wrong with the server, in the words of this program."""
    from gpuinfra.sandbox.running.client import ClientError, RefusedError
    from gpuinfra.sandbox.running.process import MissingPartsError, ProcessError

    try:
        yield
    except MissingPartsError as error:
        raise Problem(
            Diagnostic(
                Code.SANDBOX_NOT_INSTALLED,
                "the sandbox is not installed",
                note=str(error),
                help="pip install 'gpuinfra[sandbox]'",
            )
        ) from error
    except RefusedError as error:
        raise Problem(
            Diagnostic(Code.SANDBOX_REFUSED, "the sandbox refuses", note=str(error)),
            exit_code=Exit.USAGE if error.status == 400 else Exit.FAILED,
        ) from error
    except (ProcessError, ClientError) as error:
        from gpuinfra.views import sandbox as view

        view.show_log_tail(getattr(error, "log", ""))
        note, where = str(error), f"its log is `{folder / 'server.log'}`"
        raise Problem(Diagnostic(Code.SANDBOX_FAILED, "the sandbox does not work", note=note, help=where)) from error
