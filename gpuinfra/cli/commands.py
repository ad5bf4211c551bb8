"""All commands, in the order and panels of `--help`. To add a command, add a line here."""

from __future__ import annotations

from typing import NamedTuple


class CommandEntry(NamedTuple):
    """A command: the function, or Typer with subcommands, called `name` in `gpuinfra.cli.name`."""

    name: str
    panel: str
    module: str | None = None
    """The name of module and function, if the command's name is not a Python identifier."""
    passes_words: bool = False
    """Whether everything after its arguments, options included, is passed to the script."""


SPECS = "Describe a machine"
RUN = "Manage machines"
TARGETS = "Targets and projects"
JOBS = "Run jobs"
TRY = "Try it without an account"

COMMANDS = (
    CommandEntry("init", SPECS),
    CommandEntry("validate", SPECS),
    CommandEntry("schema", SPECS),
    CommandEntry("sizes", RUN),
    CommandEntry("plan", RUN),
    CommandEntry("up", RUN),
    CommandEntry("down", RUN),
    CommandEntry("status", RUN),
    CommandEntry("lease", RUN),
    CommandEntry("cost", RUN),
    CommandEntry("doctor", RUN),
    CommandEntry("reap", RUN),
    CommandEntry("ssh", RUN),
    CommandEntry("schedule", RUN),
    CommandEntry("attach", TARGETS),
    CommandEntry("detach", TARGETS),
    CommandEntry("targets", TARGETS),
    CommandEntry("export", TARGETS),
    CommandEntry("import", TARGETS, "import_project"),
    CommandEntry("lint", TARGETS),
    CommandEntry("submit", JOBS, passes_words=True),
    CommandEntry("run", JOBS, passes_words=True),
    CommandEntry("prepare", JOBS),
    CommandEntry("runs", JOBS),
    CommandEntry("logs", JOBS),
    CommandEntry("cancel", JOBS),
    CommandEntry("outputs", JOBS),
    CommandEntry("sandbox", TRY),
)
