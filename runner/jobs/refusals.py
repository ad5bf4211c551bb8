"""What the remote side refuses, as errors of jobs: no new connection would help."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from gpuinfra.diagnostics import Code
from gpuinfra.runner.jobs.port import JobError
from gpuinfra.runner.machine.remote_client import RemoteError

MAKE_ROOM = "make room there, as by `docker image prune`, and go on: nothing that is there was lost"
# By the remote side's code: the summary, the code, and what to do. Codes that are not here are bugs, or of other verbs.
MEANINGS: dict[str, tuple[str, Code, str | None]] = {
    "disk-full": ("the target's disk is full", Code.DISK_FULL, MAKE_ROOM),
    "no-permission": ("the target refuses", Code.JOB_FAILED, "look at who owns `~/.gpuinfra` there"),
    "no-python": ("no Python on the target", Code.NO_PYTHON, "install it there: `sudo apt-get install python3`"),
    "no-program": ("the job's program cannot be run", Code.NO_PYTHON, "say which one it is by `pythonLocation`"),
    "no-folder": ("the job's folder is not there", Code.JOB_FAILED, None),
    "no-such-run": ("the target knows no such run", Code.NO_SUCH_RUN, None),
    "environment-too-large": (
        "the environment is too large",
        Code.ENVIRONMENT_TOO_LARGE,
        "give large values by a file in the project instead",
    ),
    "still-runs": ("the job does not end", Code.JOB_FAILED, "look at it on the machine: it may hang in the kernel"),
    "busy": ("the run is begun by somebody else", Code.JOB_FAILED, None),
}


@contextlib.contextmanager
def translated(doing: str) -> Iterator[None]:
    """What the remote side refuses becomes a JobError; what is unforeseen says what was being done."""
    try:
        yield
    except RemoteError as error:
        summary, code, help_ = MEANINGS.get(error.code, (doing, Code.JOB_FAILED, None))
        raise JobError(summary, str(error), help_, code) from error
