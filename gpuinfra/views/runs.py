"""Runs: a table, all details of one, or its outputs."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from gpuinfra.models.run import RunState, unheard_hint
from gpuinfra.models.target import GpuFacts
from gpuinfra.views import diagnostics as diagnostics_view
from gpuinfra.views import json_output
from gpuinfra.views.terminal import (
    UNKNOWN,
    Cell,
    byte_size,
    columns,
    cost,
    counted,
    duration,
    harmless,
    messages,
    results,
    table,
    timestamp,
    width_of,
    wrapped,
)

if TYPE_CHECKING:
    from pathlib import Path

    from rich.text import Text

    from gpuinfra.models.run import FileDifference, GpuUsage, KeptFile, Outputs, Run, RunOutputs

HEADER = ("ID", "STATE", "TARGET", "SCRIPT", "STARTED", "TIME", "EXIT", "GPU", "COST")
# GPU, started, target, cost, exit code, time, script: left out first if the table does not fit.
LEAST = (7, 4, 2, 8, 6, 5, 3)
STYLES = {
    RunState.PREPARING: "yellow",
    RunState.RUNNING: "cyan",
    RunState.COMPLETED: "green",
    RunState.FAILED: "red",
    RunState.CANCELLED: "dim",
    RunState.TIMED_OUT: "red",
    RunState.EVICTED: "red",
    RunState.LOST: "bold red",
}
LABEL_WIDTH = 15
LOUD = {"warning", "GPU unused"}
# To be copied from the terminal, so not wrapped.
COMMANDS = {"command", "follow", "fetch"}
NEVER_USED = "the GPU was never used"


def show(
    runs: Sequence[Run],
    now: datetime,
    *,
    json: bool,
    unheard: Collection[str] = (),
    unfetched: Mapping[str, str] | None = None,
) -> None:
    """Print one line per run. `unheard` are runs whose client is gone and whose machine did not answer;
    `unfetched` has a hint for each run with outputs to fetch."""
    if json:
        json_output.show({"runs": [run.as_json() for run in runs]})
        return
    if not runs:
        messages().print("no runs yet; `gpuinfra submit` starts one")
        return
    console = results()
    console.print(render(runs, now, width_of(console)))
    for run in runs:
        if run.id in unheard:
            messages().print(harmless(unheard_hint(run)))
        elif hint := (unfetched or {}).get(run.id):
            messages().print(harmless(f"{run.id} {run.state.value}: {hint}"))


def render(runs: Sequence[Run], now: datetime, width: int | None = None) -> Text:
    """Return the table."""
    return table([HEADER, *(_row(run, now) for run in runs)], right={5, 6, 7, 8}, least=LEAST, width=width)


def _row(run: Run, now: datetime) -> tuple[Cell, ...]:
    seconds = taken(run, now)
    return (
        run.id,
        (f"{run.state.value}{' (simulated)' if run.simulated else ''}", STYLES[run.state]),
        run.target,
        run.script or shlex.join(run.command)[:30],
        timestamp(run.started or run.created),
        UNKNOWN if seconds is None else duration(seconds),
        UNKNOWN if run.exit_code is None else str(run.exit_code),
        f"{run.usage.peak_utilization} %" if run.usage else UNKNOWN,
        _cost(run),
    )


def _cost(run: Run) -> str:
    return f"{'at most ' if run.is_end_latest and run.cost_usd is not None else ''}{cost(run.cost_usd)}"


def taken(run: Run, now: datetime | None = None) -> float | None:
    """Return the seconds that the job ran, or has been running; None if it never started."""
    until = run.ended or (now if run.state is RunState.RUNNING else None)
    return max(0.0, (until - run.started).total_seconds()) if run.started and until else None


def show_one(run: Run, folder: Path, *, json: bool, unheard: bool = False, unfetched: str = "") -> None:
    """Print all details of a run. `folder` has its log and outputs."""
    if json:
        json_output.show({"run": as_json(run, folder)})
        return
    console = results()
    console.print(render_one(run, folder, width_of(console)))
    if unheard:
        messages().print(harmless(unheard_hint(run)))
    elif unfetched:
        messages().print(harmless(unfetched))


def as_json(run: Run, folder: Path) -> dict[str, Any]:
    """Return a run as a JSON object, with the paths of its log and outputs."""
    found = run.as_json()
    return {**found, "outputs": {**found["outputs"], "path": str(folder / "outputs")}, "log": str(folder / "log")}


def render_one(run: Run, folder: Path, width: int | None = None) -> Text:
    """Return all details of a run as text."""
    from rich.text import Text

    text = Text.assemble((harmless(run.id), "bold"), "  ", (run.state.value, STYLES[run.state]))
    text.append(" (simulated)" if run.simulated else "")
    return append_facts(text, _facts(run, folder), width)


def append_facts(text: Text, facts: Iterator[tuple[str, str]], width: int | None = None) -> Text:
    """Append one line per fact, wrapped between words. A label is not repeated on the next line."""
    before = ""
    for label, words in facts:
        style = "bold yellow" if label in LOUD else "dim"
        text.append(f"\n  {(label if label != before else '').ljust(LABEL_WIDTH)}", style)
        shown = harmless(words) if label in COMMANDS else wrapped(harmless(words), width, LABEL_WIDTH + 2)
        text.append(shown, "yellow" if label in LOUD else "")
        before = label
    return text


def _facts(run: Run, folder: Path) -> Iterator[tuple[str, str]]:
    yield "command", shlex.join(run.command)
    machine = f", machine {run.machine}" if run.machine else ""
    yield "target", f"{run.target} ({run.type}{machine})"
    if run.configuration != run.target:
        yield "configuration", run.configuration
    yield from _times(run)
    yield from _end(run)
    if run.git_commit:
        dirty = {True: ", with uncommitted changes", False: "", None: ""}[run.git_dirty]
        yield "commit", f"{run.git_commit}{dirty}"
    for label, value in (("spec", run.spec_digest), ("image", run.image), ("image digest", run.image_digest)):
        if value:
            yield label, value
    yield from gpu_facts(run, details=True)
    if run.environment:
        yield "variables", ", ".join(run.environment)
    yield from ((("phases"), f"{name}: {duration(seconds, exact=True)}") for name, seconds in run.timings.items())
    if run.cost_usd is not None:
        yield "cost", _cost(run)
    if run.after_run:
        yield "afterwards", run.after_run
    yield "outputs", outputs_words(run.outputs, folder)
    yield "log", str(folder / "log")
    yield from (("warning", warning) for warning in run.warnings)


def _times(run: Run) -> Iterator[tuple[str, str]]:
    yield "created", timestamp(run.created)
    if run.started:
        yield "started", timestamp(run.started)
    if run.ended:
        seconds = taken(run)
        yield (
            "ended",
            f"{timestamp(run.ended)}{f', after {duration(seconds, exact=True)}' if seconds is not None else ''}",
        )


def _end(run: Run) -> Iterator[tuple[str, str]]:
    if run.exit_code is not None:
        yield "exit code", str(run.exit_code)
    if run.reason:
        yield "reason", run.reason


def gpu_facts(run: Run, *, details: bool = False) -> Iterator[tuple[str, str]]:
    """Return the job's GPUs and their use."""
    if run.gpu and run.gpu.get("models"):
        facts = _gpu(run.gpu)
        simulated = " (simulated)" if facts.simulated and "simulated" not in facts.summary else ""
        yield "GPU", f"{facts.summary}{simulated}"
        if details:
            yield from (("", detail) for detail in facts.details)
    # Usually a warning already says it.
    has_warning = any(warning.startswith(NEVER_USED) for warning in run.warnings)
    if run.usage and (run.usage.was_used or not has_warning):
        yield ("GPU use" if run.usage.was_used else "GPU unused"), usage_words(run.usage)


def _gpu(found: dict[str, Any]) -> GpuFacts:
    """Return the facts from a run's record. Records of older versions lack some."""
    count = len(found["models"])
    return GpuFacts(
        models=tuple(found["models"]),
        driver=str(found.get("driver", UNKNOWN)),
        memory_mib=tuple(found.get("memoryMiB") or [None] * count),
        compute_capabilities=tuple(found.get("computeCapabilities") or [None] * count),
        simulated=bool(found.get("simulated")),
        cuda=found.get("cuda"),
        bus_ids=tuple(found.get("busIds", ())),
        memory_free_mib=tuple(found.get("memoryFreeMiB", ())),
        max_clocks_mhz=tuple(found.get("maxClocksMHz", ())),
    )


def usage_words(usage: GpuUsage) -> str:
    """Return `peak 97 %, mean 61 %, at most 10240 MiB`."""
    samples = "1 sample" if usage.samples == 1 else f"{usage.samples} samples"
    memory = UNKNOWN if usage.peak_memory_mib is None else usage.peak_memory_mib
    if not usage.was_used:
        return f"{NEVER_USED}: 0 % in {samples}, at most {memory} MiB"
    peak, mean = usage.peak_utilization, usage.mean_utilization
    return f"peak {peak} %, mean {mean:.0f} %, at most {memory} MiB, {samples}"


def outputs_words(outputs: Outputs, folder: Path) -> str:
    """Return `3 files, 12.0 MiB in PATH`."""
    files = counted(outputs.files, "file")
    if outputs.complete and not outputs.files:
        return "none"
    rest = "" if outputs.complete else "; not everything was fetched"
    return f"{files}, {byte_size(outputs.size)} in {folder / 'outputs'}{rest}"


# The fields to compare. Times and ids always differ.
FIELDS = (
    *("state", "command", "script", "target", "type", "configuration", "machine", "exitCode", "reason"),
    *("resourceId", "vmId", "gitCommit", "gitDirty", "specDigest", "image", "imageDigest", "environment", "gpu"),
    *("usage", "timings", "outputs", "costUsd", "simulated", "afterRun", "warnings"),
    *("request", "environmentDigest", "ports"),
)


def show_comparison(a: Run, b: Run, files: Sequence[FileDifference], *, json: bool) -> None:
    """Print one line per difference."""
    if json:
        ours, theirs = a.as_json(), b.as_json()
        unlike = [name for name in FIELDS if ours[name] != theirs[name]]
        differences = [{"field": name, "a": ours[name], "b": theirs[name]} for name in unlike]
        json_output.show(
            {"a": a.id, "b": b.id, "differences": differences, "files": [file.as_json() for file in files]}
        )
        return
    results().print(render_comparison(a, b, files))
    if not list(_differences(a, b)) and not files:
        messages().print("no differences")


def render_comparison(a: Run, b: Run, files: Sequence[FileDifference]) -> Text:
    """Return the differences as a table."""
    return table([("", a.id, b.id), *_differences(a, b), *_file_rows(files)])


def _differences(a: Run, b: Run) -> Iterator[tuple[str, str, str]]:
    ours, theirs = dict(_compared_facts(a)), dict(_compared_facts(b))
    # Also phases that only one run has.
    for label in dict.fromkeys([*ours, *theirs]):
        one, other = ours.get(label, UNKNOWN), theirs.get(label, UNKNOWN)
        if one != other:
            yield label, one, other


def _compared_facts(run: Run) -> Iterator[tuple[str, str]]:
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
    yield "environment", run.environment_digest or UNKNOWN
    yield "ports", ", ".join(f"{name} {port}" for name, port in run.ports.items()) or UNKNOWN
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


def show_outputs(shown: RunOutputs, *, list_files: bool, json: bool) -> None:
    """Print the folder's path, or one line per file."""
    if json:
        json_output.show({**shown.as_json(), **diagnostics_view.as_payload(shown.diagnostics)})
        return
    if list_files and shown.files:
        results().print("\n".join(lines(shown.files)))
    elif not list_files:
        results().print(harmless(str(shown.path)))
    messages().print(_summary(shown))
    for what, names in (("not fetched", shown.skipped), ("fetched as far as it was written", shown.unfinished)):
        for name in names:
            messages().print(f"note: {what}: {harmless(name)}")
    if shown.left_out is not None:
        messages().print(f"note: {_upload_note(shown)}")
    diagnostics_view.show(shown.diagnostics)


def lines(files: Sequence[KeptFile]) -> list[str]:
    """Return size and name of each file."""
    rows = [(byte_size(file.size), file.name if file.link is None else f"{file.name} -> {file.link}") for file in files]
    return columns(rows, right={0})


def _upload_note(shown: RunOutputs) -> str:
    where = harmless(str(shown.path))
    if shown.left_out:
        return f"{where} is in the project; runs do not upload it unless `.gpuinfraignore` includes it with `!`"
    return f"{where} is a project folder with other files: the next run uploads these copies, too"


def _summary(shown: RunOutputs) -> str:
    size = byte_size(sum(file.size for file in shown.files))
    words = f"{counted(len(shown.files), 'file')}, {size}{', copied' if shown.copied else ''}"
    return words if shown.run.state.is_over else f"{words}; the job may still be running, and write more"
