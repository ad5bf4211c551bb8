"""The port to a machine: what a job asks of it, and how that can fail.

ConnectError
├── Unreachable         nobody answers, or not yet: it may pass
│   └── PortClosed      the machine answers, and nothing listens on the port: it passes while the machine boots
├── HostKeyInvalid      the key that is expected is no key
├── HostKeyChanged      the target's key is not the one that this computer knows for its name: nobody was called
├── HostKeyMismatch     another machine answers, or this one with another key: nothing was sent to it
├── LoginRefused        the machine takes none of the keys, or not the password: it may pass while it boots
│   └── KeyUnusable     the right key is locked, or there is none to try: it does not pass by itself
├── TimedOut            a command did not end in time; the connection is as good as before
├── Broken              the connection is lost
└── SwitchedOff         the machine is off, by its cloud's own word: it does not come back by itself
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

CHUNK = 1 << 16


class ConnectError(Exception):
    """A machine that cannot be used; `help` is what to do about it."""

    was_connected = False
    """Whether a connection worked before: then it is lost, whatever the reason."""

    def __init__(self, reason: str, help: str | None = None) -> None:  # noqa: A002 the diagnostic's own word
        super().__init__(reason)
        self.help = help


class Unreachable(ConnectError):  # noqa: N818 a state of things
    """Nobody answers, or not yet."""


class PortClosed(Unreachable):
    """The machine answers, and nothing listens on its SSH port."""


class HostKeyInvalid(ConnectError):  # noqa: N818
    """What the target says about the machine's host key is no public key."""


class HostKeyChanged(ConnectError):  # noqa: N818
    """This computer knows another host key for the machine's name."""


class HostKeyMismatch(ConnectError):  # noqa: N818
    """The machine shows another host key than the one it was given when it was made."""

    def __init__(self, where: str, expected: str, shown: str | None) -> None:
        super().__init__(
            f"{where} shows the host key {shown}, expected {expected}"
            if shown
            else f"{where} has no host key of the kind that is expected, {expected}",
            "something else answers there, or somebody replaced the machine's keys; nothing was sent to it",
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
    """The machine is off: it was evicted, or its lease is over, or somebody ended it."""


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that has ended. Output that is not UTF-8 has replacement characters."""

    exit_code: int
    """The command's own; -1 where a signal ended it."""
    stdout: str
    stderr: str


class Process(Protocol):
    """A command that is running, with its streams. Every method raises ConnectError and nothing else.

    One thread may write while another reads.
    """

    def write(self, data: bytes | memoryview) -> None:
        """Give it all of this to read; returns when the machine has taken it."""

    def end_input(self) -> None:
        """There is no more to read. To say so twice is no error."""

    def read(self, most: int = CHUNK) -> bytes:
        """Some of what it prints, as soon as there is any; empty at the end."""

    @property
    def errors(self) -> str:
        """The end of what it has said on standard error so far, which is read in the background."""

    def idle(self, seconds: float | None) -> None:
        """From now on, a read or a write that gets nowhere for so many seconds raises TimedOut."""

    def wait(self, timeout: float) -> int:
        """Its exit code, -1 where a signal ended it; TimedOut where it goes on."""

    def close(self) -> None:
        """Let go of it: its streams are closed, and it is not waited for. To do so twice is no error."""


class Shell(Protocol):
    """A machine that takes commands, one answer each. Every method raises ConnectError and nothing else."""

    def run(self, command: Sequence[str] | str, *, timeout: float) -> Completed:
        """Run it to its end, with nothing to read. A list is run word by word, text is read by the user's shell."""

    def close(self) -> None:
        """Hang up. To do so twice is no error."""


class Connection(Shell, Protocol):
    """A machine with more than questions to it: this computer, or one that is reached by SSH.

    Every method raises ConnectError and nothing else. Commands may run at once, from several threads.
    """

    @property
    def where(self) -> str:
        """The place, as it is named in messages: `203.0.113.7:22`, `this computer`."""

    @property
    def is_open(self) -> bool:
        """Whether it can be used; a connection that was lost is not."""

    @property
    def heard_at(self) -> float:
        """When something last came from it, on the monotonic clock. This computer is never silent."""

    def start(self, command: Sequence[str] | str, *, timeout: float, idle: float | None = None) -> Process:
        """Begin it, within so many seconds. Where `idle` is given, a read or a write that gets nowhere for so many
        seconds raises TimedOut; without it, reading waits for as long as the machine is there."""
