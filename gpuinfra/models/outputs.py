"""What a job printed, and the files that it wrote to `outputs/`."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from gpuinfra.diagnostics import Diagnostic, Exit
from gpuinfra.models.run import Run

STDOUT, STDERR = 1, 2
FRAME_HEADER = 13
"""Bytes before a frame's data in a log file."""


class Frame(NamedTuple):
    """Bytes that a job printed at once on one stream; not always a whole line."""

    stream: int
    """STDOUT or STDERR."""
    time: int
    """Nanoseconds since 1970, by the target's clock; never less than in the frame before."""
    data: bytes

    @property
    def size(self) -> int:
        """The number of bytes in a log file."""
        return FRAME_HEADER + len(self.data)


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A file or symbolic link in a run's outputs."""

    name: str
    """The path, with `/` between folders."""
    size: int
    link: str | None = None
    """The target of a symbolic link."""

    def as_json(self) -> dict[str, Any]:
        found = {"name": self.name, "size": self.size, "link": self.link}
        return {key: value for key, value in found.items() if value is not None}


class Unlike(StrEnum):
    """How a file of one run differs from the same file of another run."""

    ONLY_A = "only-a"
    ONLY_B = "only-b"
    SIZE = "size"
    CONTENT = "content"


@dataclass(frozen=True, slots=True)
class FileDifference:
    """A file that differs between two runs."""

    name: str
    how: Unlike
    a: int | None
    """The size in the first run; None if it does not have the file."""
    b: int | None

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "difference": self.how.value, "a": self.a, "b": self.b}


@dataclass(frozen=True)
class RunOutputs:
    """The outputs of a run on this computer."""

    run: Run
    path: Path
    """Their folder, or the folder that they were copied to."""
    files: Sequence[KeptFile]
    copied: bool = False
    left_out: bool | None = None
    """Whether uploads ignore the folder; None if it is outside the project."""
    diagnostics: tuple[Diagnostic, ...] = ()
    exit_code: Exit = Exit.DONE

    def as_json(self) -> dict[str, Any]:
        return {
            "run": self.run.id,
            "path": str(self.path),
            "copied": self.copied,
            "complete": self.run.outputs.complete,
            "files": [file.as_json() for file in self.files],
        }
