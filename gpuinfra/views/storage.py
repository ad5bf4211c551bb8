"""What gpuinfra keeps on a machine, and what `prune` deletes of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuinfra.views import json_output
from gpuinfra.views.terminal import UNKNOWN, byte_size, columns, counted, harmless, messages, results, width_of

if TYPE_CHECKING:
    from gpuinfra.models.storage import StoredItem


NEW_LINE = "\n"
HEAD = ("KIND", "SIZE", "LAST USED", "NAME")


def show_found(found: Sequence[StoredItem]) -> None:
    """Print everything with its size and the sums: first what can be deleted, then what stays, for each reason."""
    removable = [each for each in found if not each.kept]
    if removable:
        _show(removable, HEAD)
        results().print(f"{len(removable)} in all: {_total(removable)}")
    else:
        messages().print("nothing can be deleted")
    kept = [each for each in found if each.kept]
    if kept:
        results().print(f"{NEW_LINE if removable else ''}these stay: {counted(len(kept), 'item')} with {_total(kept)}")
    for reason in dict.fromkeys(each.kept for each in kept):
        results().print(f"  {harmless(reason)}")
        _show([each for each in kept if each.kept == reason], indent=4)


def _show(items: Sequence[StoredItem], *head: Sequence[str], indent: int = 0) -> None:
    rows = [*head]
    for each in sorted(items, key=lambda item: -item.size):
        used = f"{each.used:%Y-%m-%d}" if each.used else UNKNOWN
        rows.append((each.kind, byte_size(each.size), used, each.name))
    width = width_of(results())
    for line in columns(rows, right={1}, least=(2,), width=None if width is None else width - indent):
        results().print(f"{' ' * indent}{line}")


def _total(items: Sequence[StoredItem]) -> str:
    return byte_size(sum(each.size for each in items))


def show_removed(target: str, found: Sequence[StoredItem], removed: Sequence[StoredItem] | None, *, json: bool) -> None:
    """Print what was deleted. `removed` also has what stays after all, with the reason, or is None if nothing was."""
    gone = [each for each in removed or () if not each.kept]
    if json:
        changed = {(each.kind, each.name): each for each in removed or ()}
        items = [changed.get((each.kind, each.name), each) for each in found]
        size = sum(each.size for each in items if not each.kept)
        shown = [each.as_json() for each in items]
        json_output.show({"target": target, "items": shown, "size": size, "deleted": removed is not None})
        return
    for each in removed or ():
        if each.kept:
            messages().print(f"{each.kind} {harmless(each.name)} stays: {harmless(each.kept)}")
    if removed is not None:
        messages().print(f"deleted {counted(len(gone), 'item')} with {_total(gone)}")
