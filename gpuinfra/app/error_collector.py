"""Collect errors of a command for several machines: an error with one does not stop the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gpuinfra.diagnostics import Diagnostic, Exit, Problem


class ErrorCollector:
    """The collected problems."""

    def __init__(self) -> None:
        self.diagnostics: list[Diagnostic] = []
        self._codes: list[Exit] = []

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Collect a Problem in this block instead of raising it."""
        try:
            yield
        except Problem as problem:
            self.add(problem)

    def add(self, problem: Problem) -> None:
        """Collect a Problem."""
        self.diagnostics += problem.diagnostics
        self._codes.append(problem.exit_code)

    @property
    def has_failure(self) -> bool:
        """Whether a machine's command was correct but failed."""
        return Exit.FAILED in self._codes

    def exit_code(self, *, left_behind: bool = False) -> Exit:
        """Return the worst exit code: something that may be billed, else the first failure."""
        if left_behind or Exit.LEFT_BEHIND in self._codes:
            return Exit.LEFT_BEHIND
        return self._codes[0] if self._codes else Exit.DONE
