"""Get a machine's password, and store it. It is never shown."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from gpuinfra.diagnostics import Code, Exit, problem

if TYPE_CHECKING:
    from gpuinfra.app.frontend import Frontend
    from gpuinfra.models.target import Target

# Longer than any password, and a limit for endless streams.
LONGEST = 4096


class Secret:
    """A password that is requested once, when a machine needs it."""

    def __init__(self, find: Callable[[], str]) -> None:
        self._find = find
        self._found: str | None = None

    def __call__(self) -> str:
        """Return the password."""
        if self._found is None:
            self._found = self._find()
        return self._found

    def keep(self, target: Target) -> str | None:
        """Store it in the keyring if the machine asked for it; return the reference for the target file."""
        from gpuinfra.runner.connection.passwords import account, save_password

        return None if self._found is None else save_password(target.name, account(target), self._found)


def read_password(frontend: Frontend) -> str:
    """Return one line of standard input, or hidden input from a terminal."""
    if sys.stdin.isatty():
        return frontend.ask_password("Password")
    line = sys.stdin.buffer.readline(LONGEST + 1)
    try:
        text = line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError:
        text = ""  # the exception contains the whole line, so drop it
    if not text or len(line) > LONGEST:
        note = "the first line of standard input is empty, too long, or not UTF-8"
        help_line = "for example: `gpuinfra attach … --password-stdin < file`"
        raise problem(Code.USAGE, "no password", note, help_line, exit_code=Exit.USAGE)
    return text


def secret_of(target: Target, frontend: Frontend, *, can_ask: bool) -> Secret | None:
    """Return a target's password, from the keyring or by asking the user; None if neither is possible."""
    from gpuinfra.runner.connection.passwords import find_password, keyring_entry

    def ask() -> str:
        return frontend.ask_password(f"Password of {target.username} at {target.address}")

    kept = keyring_entry(target)
    if found := find_password(*kept) if kept else None:
        return Secret(lambda: found)
    return Secret(ask) if can_ask else None
