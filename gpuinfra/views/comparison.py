"""Two runs side by side: what differs, and nothing else."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from gpuinfra.views import document
from gpuinfra.views.amount import size
from gpuinfra.views.cells import UNKNOWN, columns, cost, length
from gpuinfra.views.runs import gpu_facts, taken
from gpuinfra.views.terminal import messages, results

if TYPE_CHECKING:
    from rich.text import Text

    from gpuinfra.models.run import Run

# Of the many fields of a run, those that two runs can be told apart by. Moments and ids always differ.
FIELDS = (
    *("state", "command", "script", "target", "type", "configuration", "machine", "exitCode", "reason"),
    *(
        "resourceId",
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


class Differing(Protocol):
    """A file that the two do not both have as it is."""

    @property
    def name(self) -> str:
        """With `/` between folders."""

    @property
    def a(self) -> int | None:
        """Its size there, if it is there."""

    @property
    def b(self) -> int | None:
        """The same of the other run."""

    def as_json(self) -> dict[str, Any]:
        """For programs."""


def show(a: Run, b: Run, files: Sequence[Differing], *, json: bool) -> None:
    """A line a difference."""
    if json:
        ours, theirs = a.as_json(), b.as_json()
        unlike = [name for name in FIELDS if ours[name] != theirs[name]]
        differences = [{"field": name, "a": ours[name], "b": theirs[name]} for name in unlike]
        document.show({"a": a.id, "b": b.id, "differences": differences, "files": [file.as_json() for file in files]})
        return
    results().print(render(a, b, files))
    if not list(_differences(a, b)) and not files:
        messages().print("no difference")


def render(a: Run, b: Run, files: Sequence[Differing]) -> Text:
    """For people: only what differs."""
    from rich.text import Text

    rows = [("", a.id, b.id), *_differences(a, b), *_file_rows(files)]
    lines = columns(rows)
    return Text("\n").join([Text(lines[0], "bold"), *map(Text, lines[1:])])


def _differences(a: Run, b: Run) -> Iterator[tuple[str, str, str]]:
    ours, theirs = dict(_facts(a)), dict(_facts(b))
    # Phases that only one of them has stand with the others.
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
    yield "time", UNKNOWN if seconds is None else length(seconds, exact=True)
    yield from ((f"time of {name}", length(each, exact=True)) for name, each in run.timings.items())
    yield "cost", cost(run.cost_usd)
    yield "simulated", "yes" if run.simulated else "no"
    yield "outputs", f"{run.outputs.files} files, {size(run.outputs.size)}"
    yield "warnings", "; ".join(run.warnings) or UNKNOWN


def _file_rows(files: Sequence[Differing]) -> Iterator[tuple[str, str, str]]:
    for file in files:
        sizes = [UNKNOWN if each is None else size(each) for each in (file.a, file.b)]
        # Sizes that are the same, or look it, would say nothing.
        other = f"{sizes[1]}, another content" if sizes[0] == sizes[1] else sizes[1]
        yield f"outputs/{file.name}", sizes[0], other
