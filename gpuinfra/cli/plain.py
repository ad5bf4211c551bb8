"""Values that need no reading: text as it is given, and options that are not given at all.

Typer has pydantic read every value, and to import that takes as long as all else that a quick command does. What needs
reading is still read by it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class PlainFirst:
    """Stands in the place of a parameter's own reader, and has it made only when it is needed."""

    def __init__(self) -> None:
        self._reader: Any = None

    def coerce(self, value: Any, *, param: Any, ctx: Any) -> Any:
        """A value as the command's function takes it."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if self._is_plain(value, param):
            return value
        if self._reader is None:
            from typer._coercion import build_runtime_param

            self._reader = build_runtime_param(param.type_descriptor)
        return self._reader.coerce(value, param=param, ctx=ctx)

    def _is_plain(self, value: Any, param: Any) -> bool:
        kind = param.type_descriptor.annotation
        if param.multiple or param.nargs == -1:
            return kind == list[str] and all(isinstance(each, str) for each in value) if value else True
        # Text, or a default that is what it should be.
        return isinstance(kind, type) and isinstance(value, kind)


def read_plainly(command: Any) -> None:
    """Let a command's parameters, and those of its commands, read no more than they need to."""
    for part in (command, *getattr(command, "commands", {}).values()):
        for parameter in part.params:
            _ease(parameter)
        part.get_help_option = _eased(part.get_help_option)


def _eased(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`--help` is made only when a command is called."""

    def made(context: Any) -> Any:
        option = make(context)
        _ease(option)
        return option

    return made


def _ease(parameter: Any) -> None:
    if getattr(parameter, "type_descriptor", None) is not None and parameter._runtime_param is None:
        parameter._runtime_param = PlainFirst()
