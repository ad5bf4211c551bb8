"""A machine's password: where it comes from, and where it is kept. It is shown nowhere."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem

if TYPE_CHECKING:
    from gpuinfra.app.frontend import Frontend
    from gpuinfra.models.target import Target

# Longer than any password, and short enough for a stream that has no end.
LONGEST = 4096


class Secret:
    """A password that is found out when a machine asks for it, and once."""

    def __init__(self, find: Callable[[], str]) -> None:
        self._find = find
        self._found: str | None = None

    def __call__(self) -> str:
        """The password."""
        if self._found is None:
            self._found = self._find()
        return self._found

    def keep(self, target: Target) -> str | None:
        """Put it into the keyring, if the machine asked for it; the reference for the target's file."""
        from gpuinfra.runner.machine.passwords import account, keep

        return None if self._found is None else keep(target.name, account(target), self._found)


def read_password(progress: Frontend) -> str:
    """One line of standard input, or what is typed unseen where that is a terminal."""
    if sys.stdin.isatty():
        return progress.ask_password("Password")
    line = sys.stdin.buffer.readline(LONGEST + 1)
    try:
        text = line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError:
        text = ""  # the exception has the whole line in it, and goes no further
    if not text or len(line) > LONGEST:
        note = "the first line of standard input is no password: empty, too long, or not UTF-8"
        help_line = "for example: `gpuinfra attach … --password-stdin < file`"
        raise Problem(Diagnostic(Code.USAGE, "no password", note=note, help=help_line), exit_code=Exit.USAGE)
    return text


def secret_of(target: Target, progress: Frontend, *, can_ask: bool) -> Secret | None:
    """The password of a target: from the keyring, or of whoever sits there. None where neither can be."""
    from gpuinfra.runner.machine.passwords import place, recall

    def ask() -> str:
        return progress.ask_password(f"Password of {target.username} at {target.address}")

    kept = place(target)
    if found := recall(*kept) if kept else None:
        return Secret(lambda: found)
    return Secret(ask) if can_ask else None
