"""Completion of machines, targets and runs by the shell. A failure completes nothing, and prints nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuinfra.app.settings import Settings

Word = str | tuple[str, str]
# A project of others names its files, and shells insert a name as it is, so it must not be a command. zsh even runs
# commands in names and descriptions that have a backslash, which typer does not escape.
_PLAIN = re.compile(r"[\w./@+,=][\w./@+,=-]*")
_NOT_PLAIN = re.compile(r"[^\w ./@+,=-]")


def machines(ctx: Any, incomplete: str) -> list[Word]:
    """Complete machines, and the files of specs."""
    from gpuinfra.app.completion import machine_words

    return [*_matching(ctx, incomplete, machine_words), *_spec_files(incomplete)]


def targets(ctx: Any, incomplete: str) -> list[Word]:
    """Complete run configurations and targets."""
    from gpuinfra.app.completion import target_words

    return _matching(ctx, incomplete, target_words)


def runs(ctx: Any, incomplete: str) -> list[Word]:
    """Complete the ids of runs."""
    from gpuinfra.app.completion import run_words

    return _matching(ctx, incomplete, run_words)


def _matching(ctx: Any, incomplete: str, find: Callable[[Settings], Iterable[Word]]) -> list[Word]:
    from gpuinfra.app.settings import open_settings
    from gpuinfra.cli.options import given_options

    found: dict[str, Word] = {}
    with suppress(Exception):
        settings = open_settings(workspace=given_options(ctx).get("workspace"), correlation_id="", needs_state=False)
        for word in find(settings):
            name, description = (word, None) if isinstance(word, str) else word
            if name.startswith(incomplete) and _PLAIN.fullmatch(name):
                found.setdefault(name, (name, _NOT_PLAIN.sub("_", description)) if description else name)
    return list(found.values())


def _spec_files(incomplete: str) -> list[Word]:
    with suppress(Exception):
        folder, _, start = incomplete.rpartition("/")
        place = Path(f"{folder}/" if "/" in incomplete else ".")
        names = sorted(each.name for each in place.iterdir() if each.suffix in {".yaml", ".yml"})
        found = (f"{folder}/{name}" if "/" in incomplete else name for name in names if name.startswith(start))
        return [path for path in found if _PLAIN.fullmatch(path)]
    return []
