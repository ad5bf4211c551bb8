"""The way to a target: one connection for everything, and a new one where it is lost."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from gpuinfra.models.target import Target
from gpuinfra.runner.background import begin
from gpuinfra.runner.connection.port import Connection
from gpuinfra.runner.connection.remote_client import RemoteClient
from gpuinfra.runner.errors import Broken, ConnectError, JobError, PortClosed, SwitchedOff, TimedOut, Unreachable

if TYPE_CHECKING:
    from gpuinfra.runner.docker.client import Engine


# Below the program's own logger, so that `--verbose` shows it.
logger = logging.getLogger(f"gpuinfra.{__name__}")

CONNECT_SECONDS = 30.0
FIRST_PAUSE, LONGEST_PAUSE, GROWTH = 0.2, 5.0, 1.6
# A machine that does not answer for this long may be off: its cloud is asked this often.
POWER_SECONDS = 20.0
# A machine that has not answered yet, whose port is closed and whose cloud is not known, gets so long to start SSH.
CLOSED_SECONDS = 5.0
# Errors that a new connection may fix; it cannot fix a wrong host key or a refused login.
PASSING = (Broken, Unreachable, TimedOut)
NO_ENGINE = "no-engine"
LOCK_SECONDS = 0.1

T = TypeVar("T")


class Link:
    """The connection to a target, its remote client and Docker Engine; `drop` has them made again. Thread-safe."""

    def __init__(self, target: Target, opener: Callable[[], Connection], *, shares_credentials: bool = False) -> None:
        self.target = target
        self._shares_credentials = shares_credentials
        self._opener = opener
        self._lock = threading.RLock()
        self._connection: Connection | None = None
        self._remote: RemoteClient | None = None
        self._engine: Engine | None = None
        self._had_engine = False
        self._was_connected = False
        self.power: Callable[[], str | None] | None = None
        """Returns why the machine is off, or None; None itself if its cloud is not known."""
        self._off: str | None = None

    @property
    def connection(self) -> Connection:
        """The connection, opened where there is none."""
        if self._off:
            raise SwitchedOff(self._off)
        with self._lock:
            if self._connection is not None and not self._connection.is_open:
                self.drop()
            if self._connection is None:
                try:
                    self._connection = self._opener()
                except ConnectError as error:
                    error.was_connected = self._was_connected
                    raise
                self._was_connected = True
            return self._connection

    @property
    def remote(self) -> RemoteClient:
        """Calls to the remote side."""
        with self._lock:
            connection = self.connection
            if self._remote is None:
                self._remote = RemoteClient(connection)
            return self._remote

    @property
    def open_far(self) -> RemoteClient | None:
        """The same, where there is a connection: for what is worth neither a new one nor a wait for it."""
        if not self._lock.acquire(blocking=False):
            return None  # another thread is about to make one
        try:
            is_open = self._connection is not None and self._connection.is_open
            return self.remote if is_open else None
        finally:
            self._lock.release()

    @property
    def is_off(self) -> bool:
        """Whether the machine was found to be off; then no connection is made."""
        return self._off is not None

    @property
    def engine(self) -> Engine:
        """Its Docker Engine."""
        from gpuinfra.runner.docker.client import open_engine

        with self._lock:
            connection = self.connection
            if self._engine is None:
                # One that answered before, and does not now, may be restarting.
                self._engine = open_engine(
                    connection, expected=self._had_engine, shares_credentials=self._shares_credentials
                )
            return self._engine

    def warm(self, *, engine: bool) -> None:
        """Begin, beside everything else, what the first calls would wait for. What fails now fails again then."""
        begin(self._warm_remote, "warm-remote")
        if engine:
            begin(self._warm_engine, "warm-engine")

    def _warm_remote(self) -> None:
        self.remote.prepare()

    def _warm_engine(self) -> None:
        self.engine.prepare()

    def drop(self) -> None:
        """Hang up; the next use makes a new connection. A second call does nothing."""
        while not self._lock.acquire(timeout=LOCK_SECONDS):
            if self._connection is None:
                return  # another thread connects, which can take long, and there is nothing to hang up
        try:
            self._had_engine = self._had_engine or (self._engine is not None and self._engine.is_expected)
            parts = (self._engine, self._remote, self._connection)
            self._engine = self._remote = self._connection = None
        finally:
            self._lock.release()
        for part in parts:
            if part is not None:
                with contextlib.suppress(ConnectError, JobError, OSError):
                    part.close()

    def lost(self, error: Exception) -> None:
        """Something broke. The connection is given up if it was that; others may be on a new one by now."""
        with self._lock:
            is_gone = self._connection is not None and not self._connection.is_open
        if is_gone or isinstance(error, TimedOut):
            self.drop()

    def check_power(self) -> None:
        """Raise SwitchedOff where the machine is known to be off."""
        # Of several who ask, one may get no answer: what another has heard holds.
        self._off = (self.power() if self.power else None) or self._off
        if self._off:
            self.drop()
            raise SwitchedOff(self._off)

    def retry_policy(
        self, seconds: float, on_loss: Callable[[Exception], None] | None = None, *, engine_too: bool = False
    ) -> RetryPolicy:
        """Return a policy that retries a lost connection for `seconds`, or until the machine is found to be off."""
        return RetryPolicy(
            seconds, on_loss, engine_too=engine_too, check_power=self.check_power, may_boot=self._may_boot
        )

    def _may_boot(self) -> bool:
        """Whether a closed port may open soon: the machine has answered before, or its cloud says whether it is on."""
        return self._was_connected or self.power is not None

    def retry(self, attempt: Callable[[], T], policy: RetryPolicy) -> T:
        """Return the result of `attempt`. After a lost connection, try again on a new one, as the policy allows."""
        while True:
            try:
                return attempt()
            except (ConnectError, JobError) as error:
                self.lost(error)
                policy.wait(error)


class RetryPolicy:
    """How long to retry a lost connection. The time starts with the first loss, and again after each success."""

    def __init__(
        self,
        seconds: float,
        on_loss: Callable[[Exception], None] | None = None,
        *,
        engine_too: bool = False,
        check_power: Callable[[], None] | None = None,
        may_boot: Callable[[], bool] = lambda: True,
    ) -> None:
        """Retry for `seconds` after a loss, and call `on_loss` with the first error.

        With `engine_too`, an engine that does not answer is retried as well: it may be restarting. `check_power`
        raises SwitchedOff if the machine is off. `may_boot` returns whether a closed port is worth the whole wait.
        """
        self._seconds, self._on_loss, self._engine_too = seconds, on_loss, engine_too
        self._check_power, self._may_boot = check_power, may_boot
        self._began: float | None = None
        self._was_closed = True
        self._next_look = 0.0
        self._pause = FIRST_PAUSE

    def reset(self) -> None:
        """Start from zero, because the connection works again."""
        self._began, self._was_closed, self._pause = None, True, FIRST_PAUSE

    def wait(self, error: Exception) -> None:
        """Pause before the next attempt. Raise an error that no retry can fix, or that comes too late."""
        if not is_passing(error, engine_too=self._engine_too):
            raise error
        logger.debug("lost: %s", error)
        if self._began is None:
            self._began = time.monotonic()
            # A port that is closed at once is most often that of a machine that is off.
            self._next_look = self._began + (0.0 if isinstance(error, PortClosed) else POWER_SECONDS)
            if self._on_loss:
                self._on_loss(error)
        if self._check_power and time.monotonic() >= self._next_look:
            self._check_power()
            self._next_look = time.monotonic() + POWER_SECONDS
        self._was_closed = self._was_closed and isinstance(error, PortClosed)
        seconds = min(self._seconds, CLOSED_SECONDS) if self._was_closed and not self._may_boot() else self._seconds
        if time.monotonic() + self._pause >= self._began + seconds:
            raise error
        time.sleep(self._pause)
        self._pause = min(self._pause * GROWTH, LONGEST_PAUSE)


def is_passing(error: Exception, *, engine_too: bool) -> bool:
    """Whether another attempt may do."""
    if isinstance(error, JobError):
        return engine_too and error.code == NO_ENGINE
    return isinstance(error, PASSING)


def link_to(
    target: Target,
    password: Callable[[], str] | None = None,
    seconds: float = CONNECT_SECONDS,
    *,
    send_credentials: bool = False,
) -> Link:
    """The way to a target: by SSH, or none at all where jobs run on this computer.

    Its Docker Engine gets the user's credentials if the user created or attached the machine, or allows it.
    """
    if not target.address:
        from gpuinfra.runner.connection.local import LocalConnection

        return Link(target, LocalConnection)
    import_paramiko()
    from gpuinfra.runner.connection.known_hosts import is_own_machine
    from gpuinfra.runner.connection.ssh import SshConnection

    shares = send_credentials or is_own_machine(target)
    return Link(target, lambda: SshConnection.open(target, seconds, password), shares_credentials=shares)


def import_paramiko() -> None:
    """Import paramiko without `invoke`, which it has only for reading OpenSSH's settings, and does without.

    That is half of the time that its import takes, of a command that people wait for.
    """
    if "paramiko" in sys.modules or "invoke" in sys.modules:
        return
    sys.modules["invoke"] = None  # type: ignore[assignment] # Python's own word for: there is none
    try:
        import paramiko  # noqa: F401
    finally:
        del sys.modules["invoke"]
