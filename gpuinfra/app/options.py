"""Parse and check values from the command line, with the rules of specs."""

from __future__ import annotations

import re
from collections.abc import Callable

from gpuinfra.diagnostics import Code, Exit, problem

_SECONDS = re.compile(r"([0-9]{1,5})s")
_ZERO = re.compile("0[smhd]?")


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
        raise problem(Code(error.type), words["summary"], note, help_line, exit_code=Exit.USAGE) from None


def short_seconds_of(option: str, text: str) -> float:
    """Return the seconds in a text like `30s`, or in a duration as in specs."""
    found = _SECONDS.fullmatch(text)
    return float(found[1]) if found else seconds_of(option, text)


def grace_of(text: str) -> float:
    """Return the seconds in `--grace`; `0m` means none."""
    return 0.0 if _ZERO.fullmatch(text) else short_seconds_of("--grace", text)


def seconds_of(option: str, text: str) -> float:
    """Return the seconds in a duration like `45m`. Raise Problem if it is invalid."""
    from pydantic_core import PydanticCustomError

    from gpuinfra.models.quantities import parse_duration

    try:
        return parse_duration(text).total_seconds()
    except PydanticCustomError as error:
        reason = (error.context or {}).get("label", "not a valid duration")
        note, help_line = f"`{option} {text}`: {reason}", "for example `20m`, `1h30m`"
        raise problem(Code.USAGE, "invalid duration", note, help_line, exit_code=Exit.USAGE) from None
