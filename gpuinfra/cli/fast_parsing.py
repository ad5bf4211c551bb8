"""Skip the conversion of command-line values that need none: plain text and absent options.

Typer converts every value with pydantic, and importing pydantic takes as long as a whole quick command. Values that
need conversion still go through it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class LazyConverter:
    """Replaces a parameter's converter, and creates the real one only when needed."""

    def __init__(self) -> None:
        self._reader: Any = None

    def coerce(self, value: Any, *, param: Any, ctx: Any) -> Any:
        """Return the value for the command's function."""
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


def use_fast_parsing(command: Any) -> None:
    """Use lazy converters for all parameters of a command and its subcommands."""
    for part in (command, *getattr(command, "commands", {}).values()):
        for parameter in part.params:
            _use_lazy_converter(parameter)
        part.get_help_option = _with_fast_option(part.get_help_option)


def _with_fast_option(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap the factory of `--help`, which typer calls later."""

    def made(context: Any) -> Any:
        option = make(context)
        _use_lazy_converter(option)
        return option

    return made


def _use_lazy_converter(parameter: Any) -> None:
    if getattr(parameter, "type_descriptor", None) is not None and parameter._runtime_param is None:
        parameter._runtime_param = LazyConverter()
