"""Errors of the way to a machine and of jobs, and the problems that users see.

ConnectError
├── Unreachable         no answer, or not yet: it may pass
│   └── PortClosed      the machine answers, and nothing listens on the port: it passes while the machine boots
├── HostKeyInvalid      the expected key is not a key
├── HostKeyChanged      the target's key is not the one that this computer knows for its name: no connection was made
├── HostKeyMismatch     another machine answers, or this one with another key: nothing was sent to it
├── LoginRefused        the machine accepts none of the keys, or not the password: it may pass while it boots
│   └── KeyUnusable     the right key is locked, or there is none to try: it does not pass by itself
├── TimedOut            a command did not end in time; the connection still works
├── Broken              the connection is lost
└── SwitchedOff         the machine is off, as its cloud says: it does not come back by itself
RemoteError             the code on the machine refused a call
JobError                a job cannot be started, followed or stopped, and a new connection would not help
└── UploadError         something in the project cannot be sent
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem


class ConnectError(Exception):
    """A machine that cannot be used; `help` is what to do about it."""

    was_connected = False
    """Whether a connection worked before: then it is lost, whatever the reason."""

    def __init__(self, reason: str, help: str | None = None) -> None:  # noqa: A002 the diagnostic's own word
        super().__init__(reason)
        self.help = help


class Unreachable(ConnectError):  # noqa: N818 a state of things
    """No answer, or not yet."""


class PortClosed(Unreachable):
    """The machine answers, and nothing listens on its SSH port."""


class HostKeyInvalid(ConnectError):  # noqa: N818
    """The target's host key is not a public key."""


class HostKeyChanged(ConnectError):  # noqa: N818
    """This computer knows another host key for the machine's name."""


class HostKeyMismatch(ConnectError):  # noqa: N818
    """The machine shows another host key than the one it was given when it was made."""

    def __init__(self, where: str, expected: str, shown: str | None) -> None:
        super().__init__(
            f"{where} shows the host key {shown}, expected {expected}"
            if shown
            else f"{where} has no host key of the kind that is expected, {expected}",
            "something else answers there, or the machine's keys were replaced; nothing was sent to it",
        )
        self.expected, self.shown = expected, shown
        """Fingerprints, as `ssh-keygen -l` prints them; None where no key of the kind is there."""


class LoginRefused(ConnectError):  # noqa: N818
    """The machine takes none of the keys that it was offered, or not the password."""


class KeyUnusable(LoginRefused):
    """There is no key to offer, or the right one is locked."""


class TimedOut(ConnectError):  # noqa: N818
    """A command did not end in time. It may still be running."""


class Broken(ConnectError):  # noqa: N818
    """The connection is lost."""


class SwitchedOff(ConnectError):  # noqa: N818
    """The machine is off: it was evicted, or its lease is over, or a user stopped it."""


class RemoteError(Exception):
    """The remote side refused; `code` says what it is about.

    disk-full, no-permission, no-python, protocol, system, internal, and those of each verb.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class JobError(Exception):
    """A job cannot be begun, followed or ended, and no new connection would help; `help` is what to do.

    If a new connection may help, it is a ConnectError.
    """

    def __init__(self, summary: str, note: str = "", help: str | None = None, code: str = "job-failed") -> None:  # noqa: A002
        super().__init__(f"{summary}: {note}" if note else summary)
        self.summary, self.note, self.help, self.code = summary, note, help, code
        """`code` is a value of `gpuinfra.diagnostics.Code`."""


class UploadError(JobError):
    """Something in the project cannot be sent; `path` is the user's own, inside the project."""

    def __init__(self, summary: str, path: str, reason: str = "", help: str | None = None) -> None:  # noqa: A002
        super().__init__(summary, f"{path}: {reason}" if reason else path, help, Code.UPLOAD_FAILED.value)
        self.path = path


# The first kind that fits counts.
CONNECT_PROBLEMS: tuple[tuple[type[ConnectError], Code, str], ...] = (
    (HostKeyInvalid, Code.BAD_HOST_KEY, "no valid host key"),
    (HostKeyChanged, Code.OTHER_HOST_KEY, "the machine's host key has changed"),
    (HostKeyMismatch, Code.OTHER_HOST_KEY, "another host key"),
    (LoginRefused, Code.LOGIN_REFUSED, "login refused"),
    (Unreachable, Code.NO_ANSWER, "no answer"),
    (SwitchedOff, Code.MACHINE_IS_OFF, "the machine is off"),
    (ConnectError, Code.CONNECTION_LOST, "the connection is lost"),
)
REMOTE_PROBLEMS: dict[str, tuple[Code, str, str]] = {
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
        code, summary, help_line = REMOTE_PROBLEMS.get(error.code, usual)
        return Problem(Diagnostic(code, summary, note=f"`{target}`: {error}", help=help_line.replace("NAME", target)))
    code, summary = next((code, words) for kind, code, words in CONNECT_PROBLEMS if isinstance(error, kind))
    starts, shows = "`gpuinfra up SPEC` starts it", f"`gpuinfra targets` shows whether `{target}` answers"
    help_line = error.help or (starts if code is Code.MACHINE_IS_OFF else shows)
    is_lost = error.was_connected or code in {Code.CONNECTION_LOST, Code.MACHINE_IS_OFF}
    exit_code = Exit.LOST if is_lost else Exit.FAILED
    return Problem(Diagnostic(code, summary, note=f"`{target}`: {error}", help=help_line), exit_code=exit_code)


MAKE_ROOM = "make room there, as by `docker image prune`, and continue: nothing on it was lost"
# By the remote side's code: the summary, the code, and what to do. Codes that are not here are bugs, or of other verbs.
REFUSALS: dict[str, tuple[str, Code, str | None]] = {
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
    "busy": ("another client starts the run", Code.JOB_FAILED, None),
}


@contextlib.contextmanager
def job_errors(doing: str) -> Iterator[None]:
    """What the remote side refuses becomes a JobError; what is unforeseen says what was being done."""
    try:
        yield
    except RemoteError as error:
        summary, code, help_ = REFUSALS.get(error.code, (doing, Code.JOB_FAILED, None))
        raise JobError(summary, str(error), help_, code) from error


@contextlib.contextmanager
def interrupts_kept() -> Iterator[None]:
    """Raise KeyboardInterrupt where one was raised in here and another exception took its place.

    A second Ctrl-C while `threading.Condition` takes back its lock for the first becomes "release unlocked lock", which
    reads like a lost connection: the client would connect again instead of ending.
    """
    before = sys.exc_info()[1]
    try:
        yield
    except Exception as error:
        each: BaseException | None = error
        while each is not None and each is not before:
            if isinstance(each, KeyboardInterrupt):
                raise type(each) from error
            each = each.__context__
        raise
