"""A run's outputs: where they are, which they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from gpuinfra.views import diagnostics as diagnostics_view
from gpuinfra.views import document
from gpuinfra.views.amount import size
from gpuinfra.views.cells import columns
from gpuinfra.views.terminal import harmless, messages, results

if TYPE_CHECKING:
    from gpuinfra.diagnostics import Diagnostic
    from gpuinfra.models.run import Run


class File(Protocol):
    """One of them; `runner.results.kept` has it."""

    @property
    def name(self) -> str:
        """With `/` between folders."""

    @property
    def size(self) -> int:
        """In bytes."""

    @property
    def link(self) -> str | None:
        """Where it leads, if it is a symbolic link."""

    def as_json(self) -> dict[str, Any]:
        """For programs."""


@dataclass(frozen=True)
class Shown:
    """What there is to show."""

    run: Run
    path: Path
    files: Sequence[File]
    copied: bool = False
    left_out: bool | None = None
    """Whether uploads leave out the folder; None where it is not in the project."""

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "run": self.run.id,
            "path": str(self.path),
            "copied": self.copied,
            "complete": self.run.outputs.complete,
            "files": [file.as_json() for file in self.files],
        }


def show(shown: Shown, diagnostics: Sequence[Diagnostic], *, list_files: bool, json: bool) -> None:
    """The folder's path; or a line a file."""
    if json:
        document.show({**shown.as_json(), **diagnostics_view.as_payload(diagnostics)})
        return
    if list_files and shown.files:
        results().print("\n".join(lines(shown.files)))
    elif not list_files:
        results().print(harmless(str(shown.path)))
    messages().print(_summary(shown))
    if shown.left_out is not None:
        messages().print(f"note: {_upload_note(shown)}")
    diagnostics_view.show(diagnostics)


def lines(files: Sequence[File]) -> list[str]:
    """Size and name of each."""
    rows = [(size(file.size), file.name if file.link is None else f"{file.name} -> {file.link}") for file in files]
    return columns(rows, right={0})


def _upload_note(shown: Shown) -> str:
    where = harmless(str(shown.path))
    if shown.left_out:
        return f"{where} is in the project; the next run does not send it, unless `.gpuinfraignore` names it with a `!`"
    return f"{where} is a folder of the project with other files in it: the next run sends these copies as well"


def _summary(shown: Shown) -> str:
    count = "1 file" if len(shown.files) == 1 else f"{len(shown.files)} files"
    words = f"{count}, {size(sum(file.size for file in shown.files))}{', copied' if shown.copied else ''}"
    return words if shown.run.state.is_over else f"{words}; the job may go on, and write more"
