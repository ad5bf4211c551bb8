"""What `prune` finds and deletes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuinfra.models.json_values import exact_stamp
from gpuinfra.views import json_output
from gpuinfra.views.terminal import byte_size, columns, harmless, messages, results

if TYPE_CHECKING:
    from gpuinfra.models.run import OldRun


def show_found(found: Sequence[OldRun], older_than: str) -> None:
    """Print the runs with their sizes, and the sum."""
    if not found:
        messages().print(f"no run that ended more than {harmless(older_than)} ago can be deleted")
        return
    rows = [("RUN", "ENDED", "SIZE", "SCRIPT")]
    rows += [
        (old.run.id, f"{old.run.ended or old.run.created:%Y-%m-%d}", byte_size(old.size), harmless(old.run.script))
        for old in found
    ]
    for line in columns(rows):
        results().print(line)
    results().print(f"{len(found)} in all: {byte_size(sum(old.size for old in found))}")


def show_removed(found: Sequence[OldRun], *, is_removed: bool, json: bool) -> None:
    """Print what was deleted."""
    size = sum(old.size for old in found)
    if json:
        runs = [{"id": old.run.id, "ended": exact_stamp(old.run.ended), "size": old.size} for old in found]
        json_output.show({"runs": runs, "size": size, "deleted": is_removed})
    elif is_removed and found:
        messages().print(f"deleted {len(found)} with {byte_size(size)}")
