"""The script of a job: a file of the project, by its path in it."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem
from gpuinfra.suggest import did_you_mean


def script_path(project: Path, given: str, here: Path) -> str:
    """A script by its path in the project. What is given may also be a path from the current folder."""
    found = next((path for path in (project / given, here / given) if _is_file(path)), None)
    if found is None:
        raise _no_script(project, given)
    try:
        inside = found.resolve().relative_to(project.resolve())
    except ValueError:
        raise outside(given, f"it is not below `{project.absolute()}`, and only that is sent to the target") from None
    # As it was named, where that is in the project too: a link may have a name that matters.
    named = PurePosixPath(given)
    if not named.is_absolute() and ".." not in named.parts and _is_file(project / given):
        return named.as_posix()
    return inside.as_posix()


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that no system takes
        return False


def outside(given: str, note: str) -> Problem:
    """A script that would not be on the target."""
    return Problem(
        Diagnostic(
            Code.SCRIPT_OUTSIDE,
            "the script is not sent along",
            note=f"`{given}`: {note}",
            help="move it into the project, or give its folder by `--workspace`",
        ),
        exit_code=Exit.USAGE,
    )


def _no_script(project: Path, given: str) -> Problem:
    try:
        names = [each.name for each in (project / given).parent.iterdir()]
    except (OSError, ValueError):
        names = []
    nearest = did_you_mean(PurePosixPath(given).name, names)
    diagnostic = Diagnostic(
        Code.NO_SCRIPT,
        "no such script",
        note=f"`{given[:200]}` is no file in `{project.absolute()}`",
        help=nearest or "give its path from the project's folder",
    )
    return Problem(diagnostic, exit_code=Exit.USAGE)
