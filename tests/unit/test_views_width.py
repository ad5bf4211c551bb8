"""Tables and results fit terminals of 60, 80 and 120 columns, and the least important columns go first."""

import os
import pty
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from gpuinfra.views import cost, job, receipt, runs, sizes, status, targets
from gpuinfra.views.terminal import columns, width_of, wrapped
from tests.unit import test_views_cost, test_views_receipt, test_views_runs, test_views_status, test_views_targets

SIMULATED = [replace(each, simulated=True) for each in (test_views_runs.RUNNING, test_views_runs.FAILED)]
MACHINES = [test_views_status.ON, test_views_status.OFF, test_views_status.LATE]
TABLES: dict[str, tuple[Callable[[int | None], Text], list[str], tuple[int, ...]]] = {
    "status": (
        lambda width: status.render(MACHINES, test_views_status.NOW, simulated=True, width=width),
        ["NAME", "STATE", "COST"],
        status.LEAST,
    ),
    "runs": (lambda width: runs.render(SIMULATED, test_views_runs.NOW, width), ["ID", "STATE"], runs.LEAST),
    "targets": (
        lambda width: targets.render(
            [test_views_targets.LAB, test_views_targets.SIX], test_views_targets.REACHED, width
        ),
        ["NAME", "TYPE", "REACHABLE"],
        targets.LEAST,
    ),
    "cost": (
        lambda width: cost.render(replace(test_views_cost.REPORT, simulated=True), None, width),
        ["MACHINE", "TOTAL"],
        cost.LEAST,
    ),
}


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("name", TABLES)
def test_table_fits_and_no_word_is_cut(name: str, width: int) -> None:
    render, kept, _ = TABLES[name]
    lines, full = render(width).plain.splitlines(), render(None).plain
    assert max(map(len, lines)) <= width, lines
    assert set(kept) <= set(lines[0].split())
    assert all(set(line.split()) <= set(full.split()) for line in lines)
    assert "simulated" in " ".join(lines)


@pytest.mark.parametrize("name", TABLES)
def test_columns_leave_in_the_order_of_their_importance(name: str) -> None:
    render, _, least = TABLES[name]
    full = render(None).plain.splitlines()[0]
    headings = full.replace(" (simulated)", "").replace("KNOWN FROM", "KNOWN").split()
    before: set[str] = set()
    for width in range(200, 40, -1):
        shown = render(width).plain.splitlines()[0].split()
        gone = {heading for heading in headings if heading not in shown}
        assert gone == {headings[each] for each in least[: len(gone)]}
        assert before <= gone
        before = gone
    assert before, "the table fits everywhere"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_sizes_fit(width: int) -> None:
    row = (
        "Standard_NC24ads_A100_v4",
        "A100 80 GB",
        "1",
        "24",
        "220 GiB",
        "southcentralus*",
        "1,2,3",
        "$3.673",
        "$1.469",
    )
    quota = ("24 of 100", "80 of 350", "0 of 100")
    header = (
        "SIZE",
        "GPU",
        "GPUS",
        "VCPUS",
        "MEMORY",
        "REGION",
        "ZONES",
        "PRICE",
        "SPOT",
        "QUOTA LEFT",
        "REGION LEFT",
        "SPOT LEFT",
    )
    assert max(map(len, columns([header, row + quota], least=sizes.LEAST_OF_PLACES, width=width))) <= width
    lines = columns([header[:9], row], least=sizes.LEAST_OF_PLACES, width=width)
    assert max(map(len, lines)) <= width
    assert {"SIZE", "REGION", "PRICE"} <= set(lines[0].split())
    least = columns(
        [(*header[:5], "FROM", "SPOT FROM"), (*row[:5], *row[7:])], least=sizes.LEAST_OF_SIZES, width=width - 23
    )
    assert max(map(len, least)) + 23 <= width, "the regions have a column of their own"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_results_are_wrapped_between_words(width: int) -> None:
    warning = "outputs/model was not fetched: " + "a reason of several words " * 8
    run = replace(test_views_runs.FAILED, warnings=(warning,))
    path = Path("/home/someone/projects/mnist/.gpuinfra/runs/20261116-121530-3f9c")
    for text in (job.render_result(run, path, width), receipt.render(test_views_receipt.RECEIPT, width)):
        lines = text.plain.splitlines()
        whole = {word for line in lines for word in line.split()}
        assert all(len(line) <= width or len(line.split()) <= 2 for line in lines), lines
        assert "reason" in whole or "machine" in whole
    assert job.render_result(run, path).plain.count("\n") < job.render_result(run, path, 60).plain.count("\n")


def test_commands_stay_on_one_line() -> None:
    text = "nothing was deleted: `gpuinfra outputs 20261116-121530-3f9c --workspace here` fetches the rest"
    assert wrapped(text, 40, 2).splitlines() == [
        "nothing was deleted:",
        "  `gpuinfra outputs 20261116-121530-3f9c --workspace here`",
        "  fetches the rest",
    ]
    assert wrapped(text, None, 2) == text


def test_pipe_gets_all_columns_and_a_terminal_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    reading, writing = os.pipe()
    with os.fdopen(reading), os.fdopen(writing, "w") as pipe:
        assert width_of(Console(file=pipe)) is None
    ours, theirs = pty.openpty()
    with os.fdopen(ours), os.fdopen(theirs, "w") as terminal:
        assert width_of(Console(file=terminal, width=72)) == 72
