"""The differences of two runs, side by side."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from gpuinfra.views import json_output
from gpuinfra.views.formatting import UNKNOWN, byte_size, columns, cost, duration
from gpuinfra.views.runs import gpu_facts, taken
from gpuinfra.views.terminal import messages, results

if TYPE_CHECKING:
    from rich.text import Text

    from gpuinfra.models.run import Run

# The fields to compare. Times and ids always differ.
FIELDS = (
    *("state", "command", "script", "target", "type", "configuration", "machine", "exitCode", "reason"),
    *(
        "resourceId",
        "vmId",
        "gitCommit",
        "gitDirty",
        "specDigest",
        "image",
        "imageDigest",
        "environment",
        "gpu",
        "usage",
        "timings",
        "outputs",
    ),
    *("costUsd", "simulated", "afterRun", "warnings"),
)


class FileDifference(Protocol):
    """A file that differs between the two runs."""

    @property
    def name(self) -> str:
        """The path, with `/` between folders."""

    @property
    def a(self) -> int | None:
        """Its size in the first run, or None."""

    @property
    def b(self) -> int | None:
        """Its size in the second run, or None."""

    def as_json(self) -> dict[str, Any]:
        """Return this as a JSON object."""


def show(a: Run, b: Run, files: Sequence[FileDifference], *, json: bool) -> None:
    """Print one line per difference."""
    if json:
        ours, theirs = a.as_json(), b.as_json()
        unlike = [name for name in FIELDS if ours[name] != theirs[name]]
        differences = [{"field": name, "a": ours[name], "b": theirs[name]} for name in unlike]
        json_output.show(
            {"a": a.id, "b": b.id, "differences": differences, "files": [file.as_json() for file in files]}
        )
        return
    results().print(render(a, b, files))
    if not list(_differences(a, b)) and not files:
        messages().print("no differences")


def render(a: Run, b: Run, files: Sequence[FileDifference]) -> Text:
    """Return the differences as a table."""
    from rich.text import Text

    rows = [("", a.id, b.id), *_differences(a, b), *_file_rows(files)]
    lines = columns(rows)
    return Text("\n").join([Text(lines[0], "bold"), *map(Text, lines[1:])])


def _differences(a: Run, b: Run) -> Iterator[tuple[str, str, str]]:
    ours, theirs = dict(_facts(a)), dict(_facts(b))
    # Also phases that only one run has.
    for label in dict.fromkeys([*ours, *theirs]):
        one, other = ours.get(label, UNKNOWN), theirs.get(label, UNKNOWN)
        if one != other:
            yield label, one, other


def _facts(run: Run) -> Iterator[tuple[str, str]]:
    yield "state", run.state.value
    yield "exit code", UNKNOWN if run.exit_code is None else str(run.exit_code)
    yield "reason", run.reason or UNKNOWN
    yield "command", shlex.join(run.command)
    yield "target", f"{run.target} ({run.type})"
    yield "configuration", run.configuration
    yield "machine", run.machine or UNKNOWN
    dirty = " + changes" if run.git_dirty else ""
    yield "commit", f"{run.git_commit[:12]}{dirty}" if run.git_commit else UNKNOWN
    yield "spec", run.spec_digest or UNKNOWN
    yield "image", run.image or UNKNOWN
    yield "image digest", run.image_digest or UNKNOWN
    yield "variables", ", ".join(sorted(run.environment)) or UNKNOWN
    yield from gpu_facts(run)
    seconds = taken(run)
    yield "time", UNKNOWN if seconds is None else duration(seconds, exact=True)
    yield from ((f"time of {name}", duration(each, exact=True)) for name, each in run.timings.items())
    yield "cost", cost(run.cost_usd)
    yield "simulated", "yes" if run.simulated else "no"
    yield "outputs", f"{run.outputs.files} files, {byte_size(run.outputs.size)}"
    yield "warnings", "; ".join(run.warnings) or UNKNOWN


def _file_rows(files: Sequence[FileDifference]) -> Iterator[tuple[str, str, str]]:
    for file in files:
        sizes = [UNKNOWN if each is None else byte_size(each) for each in (file.a, file.b)]
        # Equal sizes would hide the difference.
        other = f"{sizes[1]}, different content" if sizes[0] == sizes[1] else sizes[1]
        yield f"outputs/{file.name}", sizes[0], other
