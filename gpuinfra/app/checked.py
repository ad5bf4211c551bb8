"""Apply the rules of specs to the command line."""

from __future__ import annotations

from collections.abc import Callable

from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem


def require(check: Callable[[str], None], value: str | None, shown: str, command: str) -> None:
    """Raise Problem if a value breaks a spec's rule. `shown` is the value as given; `command` is named in the help."""
    from pydantic_core import PydanticCustomError

    if value is None:
        return
    try:
        check(value)
    except PydanticCustomError as error:
        words = error.context or {}
        note, help_line = f"`{shown}`: {words['label']}", words["help"] or f"`gpuinfra {command} --help` shows how"
        diagnostic = Diagnostic(Code(error.type), words["summary"], note=note, help=help_line)
        raise Problem(diagnostic, exit_code=Exit.USAGE) from None
