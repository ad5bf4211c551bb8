"""Commands that stand together: a word that names none of them gets the nearest one."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem
from gpuinfra.suggest import did_you_mean


class Group(TyperGroup):
    """A command that has commands of its own."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the first word names."""
        word = args[0]
        if self.get_command(ctx, word) is None and not word.startswith("-") and not ctx.resilient_parsing:
            path = ctx.command_path
            raise Problem(
                Diagnostic(
                    Code.UNKNOWN_COMMAND,
                    "unknown command",
                    note=f"`{word}` is not a command of {path}",
                    help=did_you_mean(word, self.list_commands(ctx)) or f"`{path} --help` lists them",
                ),
                exit_code=Exit.USAGE,
            )
        return super().resolve_command(ctx, args)
