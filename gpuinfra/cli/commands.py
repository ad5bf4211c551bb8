"""Which commands there are, in the order and groups that `--help` shows. Listing one here is all it takes."""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """A command: function `name` in module `gpuinfra.cli.name`, or a Typer called so for one with its own."""

    name: str
    panel: str
    module: str | None = None
    """What module and function are called where a command's name is none that Python takes."""
    passes_words: bool = False
    """Whether words behind its arguments, options among them, are for somebody else."""


SPECS = "Describe a machine"
RUN = "Run machines"
TARGETS = "Targets and projects"
JOBS = "Run jobs"
TRY = "Try it without an account"

COMMANDS = (
    Entry("init", SPECS),
    Entry("validate", SPECS),
    Entry("schema", SPECS),
    Entry("sizes", RUN),
    Entry("plan", RUN),
    Entry("up", RUN),
    Entry("down", RUN),
    Entry("status", RUN),
    Entry("lease", RUN),
    Entry("cost", RUN),
    Entry("doctor", RUN),
    Entry("reap", RUN),
    Entry("ssh", RUN),
    Entry("schedule", RUN),
    Entry("attach", TARGETS),
    Entry("detach", TARGETS),
    Entry("targets", TARGETS),
    Entry("export", TARGETS),
    Entry("import", TARGETS, "import_project"),
    Entry("lint", TARGETS),
    Entry("submit", JOBS, passes_words=True),
    Entry("run", JOBS, passes_words=True),
    Entry("prepare", JOBS),
    Entry("runs", JOBS),
    Entry("logs", JOBS),
    Entry("cancel", JOBS),
    Entry("outputs", JOBS),
    Entry("sandbox", TRY),
)
