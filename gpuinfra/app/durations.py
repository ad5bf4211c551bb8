"""Parse durations on the command line, in the format of specs."""

from __future__ import annotations

import re

from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem

_SECONDS = re.compile(r"([0-9]{1,5})s")
_ZERO = re.compile("0[smhd]?")


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
        diagnostic = Diagnostic(
            Code.USAGE,
            "invalid duration",
            note=f"`{option} {text}`: {reason}",
            help="for example `20m`, `1h30m`",
        )
        raise Problem(diagnostic, exit_code=Exit.USAGE) from None
