"""The connection to a target, shared by all users and opened again when it is lost, and the retry policy."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from gpuinfra.models.target import Target
from gpuinfra.runner.connection.port import Connection
from gpuinfra.runner.connection.remote_client import RemoteClient
from gpuinfra.runner.errors import (
    Broken,
    ConnectError,
    Interrupted,
    JobError,
    PortClosed,
    SwitchedOff,
    TimedOut,
    Unreachable,
)
from gpuinfra.runner.progress import in_thread

if TYPE_CHECKING:
    from gpuinfra.runner.docker.client import Engine


# A child of the program's logger, so that `--verbose` shows it.
logger = logging.getLogger(__name__)

CONNECT_SECONDS = 30.0
# The network may be back at any time, and then the client connects within seconds.
FIRST_PAUSE, MAX_PAUSE, GROWTH = 0.2, 2.0, 1.6
PROBE_SECONDS = 3.0
# If a machine does not answer, Azure is asked this often whether it is on.
POWER_SECONDS = 20.0
# How long to retry a closed port if the machine never answered and is not a machine in Azure.
CLOSED_SECONDS = 5.0
# Errors that a new connection may fix; it cannot fix a wrong host key or a refused login.
TRANSIENT = (Broken, Unreachable, TimedOut)
NO_ENGINE = "no-engine"
LOCK_SECONDS = 0.1

T = TypeVar("T")


class Link:
    """The connection to a target with its remote client and Docker Engine, opened on first use. Thread-safe."""

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
        """Returns why the machine is off, or None if it is on; None if the target is not a machine in Azure."""
        self.answers: Callable[[], bool] | None = None
        """Returns whether the machine answers on a new connection; None if the target is this computer."""
        self._off: str | None = None
        self._is_interrupted = False

    @property
    def connection(self) -> Connection:
        """The open connection, opened if there is none."""
        if self._off:
            raise SwitchedOff(self._off)
        with self._lock:
            if self._connection is not None and not self._connection.is_open:
                self.drop()
            if self._connection is None:
                self._check_interrupt()
                try:
                    self._connection = self._opener()
                except ConnectError as error:
                    error.was_connected = self._was_connected
                    raise
                self._was_connected = True
                if self._is_interrupted:  # meanwhile
                    self.drop()
                    self._check_interrupt()
            return self._connection

    @property
    def remote(self) -> RemoteClient:
        """The client for code on the target; opens a connection if there is none."""
        with self._lock:
            connection = self.connection
            if self._remote is None:
                self._remote = RemoteClient(connection)
            return self._remote

    @property
    def remote_if_open(self) -> RemoteClient | None:
        """The client on the open connection; None if there is none, or if another thread is opening one."""
        if not self._lock.acquire(blocking=False):
            return None  # another thread is opening one
        try:
            is_open = self._connection is not None and self._connection.is_open
            return self.remote if is_open else None
        finally:
            self._lock.release()

    @property
    def is_connected(self) -> bool:
        """Whether there is an open connection."""
        connection = self._connection
        return connection is not None and connection.is_open

    @property
    def is_off(self) -> bool:
        """Whether the machine was found off. No connection is opened then."""
        return self._off is not None

    @property
    def engine(self) -> Engine:
        """The target's Docker Engine; opens a connection if there is none."""
        from gpuinfra.runner.docker.client import Engine

        with self._lock:
            connection = self.connection
            if self._engine is None:
                # An engine that answered before may be restarting.
                self._engine = Engine(
                    connection,
                    expected=self._had_engine,
                    shares_credentials=self._shares_credentials,
                    machine_login=self._machine_login if self.target.address else None,
                )
            return self._engine

    def _machine_login(self, registry: str) -> dict[str, Any]:
        """Return the machine's password for a registry, or why it has none."""
        return self.remote.ask("registry-login", registry=registry)

    def warm_up(self, *, engine: bool) -> None:
        """Connect in the background, so that the first calls need not wait. Those calls report any failure."""
        in_thread(self._warm_up_remote, "warm-remote")
        if engine:
            in_thread(self._warm_up_engine, "warm-engine")

    def _warm_up_remote(self) -> None:
        self.remote.prepare()  # the property connects, so this must run in the thread

    def _warm_up_engine(self) -> None:
        self.engine.prepare()

    def drop(self) -> None:
        """Close the connection; the next use opens a new one. Does nothing if it is closed."""
        while not self._lock.acquire(timeout=LOCK_SECONDS):
            if self._connection is None:
                return  # another thread is connecting, which can take long, and there is nothing to close
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

    def replace(self, connection: Connection) -> None:
        """Drop this connection, unless another one has taken its place. Its users notice that it is lost."""
        with self._lock:
            if self._connection is connection:
                self.drop()

    @property
    def is_interrupted(self) -> bool:
        """Whether the user interrupted its use."""
        return self._is_interrupted

    def interrupt(self) -> None:
        """Close the connection, and let every use of the link raise Interrupted until `resume`.

        This ends what another thread does, which no signal reaches.
        """
        self._is_interrupted = True
        self.drop()

    def resume(self) -> None:
        """Allow its use again, for what is left to do after an interrupt."""
        self._is_interrupted = False

    def _check_interrupt(self) -> None:
        if self._is_interrupted:
            raise Interrupted("interrupted")

    def handle_loss(self, error: Exception) -> None:
        """Drop the connection if it is broken or slow. Other threads may have opened a new one already; keep that."""
        self._check_interrupt()
        with self._lock:
            is_broken = self._connection is not None and not self._connection.is_open
        if is_broken or isinstance(error, TimedOut):
            self.drop()

    def check_power(self) -> None:
        """Raise SwitchedOff if the machine is off."""
        # Several threads ask. An answer that one of them got counts for all.
        self._off = (self.power() if self.power else None) or self._off
        if self._off:
            self.drop()
            raise SwitchedOff(self._off)

    def retry_policy(
        self, seconds: float, on_loss: Callable[[Exception], None] | None = None, *, retry_engine: bool = False
    ) -> RetryPolicy:
        """Return a policy that retries a lost connection for `seconds`, or until the machine is found to be off."""
        return RetryPolicy(
            seconds, on_loss, retry_engine=retry_engine, check_power=self.check_power, may_boot=self._may_boot
        )

    def _may_boot(self) -> bool:
        """Return whether a closed port may open soon: it answered before, or Azure knows whether it is on."""
        return self._was_connected or self.power is not None

    def retry(self, attempt: Callable[[], T], policy: RetryPolicy) -> T:
        """Return the result of `attempt`, which is repeated on a new connection for as long as the policy allows."""
        while True:
            try:
                return attempt()
            except (ConnectError, JobError) as error:
                self.handle_loss(error)
                policy.wait(error)


class RetryPolicy:
    """How long to retry a lost connection. The time starts with the first loss, and again after each `reset`."""

    def __init__(
        self,
        seconds: float,
        on_loss: Callable[[Exception], None] | None = None,
        *,
        retry_engine: bool = False,
        check_power: Callable[[], None] | None = None,
        may_boot: Callable[[], bool] = lambda: True,
    ) -> None:
        """Retry for `seconds` after a loss, and call `on_loss` with the first error.

        With `retry_engine`, an engine that does not answer is retried as well: it may be restarting. `check_power`
        raises SwitchedOff if the machine is off. If `may_boot` returns False, a closed port is retried only briefly.
        """
        self._seconds, self._on_loss, self._retry_engine = seconds, on_loss, retry_engine
        self._check_power, self._may_boot = check_power, may_boot
        self._began: float | None = None
        self._only_closed = True
        """Whether every failure so far was a closed port."""
        self._next_power_check = 0.0
        self._pause = FIRST_PAUSE

    def reset(self) -> None:
        """Start from the beginning, because the connection works again."""
        self._began, self._only_closed, self._pause = None, True, FIRST_PAUSE

    def wait(self, error: Exception) -> None:
        """Pause before the next attempt, or raise the error if a retry cannot fix it or the time is over."""
        if not is_transient(error, retry_engine=self._retry_engine):
            raise error
        logger.debug("lost: %s", error)
        if self._began is None:
            self._began = time.monotonic()
            # A port that is closed at once usually belongs to a machine that is off.
            self._next_power_check = self._began + (0.0 if isinstance(error, PortClosed) else POWER_SECONDS)
            if self._on_loss:
                self._on_loss(error)
        if self._check_power and time.monotonic() >= self._next_power_check:
            self._check_power()
            self._next_power_check = time.monotonic() + POWER_SECONDS
        self._only_closed = self._only_closed and isinstance(error, PortClosed)
        seconds = self._seconds
        if self._only_closed and not self._may_boot():
            seconds = min(seconds, CLOSED_SECONDS)
        if time.monotonic() + self._pause >= self._began + seconds:
            raise error
        time.sleep(self._pause)
        self._pause = min(self._pause * GROWTH, MAX_PAUSE)


def is_transient(error: Exception, *, retry_engine: bool) -> bool:
    """Return whether another attempt may succeed."""
    if isinstance(error, JobError):
        return retry_engine and error.code == NO_ENGINE
    return isinstance(error, TRANSIENT)


def link_to(
    target: Target,
    password: Callable[[], str] | None = None,
    seconds: float = CONNECT_SECONDS,
    *,
    send_credentials: bool = False,
) -> Link:
    """Return the link to a target: by SSH, or local if the target is this computer.

    The target's Docker Engine receives the user's registry credentials if the user created or attached the machine, or
    sets `send_credentials`.
    """
    if not target.address:
        from gpuinfra.runner.connection.local import LocalConnection

        return Link(target, LocalConnection)
    import_paramiko()
    from gpuinfra.runner.connection.handshake import answers
    from gpuinfra.runner.connection.known_hosts import is_own_machine
    from gpuinfra.runner.connection.ssh import SshConnection

    shares = send_credentials or is_own_machine(target)
    link = Link(target, lambda: SshConnection.open(target, seconds, password), shares_credentials=shares)
    link.answers = lambda: answers(target.address, target.port, PROBE_SECONDS)
    return link


def import_paramiko() -> None:
    """Import paramiko without `invoke`, which takes half of the import time and is needed only for OpenSSH settings."""
    if "paramiko" in sys.modules or "invoke" in sys.modules:
        return
    sys.modules["invoke"] = None  # type: ignore[assignment] # Python then raises ImportError for it
    try:
        import paramiko  # noqa: F401
    finally:
        del sys.modules["invoke"]
