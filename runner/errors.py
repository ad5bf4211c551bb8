"""Errors of connections and jobs, and the problems that users see.

ConnectError
├── Unreachable         no answer, or no answer yet: a retry may help
│   └── PortClosed      the machine answers, but nothing listens on the port: a retry may help while it boots
├── HostKeyInvalid      the expected host key is not a public key
├── HostKeyChanged      this computer has recorded another host key for the machine's name: no connection was made
├── HostKeyMismatch     the machine shows another host key than expected: nothing was sent to it
├── LoginRefused        the machine accepts none of the keys, or not the password: a retry may help while it boots
│   └── KeyUnusable     no key to offer, or the right one is locked: a retry does not help
├── TimedOut            a command did not end in time; the connection still works
├── Broken              the connection is lost
├── Interrupted         the user interrupted its use: a retry does not help
└── SwitchedOff         Azure reports that the machine is off: a retry does not help
RemoteError             the code on the machine refused a call
JobError                a job cannot be started, followed or stopped, and a new connection would not help
└── UploadError         a part of the project cannot be sent
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem


class ConnectError(Exception):
    """A machine cannot be used; `help` says what to do."""

    was_connected = False
    """Whether an earlier connection worked. If so, the connection counts as lost."""

    def __init__(self, reason: str, help: str | None = None) -> None:  # noqa: A002 the name in Diagnostic
        super().__init__(reason)
        self.help = help


class Unreachable(ConnectError):  # noqa: N818 a state, not a fault
    """The machine does not answer, or not yet."""


class PortClosed(Unreachable):
    """The machine answers, but nothing listens on its SSH port."""


class HostKeyInvalid(ConnectError):  # noqa: N818
    """The target's host key is not a public key."""


class HostKeyChanged(ConnectError):  # noqa: N818
    """This computer has recorded another host key for the machine's name."""


class HostKeyMismatch(ConnectError):  # noqa: N818
    """The machine shows another host key than the target has."""

    def __init__(self, address: str, expected: str, shown: str | None) -> None:
        super().__init__(
            f"{address} shows the host key {shown}, expected {expected}"
            if shown
            else f"{address} has no host key of the expected type, {expected}",
            "another machine answers at this address, or its keys were replaced; nothing was sent to it",
        )
        self.expected, self.shown = expected, shown
        """Fingerprints, as `ssh-keygen -l` prints them; `shown` is None if the machine has no key of the type."""


class LoginRefused(ConnectError):  # noqa: N818
    """The machine accepts none of the offered keys, or not the password."""


class KeyUnusable(LoginRefused):
    """There is no key to offer, or the right one is locked."""


class TimedOut(ConnectError):  # noqa: N818
    """A command did not end in time. It may still be running."""


class Broken(ConnectError):  # noqa: N818
    """The connection is lost."""


class Interrupted(ConnectError):  # noqa: N818
    """The user interrupted the use of the connection, from another thread."""


class SwitchedOff(ConnectError):  # noqa: N818
    """The machine is off: it was evicted or stopped, or its lease ended."""


class RemoteError(Exception):
    """The code on the machine refused a call.

    `code` is disk-full, no-permission, no-python, protocol, system, internal, or a code of the called verb.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class JobError(Exception):
    """A job cannot be started, followed or stopped; `help` says what to do.

    If a new connection may help, a ConnectError is raised instead.
    """

    def __init__(self, summary: str, note: str = "", help: str | None = None, code: str = "job-failed") -> None:  # noqa: A002
        super().__init__(f"{summary}: {note}" if note else summary)
        self.summary, self.note, self.help, self.code = summary, note, help, code
        """`code` is a value of `gpuinfra.diagnostics.Code`."""


class UploadError(JobError):
    """A part of the project cannot be sent; `path` is relative to the project."""

    def __init__(self, summary: str, path: str, reason: str = "", help: str | None = None) -> None:  # noqa: A002
        super().__init__(summary, f"{path}: {reason}" if reason else path, help, Code.UPLOAD_FAILED.value)
        self.path = path


def write_error(error: OSError, summary: str, path: Path, remedy: str) -> JobError:
    """Return the error for a path on this computer that cannot be written; `remedy` is the fix for a full disk."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return JobError("the disk of this computer is full", f"`{path}` cannot be written", remedy, Code.DISK_FULL)
    return JobError(summary, f"`{path}`: {error.strerror}", None, Code.FILE_UNWRITABLE)


# The first matching class counts.
CONNECT_PROBLEMS: tuple[tuple[type[ConnectError], Code, str], ...] = (
    (HostKeyInvalid, Code.BAD_HOST_KEY, "no valid host key"),
    (HostKeyChanged, Code.OTHER_HOST_KEY, "the machine's host key has changed"),
    (HostKeyMismatch, Code.OTHER_HOST_KEY, "another host key"),
    (LoginRefused, Code.LOGIN_REFUSED, "login refused"),
    (Unreachable, Code.NO_ANSWER, "no answer"),
    (SwitchedOff, Code.MACHINE_IS_OFF, "the machine is off"),
    (ConnectError, Code.CONNECTION_LOST, "the connection is lost"),
)

# By the code of a RemoteError: the summary, the error code (None: the caller's) and the help. Other codes are bugs, or
# belong to one verb whose caller handles them.
REMOTE_PROBLEMS: dict[str, tuple[str, Code | None, str | None]] = {
    "disk-full": (
        "the target's disk is full",
        Code.DISK_FULL,
        "free space on it, for example with `docker image prune`, and try again: no data was lost",
    ),
    "no-permission": ("permission denied on the target", None, "check the owner of `~/.gpuinfra` on the target"),
    "no-python": ("no Python on the target", Code.NO_PYTHON, "install it there: `sudo apt-get install python3`"),
    "no-program": (
        "the job's program cannot be run",
        Code.NO_PYTHON,
        "set `pythonLocation` in the target's file to the program's path",
    ),
    "environment-gone": ("the job's environment was removed", Code.BUILD_FAILED, "run it again, which makes it again"),
    "no-folder": ("the job's folder does not exist", Code.JOB_FAILED, None),
    "no-such-run": ("the target does not know this run", Code.NO_SUCH_RUN, None),
    "environment-too-large": (
        "the environment is too large",
        Code.ENVIRONMENT_TOO_LARGE,
        "put large values into a file of the project",
    ),
    "still-runs": ("the job does not end", Code.JOB_FAILED, "look at it on the machine: it may hang in the kernel"),
    "closing": (
        "the machine is being switched off",
        Code.MACHINE_IS_OFF,
        "wait until it is off: `gpuinfra up SPEC` then starts it, and `gpuinfra run SPEC` does so for a job",
    ),
    "busy": ("another client uses this run or project", None, "try again when the other client has finished"),
    "copy-lost": ("another run got this run's copy of the project", Code.UPLOAD_FAILED, "run it again"),
    "foreign-files": (
        "files of another user are in the way",
        Code.UPLOAD_FAILED,
        "make your user their owner there: `sudo chown -R USER FOLDER`; outputs of an earlier run may be among them",
    ),
    "leads-out": (
        "shared folder outside of the default one",
        Code.BAD_PATH,
        "choose another one: `--shared-directory`",
    ),
}


@contextmanager
def job_problems(target: str) -> Iterator[None]:
    """Raise a Problem for every error of the connection or the job in the block."""
    try:
        yield
    except (ConnectError, RemoteError, JobError) as error:
        raise problem_of(error, target) from error


def problem_of(error: ConnectError | RemoteError | JobError, target: str) -> Problem:
    """Return the Problem for an error of a connection or a job."""
    if isinstance(error, JobError):
        diagnostic = Diagnostic(Code(error.code), error.summary, note=error.note or None, help=error.help)
        is_missing = diagnostic.code is Code.NO_PROGRAM
        return Problem(diagnostic, exit_code=Exit.NO_PROGRAM if is_missing else Exit.FAILED)
    if isinstance(error, RemoteError):
        unknown = ("the target refused", None, "run it again with `--verbose`")
        summary, code, help_line = REMOTE_PROBLEMS.get(error.code, unknown)
        return Problem(Diagnostic(code or Code.UPLOAD_FAILED, summary, note=f"`{target}`: {error}", help=help_line))
    return _connect_problem(error, target)


def _connect_problem(error: ConnectError, target: str) -> Problem:
    code, summary = next((code, summary) for kind, code, summary in CONNECT_PROBLEMS if isinstance(error, kind))
    if code is Code.MACHINE_IS_OFF:
        default_help = "`gpuinfra up SPEC` starts it"
    else:
        default_help = f"`gpuinfra targets` shows whether `{target}` answers"
    is_lost = error.was_connected or code in {Code.CONNECTION_LOST, Code.MACHINE_IS_OFF}
    diagnostic = Diagnostic(code, summary, note=f"`{target}`: {error}", help=error.help or default_help)
    return Problem(diagnostic, exit_code=Exit.LOST if is_lost else Exit.FAILED)


@contextmanager
def job_errors(summary: str) -> Iterator[None]:
    """Raise a JobError for every RemoteError in the block; `summary` describes those with an unknown code."""
    try:
        yield
    except RemoteError as error:
        known, code, help_line = REMOTE_PROBLEMS.get(error.code, (summary, None, None))
        raise JobError(known, str(error), help_line, code or Code.JOB_FAILED) from error


@contextmanager
def preserve_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt if it was raised in the block and replaced by another exception.

    If a second Ctrl-C arrives while `threading.Condition` handles the first, Python raises "release unlocked lock".
    That would look like a lost connection, and the client would connect again instead of ending.
    """
    handled_before = sys.exc_info()[1]
    try:
        yield
    except Exception as error:
        each: BaseException | None = error
        while each is not None and each is not handled_before:
            if isinstance(each, KeyboardInterrupt):
                raise type(each) from error
            each = each.__context__
        raise
