"""A run's outputs: their folder, or a list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuinfra.views import diagnostics as diagnostics_view
from gpuinfra.views import json_output
from gpuinfra.views.formatting import byte_size, columns, counted
from gpuinfra.views.terminal import harmless, messages, results

if TYPE_CHECKING:
    from gpuinfra.models.outputs import KeptFile, RunOutputs


def show(shown: RunOutputs, *, list_files: bool, json: bool) -> None:
    """Print the folder's path, or one line per file."""
    if json:
        json_output.show({**shown.as_json(), **diagnostics_view.as_payload(shown.diagnostics)})
        return
    if list_files and shown.files:
        results().print("\n".join(lines(shown.files)))
    elif not list_files:
        results().print(harmless(str(shown.path)))
    messages().print(_summary(shown))
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
