"""A Docker Engine, on this computer or over our connection to a machine. The SDK is imported with the first use."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

from gpuinfra.diagnostics import Code
from gpuinfra.runner.connection.local import LocalConnection
from gpuinfra.runner.connection.port import Connection
from gpuinfra.runner.docker.check import Said
from gpuinfra.runner.docker.stream import Streams
from gpuinfra.runner.errors import ConnectError, JobError, preserve_interrupt

# Of Docker 20.10. It is in use only until the engine has told its own.
OLDEST_VERSION = "1.41"
# How many ways to the engine are opened ahead of time: a job's log takes one, everything else the other.
AHEAD = 2
SOCKET = "unix://"


def open_engine(
    connection: Connection, timeout: float = 60.0, *, expected: bool = False, shares_credentials: bool = False
) -> Engine:
    """An engine, which is not asked for anything yet: `prepare` does that, or the first use.

    `timeout` is for each answer. `expected` says that it has answered before: if it does not now, it is
    Unreachable, and may be back soon, and not a JobError. With `shares_credentials`, an engine on another machine gets
    the passwords for registries and proxies in this computer's Docker settings; the engine here gets them always.
    """
    return Engine(connection, timeout, expected=expected, shares_credentials=shares_credentials)


class Engine:
    """A Docker Engine. Calls may be made from several threads.

    Whatever is done with `api` has to be done within `translated`.
    """

    def __init__(
        self, connection: Connection, timeout: float, *, expected: bool, shares_credentials: bool = False
    ) -> None:
        self.connection, self.timeout = connection, timeout
        self.is_expected = expected
        """Whether it has answered before: then one that does not answer is on its way back."""
        self.shares_credentials = shares_credentials or isinstance(connection, LocalConnection)
        """Whether it may have the user's passwords for registries and proxies."""
        self._lock = threading.Lock()
        self._client: Any = None
        self._is_versioned = False
        self._streams = None if isinstance(connection, LocalConnection) else Streams(connection, self._missing, timeout)

    @property
    def where(self) -> str:
        """The machine, as it is named in messages."""
        return self.connection.where

    @property
    def api(self) -> Any:
        """The SDK's own client, a `docker.APIClient`, in the version that the engine speaks."""
        with self._lock:
            if not self._is_versioned:
                with self.translated("asking for its version"):
                    self._learn_version(self._made())
                self._is_versioned = True
            return self._client

    def prepare(self) -> None:
        """Do ahead of time what the first calls would wait for. Raises what `api` would."""
        opening = [threading.Thread(target=self._streams.prepare, daemon=True) for _ in range(AHEAD) if self._streams]
        for thread in opening:
            thread.start()
        with self._lock, self.translated("reading the settings of Docker on this computer"):
            self._made()  # imports the SDK, while the ways are opened
        for thread in opening:
            thread.join(self.timeout)
        _ = self.api

    @contextlib.contextmanager
    def translated(self, doing: str) -> Iterator[None]:
        """What the SDK raises in here leaves as a JobError or a ConnectError; `doing` says what it was about."""
        try:
            with preserve_interrupt():
                yield
        except (ConnectError, JobError):
            raise
        except Exception as error:
            from gpuinfra.runner.docker.errors import told

            meaning = told(error, self.where, doing, expected=self.is_expected)
            if meaning is None:
                raise
            raise meaning from error

    def withheld(self, what: str) -> str:
        """Return the line that says which credentials the engine does not get, and how it would."""
        return (
            f"{what} not sent to {self.where}: you neither created this machine with `gpuinfra up` nor attached it "
            "with `gpuinfra attach` on this computer; do so, or add `--send-credentials`"
        )

    @contextlib.contextmanager
    def understood(self) -> Iterator[None]:
        """An answer that lacks what every engine says, or says it in another form, leaves as a JobError."""
        try:
            yield
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            note = f"the Docker engine of {self.where} gave an answer that cannot be understood: {error!r:.80}"
            help_line = "look for yourself there: `docker version`, `docker info`"
            raise JobError("Docker Engine failed on the target", note, help_line, Code.ENGINE_FAILED) from error

    def close(self) -> None:
        """Hang up; the connection stays. A second call does nothing."""
        # Without the lock: a thread that asks an engine for its version has it until the engine answers.
        if self._client is not None:
            self._client.close()
        if self._streams is not None:
            self._streams.close()

    def _made(self) -> Any:
        if self._client is None:
            self._client = _remote(self._streams, self.timeout) if self._streams else _local(self.timeout)
        return self._client

    def _missing(self, said: Said) -> Exception:
        from gpuinfra.runner.docker.errors import missing

        return missing(said, self.where, expected=self.is_expected)

    def _learn_version(self, client: Any) -> None:
        # The lightest of all questions: `/version` has the engine start programs to ask for theirs.
        answer = client.get(f"{client.base_url}/_ping", timeout=self.timeout)
        answer.raise_for_status()
        # Not by the constructor, which would ask before the transport is ours.
        client._version = answer.headers.get("Api-Version", OLDEST_VERSION)
        self.is_expected = True


def _remote(streams: Streams, timeout: float) -> Any:
    from gpuinfra.runner.docker.transport import Link

    return _client("unix:///nowhere", lambda: Link(streams), timeout)


def _client(address: str, make: Callable[[], Any], timeout: float) -> Any:
    """A client whose connections are made by us. It reads this computer's Docker settings, for credentials."""
    from gpuinfra.runner.docker.transport import Adapter, Pool

    client = _plain_client(timeout, base_url=address)
    client.mount("http+docker://", Adapter(Pool(make)))
    # Neither this computer's proxies nor its .netrc are for the engine.
    client.trust_env = False
    return client


def _plain_client(timeout: float, **place: Any) -> Any:
    """The SDK's own, which looks at nothing but the settings yet."""
    import docker  # type: ignore[import-untyped]

    try:
        return docker.APIClient(**place, version=OLDEST_VERSION, timeout=timeout)
    except (docker.errors.InvalidConfigFile, AttributeError, KeyError, TypeError, ValueError) as error:
        # The SDK takes what is in the file for what it should be.
        raise JobError(
            "the settings of Docker on this computer cannot be read",
            str(error),
            "repair or remove `~/.docker/config.json`",
            Code.NO_ENGINE,
        ) from error


def _local(timeout: float) -> Any:
    from docker.utils import kwargs_from_env  # type: ignore[import-untyped]

    from gpuinfra.runner.docker.transport import SocketLink

    place = kwargs_from_env() if os.environ.get("DOCKER_HOST") else _context()
    address = str(place.get("base_url", ""))
    if address.startswith("ssh://"):
        raise JobError(
            "the engine is on another machine",
            f"Docker is set to use {address}",
            "attach that machine as a target of its own: `gpuinfra attach`",
            Code.NO_ENGINE,
        )
    if address.startswith(SOCKET):
        return _client(address, lambda: SocketLink(address.removeprefix(SOCKET)), timeout)
    return _plain_client(timeout, **place)


def _context() -> dict[str, Any]:
    """The engine of the current context of the program `docker`."""
    from docker.context import ContextAPI  # type: ignore[import-untyped]
    from docker.errors import ContextNotFound  # type: ignore[import-untyped]

    name = os.environ.get("DOCKER_CONTEXT")
    context = ContextAPI.get_context(name)
    if context is None:
        raise ContextNotFound(name or "of ~/.docker/config.json")
    tls = {"tls": context.TLSConfig} if context.TLSConfig else {}
    # In memory, the SDK writes the default socket's address with a scheme of its own.
    return {"base_url": str(context.Host).removeprefix("http+"), **tls}
