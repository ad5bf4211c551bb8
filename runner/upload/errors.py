"""How the reading of a project can fail."""

from __future__ import annotations

from gpuinfra.diagnostics import Code
from gpuinfra.runner.jobs.port import JobError


class UploadError(JobError):
    """Something in the project cannot be sent; `path` is the user's own, inside the project."""

    def __init__(self, summary: str, path: str, reason: str = "", help: str | None = None) -> None:  # noqa: A002
        super().__init__(summary, f"{path}: {reason}" if reason else path, help, Code.UPLOAD_FAILED.value)
        self.path = path


def shown(path: str) -> str:
    """A path that may be printed: a name can have any bytes in it."""
    return path if path.isprintable() else path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
