"""Several machines in one command: what goes wrong with one does not keep the others from their turn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gpuinfra.diagnostics import Diagnostic, Exit, Problem


class ErrorCollector:
    """Collects the problems of all turns."""

    def __init__(self) -> None:
        self.diagnostics: list[Diagnostic] = []
        self._codes: list[Exit] = []

    @contextmanager
    def capture(self) -> Iterator[None]:
        """One turn. Its problem is kept for the end."""
        try:
            yield
        except Problem as problem:
            self.diagnostics += problem.diagnostics
            self._codes.append(problem.exit_code)

    def exit_code(self, *, left_behind: bool = False) -> Exit:
        """The worst of all: something that may be billed, then the first failure."""
        if left_behind or Exit.LEFT_BEHIND in self._codes:
            return Exit.LEFT_BEHIND
        return self._codes[0] if self._codes else Exit.DONE
