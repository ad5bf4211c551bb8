"""Lengths of time on the command line, in the words of specs."""

from __future__ import annotations

import re

from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem

_SECONDS = re.compile(r"([0-9]{1,5})s")
_ZERO = re.compile("0[smhd]?")


def short_seconds_of(option: str, text: str) -> float:
    """`30s`, or what specs take for a length of time."""
    found = _SECONDS.fullmatch(text)
    return float(found[1]) if found else seconds_of(option, text)


def grace_of(text: str) -> float:
    """`--grace` in seconds; `0m` is none at all."""
    return 0.0 if _ZERO.fullmatch(text) else short_seconds_of("--grace", text)


def seconds_of(option: str, text: str) -> float:
    """`45m` in seconds."""
    from pydantic_core import PydanticCustomError

    from gpuinfra.models.durations import parse_duration

    try:
        return parse_duration(text).total_seconds()
    except PydanticCustomError:
        diagnostic = Diagnostic(
            Code.USAGE,
            "invalid duration",
            note=f"`{option} {text}` is no length of time",
            help="for example `20m`, `1h30m`",
        )
        raise Problem(diagnostic, exit_code=Exit.USAGE) from None
