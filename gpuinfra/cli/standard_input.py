"""Standard input of commands that start a job. A job runs on without its client, so it has no standard input."""

from __future__ import annotations

import fcntl
import os
import stat
import sys
import termios
from typing import TYPE_CHECKING

from gpuinfra.app.job_request import usage

if TYPE_CHECKING:
    from gpuinfra.app.frontend import Frontend


def refuse_input(command: str) -> None:
    """Raise Problem if standard input has data, which the job would miss."""
    if has_input():
        help_line = (
            f"let the job read a file of the project; to run it without input: `gpuinfra {command} … < /dev/null`"
        )
        raise usage("jobs have no standard input", "this command was given some with `<` or `|`", help_line)


def note_input(frontend: Frontend) -> None:
    """Note that standard input, whose data came after the start, was not used."""
    if has_input():
        frontend.note("what was given to this command with `<` or `|` was not used: jobs have no standard input")


def has_input() -> bool:
    """Return whether a file or pipe on standard input has data that was not read."""
    try:
        found = os.fstat(0)
        if stat.S_ISREG(found.st_mode):
            return os.lseek(0, 0, os.SEEK_CUR) < found.st_size
        if not (stat.S_ISFIFO(found.st_mode) or stat.S_ISSOCK(found.st_mode)):
            return False  # a terminal, or /dev/null
        waiting = fcntl.ioctl(0, termios.FIONREAD, bytes(4))
    except OSError:
        return False
    return bool(int.from_bytes(waiting, sys.byteorder))
