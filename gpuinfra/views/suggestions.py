"""Repeat `--sandbox` and `--workspace` of the command line in suggested commands, which else go elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import ConsoleRenderable

# In backquotes, and with a command. `gpuinfra sandbox` and `--help` mean the same everywhere.
_COMMAND = re.compile(r"(?<=`gpuinfra)(?= (?!sandbox\b)[a-z][^`]*`)(?! [^`]*--help)")
_given: dict[str, str] = {}


def repeat_options(*, sandbox: bool, workspace: Path | str | None) -> None:
    """Repeat these options from now on. Settings from the environment still apply, so they need no repetition."""
    _given.clear()
    if sandbox:
        _given["--sandbox"] = " --sandbox"
    if workspace is not None:
        _given["--workspace"] = f" --workspace {quote(str(workspace))}"


def complete(text: str) -> str:
    """Return `text`, in which the commands in backquotes have the options that the user gave."""
    for place, options in reversed(list(_missing(text))):
        text = f"{text[:place]}{options}{text[place:]}"
    return text


def complete_command(command: str) -> str:
    """Return a command with the options that the user gave."""
    return complete(f"`{command}`")[1:-1]


def _missing(text: str) -> Iterator[tuple[int, str]]:
    """Yield where options are missing, and which: after `gpuinfra`, as the rest may belong to a script."""
    if not _given:
        return
    for found in _COMMAND.finditer(text):
        words = text[found.end() : text.index("`", found.end())].split()
        if options := "".join(option for name, option in _given.items() if name not in words):
            yield found.end(), options


class CommandCompleter:
    """Complete the commands in everything that a console prints."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Return what to print instead."""
        return [self._complete(each) for each in renderables] if _given else renderables

    def _complete(self, renderable: Any) -> Any:
        from rich.text import Text

        if not isinstance(renderable, Text):
            return renderable
        for place, options in reversed(list(_missing(renderable.plain))):
            before, after = renderable.divide([place])
            renderable = before.append(options).append_text(after)
        return renderable
