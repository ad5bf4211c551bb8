"""What went wrong on the way to a job, or with it, in the words of this program."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem
from gpuinfra.runner.jobs.port import JobError
from gpuinfra.runner.machine.connection import (
    ConnectError,
    HostKeyChanged,
    HostKeyInvalid,
    HostKeyMismatch,
    LoginRefused,
    SwitchedOff,
    Unreachable,
)
from gpuinfra.runner.machine.remote_client import RemoteError

# The first kind that fits counts.
CONNECTIONS: tuple[tuple[type[ConnectError], Code, str], ...] = (
    (HostKeyInvalid, Code.BAD_HOST_KEY, "no valid host key"),
    (HostKeyChanged, Code.OTHER_HOST_KEY, "the machine's host key has changed"),
    (HostKeyMismatch, Code.OTHER_HOST_KEY, "another host key"),
    (LoginRefused, Code.LOGIN_REFUSED, "login refused"),
    (Unreachable, Code.NO_ANSWER, "no answer"),
    (SwitchedOff, Code.MACHINE_IS_OFF, "the machine is off"),
    (ConnectError, Code.CONNECTION_LOST, "the connection is lost"),
)
FAR: dict[str, tuple[Code, str, str]] = {
    "disk-full": (Code.DISK_FULL, "the target's disk is full", "make room on it: `gpuinfra ssh NAME -- df -h`"),
    "no-python": (Code.NO_PYTHON, "no Python on the target", "install it there: `sudo apt-get install python3`"),
    "no-program": (Code.JOB_FAILED, "the job's program is not there", "look at `pythonLocation` in the target's file"),
    "foreign-files": (Code.UPLOAD_FAILED, "another user's files are in the way", "remove that folder there, as root"),
    "busy": (Code.UPLOAD_FAILED, "another upload is in the way", "run it again when that one has ended"),
    "leads-out": (Code.BAD_PATH, "shared folder outside of the usual one", "name another one: `--shared-directory`"),
    "no-permission": (Code.UPLOAD_FAILED, "not allowed on the target", "look at the owner of `~/.gpuinfra` there"),
}


@contextmanager
def explained(target: str) -> Iterator[None]:
    """Whatever is raised in here about a target leaves as a Problem."""
    try:
        yield
    except (ConnectError, RemoteError, JobError) as error:
        raise problem_of(error, target) from error


def problem_of(error: ConnectError | RemoteError | JobError, target: str) -> Problem:
    """One error, with what to do."""
    if isinstance(error, JobError):
        return Problem(Diagnostic(Code(error.code), error.summary, note=error.note or None, help=error.help))
    if isinstance(error, RemoteError):
        usual = (Code.UPLOAD_FAILED, "the target refused", "run it again with `--verbose`")
        code, summary, help_line = FAR.get(error.code, usual)
        return Problem(Diagnostic(code, summary, note=f"`{target}`: {error}", help=help_line.replace("NAME", target)))
    code, summary = next((code, words) for kind, code, words in CONNECTIONS if isinstance(error, kind))
    starts, shows = "`gpuinfra up SPEC` starts it", f"`gpuinfra targets` shows whether `{target}` answers"
    help_line = error.help or (starts if code is Code.MACHINE_IS_OFF else shows)
    is_lost = error.was_connected or code in {Code.CONNECTION_LOST, Code.MACHINE_IS_OFF}
    exit_code = Exit.LOST if is_lost else Exit.FAILED
    return Problem(Diagnostic(code, summary, note=f"`{target}`: {error}", help=help_line), exit_code=exit_code)
