"""Write files to paths that the user chooses."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpuinfra.app.settings import Settings
from gpuinfra.diagnostics import Code, Exit, Problem, problem
from gpuinfra.models.events import Question

if TYPE_CHECKING:
    from gpuinfra.app.frontend import Frontend


def write_file(
    path: Path,
    content: str | bytes,
    settings: Settings,
    frontend: Frontend,
    *,
    ours: bool = False,
    project: Path | None = None,
) -> None:
    """Write a complete file. Replace an existing one only if it is `ours`, with `--yes`, or after confirmation.

    Links must not lead out of `project`, which is the workspace by default.
    """
    from gpuinfra.workspace import check_inside, write_bytes

    check_inside(path, project or settings.workspace)
    if path.exists() and not path.is_file():
        # Writing would replace a device with a plain file.
        raise _unwritable(path, "there is something else than a file")
    replace = ours or settings.yes
    if path.exists() and not replace and frontend.can_ask:
        replace = frontend.confirm(Question(f"{path} exists. Replace it?"))
    try:
        write_bytes(path, content.encode("utf-8") if isinstance(content, str) else content, replace=replace)
    except FileExistsError:
        raise problem(
            Code.FILE_EXISTS,
            "file exists",
            f"`{path}` was left as it is",
            "give another path, or `--yes` to replace it",
            exit_code=Exit.USAGE,
        ) from None
    except OSError as error:
        raise _unwritable(path, str(error.strerror)) from None


def _unwritable(path: Path, reason: str) -> Problem:
    return problem(Code.FILE_UNWRITABLE, "file cannot be written", f"`{path}`: {reason}")
