"""The result of one of several runs that a command executes at the same time."""

from dataclasses import dataclass
from pathlib import Path

from gpuinfra.diagnostics import Diagnostic
from gpuinfra.models.receipt import Receipt
from gpuinfra.models.run import Run


@dataclass(frozen=True)
class MachineResult:
    """The run on one machine, with the machine's receipt and all problems."""

    machine: str
    file: str
    """The file of its spec."""
    exit_code: int
    run: Run | None = None
    """None if no job was submitted."""
    folder: Path = Path()
    """The folder with the run's log and outputs."""
    receipt: Receipt | None = None
    diagnostics: tuple[Diagnostic, ...] = ()
    interrupted: bool = False
    is_left: bool = False
    """Whether something may be billed, or is left behind, that the user did not ask for."""
