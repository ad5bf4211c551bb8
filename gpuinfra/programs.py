"""Find programs on this computer, never in the project, which may be foreign."""

import os
import shutil
import sys
from pathlib import Path

# The job's own PATH, which may name the project's virtual environment. `remote/supervisor.py` gives it to the job.
JOB_PATH = "GPUINFRA_JOB_PATH"
USUAL = "/usr/local/bin:/usr/bin:/bin"


def secure_path(project: Path) -> None:
    """Remove the project's folders from PATH, for this process and all programs that it starts.

    Jobs keep the absolute entries: the user may have activated a virtual environment of the project.
    """
    found = os.get_exec_path()
    os.environ[JOB_PATH] = os.pathsep.join(absolute_entries(found)) or USUAL
    os.environ["PATH"] = os.pathsep.join(entries_outside(found, project)) or USUAL


def entries_outside(entries: list[str], project: Path) -> list[str]:
    """Return the absolute entries outside the project.

    This program's own folder stays. A project that contains the home folder is the user's own.
    """
    root, own = project.resolve(), Path(sys.executable).parent
    if Path(os.path.expanduser("~")).resolve().is_relative_to(root):  # noqa: PTH111 never fails
        return absolute_entries(entries)
    return [
        each
        for each in absolute_entries(entries)
        if Path(each) == own
        or not (Path(os.path.realpath(each)).is_relative_to(root) or Path(each).is_relative_to(root))
    ]


def absolute_entries(entries: list[str]) -> list[str]:
    """Return the absolute entries. Others, such as the empty one, depend on the current folder."""
    return [each for each in entries if Path(each).is_absolute()]


def find_program(name: str) -> str | None:
    """Return the full path of a program in the absolute entries of PATH, or None."""
    return shutil.which(name, path=os.pathsep.join(absolute_entries(os.get_exec_path())) or USUAL)


def find_job_program(name: str) -> str | None:
    """Return the full path of a program in the PATH of local jobs, or None."""
    return shutil.which(name, path=os.environ.get(JOB_PATH)) if JOB_PATH in os.environ else find_program(name)
