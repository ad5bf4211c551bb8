"""A Docker Engine, on this computer or over our connection to a machine. The first use imports the SDK."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gpuinfra.diagnostics import Code
from gpuinfra.runner.connection.local import LocalConnection
from gpuinfra.runner.connection.port import Connection
from gpuinfra.runner.docker.check import CommandOutput
from gpuinfra.runner.docker.stream import Streams
from gpuinfra.runner.errors import ConnectError, JobError, preserve_interrupt

# The API of Docker 20.10, used until the engine has sent its version.
MIN_VERSION = "1.41"
# Streams that are opened ahead of time: one for a job's log, one for other requests.
PREPARED_STREAMS = 2
SOCKET = "unix://"


class Engine:
    """A Docker Engine. Its methods can be called from several threads. The first request connects to it.

    Use `api` within `translated`. `timeout` applies to each response. `expected` means that the engine has answered
    before: if it does not answer, the error is Unreachable, because it may restart, instead of a JobError. With
    `shares_credentials`, an engine on another machine gets the passwords for registries and proxies in this computer's
    Docker settings; the local engine always gets them. `machine_login` asks the machine for a password for an Azure
    Container Registry: see `registry_login`.
    """

    def __init__(
        self,
        connection: Connection,
        timeout: float = 60.0,
        *,
        expected: bool = False,
        shares_credentials: bool = False,
        machine_login: Callable[[str], Mapping[str, Any]] | None = None,
    ) -> None:
        self.connection, self.timeout, self.machine_login = connection, timeout, machine_login
        self.is_expected = expected
        """Whether it has answered before, and so may only be restarting."""
        self.shares_credentials = shares_credentials or isinstance(connection, LocalConnection)
        """Whether it gets the user's passwords for registries and proxies."""
        self._lock = threading.Lock()
        self._client: Any = None
        self._is_versioned = False
        self._streams = (
            None if isinstance(connection, LocalConnection) else Streams(connection, self._no_engine, timeout)
        )

    @property
    def where(self) -> str:
        """Return the machine's name for messages."""
        return self.connection.where

    @property
    def api(self) -> Any:
        """Return the SDK's client, a `docker.APIClient`, for the engine's API version."""
        with self._lock:
            if not self._is_versioned:
                with self.translated("asking for its version"):
                    self._negotiate_version(self._make_client())
                self._is_versioned = True
            return self._client

    def prepare(self) -> None:
        """Connect ahead of time. Raises the same errors as `api`."""
        count = PREPARED_STREAMS if self._streams else 0
        threads = [threading.Thread(target=self._streams.prepare, daemon=True) for _ in range(count) if self._streams]
        for thread in threads:
            thread.start()
        with self._lock, self.translated("reading the settings of Docker on this computer"):
            self._make_client()  # imports the SDK, while the streams are opened
        for thread in threads:
            thread.join(self.timeout)
        _ = self.api

    @contextlib.contextmanager
    def translated(self, doing: str) -> Iterator[None]:
        """Translate the SDK's exceptions to JobError and ConnectError; `doing` describes the request."""
        try:
            with preserve_interrupt():
                yield
        except (ConnectError, JobError):
            raise
        except Exception as error:
            from gpuinfra.runner.docker.errors import translate_error

            translated = translate_error(error, self.where, doing, expected=self.is_expected)
            if translated is None:
                raise
            raise translated from error

    def withheld(self, what: str) -> str:
        """Return the note that these credentials are not sent to the engine, and how to change that."""
        return (
            f"{what} not sent to {self.where}: you neither created this machine with `gpuinfra up` nor attached it "
            "with `gpuinfra attach` on this computer; do so, or add `--send-credentials`"
        )

    @contextlib.contextmanager
    def understood(self) -> Iterator[None]:
        """Raise a JobError for a response that lacks a required value or is malformed."""
        try:
            yield
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError) as error:
            note = f"unexpected response from the Docker Engine of {self.where}: {error!r:.80}"
            help_line = "run there: `docker version`, `docker info`"
            raise JobError("Docker Engine failed on the target", note, help_line, Code.ENGINE_FAILED) from error

    def close(self) -> None:
        """Close the streams, but not the connection. A second call does nothing."""
        # Without the lock, which a thread holds while it waits for the engine's version.
        if self._client is not None:
            self._client.close()
        if self._streams is not None:
            self._streams.close()

    def _make_client(self) -> Any:
        if self._client is None:
            self._client = _remote_client(self._streams, self.timeout) if self._streams else _local_client(self.timeout)
        return self._client

    def _no_engine(self, output: CommandOutput) -> Exception:
        from gpuinfra.runner.docker.errors import no_engine

        return no_engine(output, self.where, expected=self.is_expected)

    def _negotiate_version(self, client: Any) -> None:
        # The cheapest request: for `/version`, the engine starts other programs to get their versions.
        answer = client.get(f"{client.base_url}/_ping", timeout=self.timeout)
        answer.raise_for_status()
        # Not in the constructor, which would send a request before the transport is replaced.
        client._version = answer.headers.get("Api-Version", MIN_VERSION)
        self.is_expected = True


def _remote_client(streams: Streams, timeout: float) -> Any:
    from gpuinfra.runner.docker.transport import StreamConnection

    return _client("unix:///nowhere", lambda: StreamConnection(streams), timeout)


def _client(address: str, make: Callable[[], Any], timeout: float) -> Any:
    """Return a client with our connections. It reads this computer's Docker settings for credentials."""
    from gpuinfra.runner.docker.transport import Adapter, Pool

    client = _plain_client(timeout, base_url=address)
    client.mount("http+docker://", Adapter(Pool(make)))
    # Do not use this computer's proxies and .netrc for the engine.
    client.trust_env = False
    return client


def _plain_client(timeout: float, **place: Any) -> Any:
    """Return the SDK's client, which only reads the Docker settings so far."""
    import docker  # type: ignore[import-untyped]

    try:
        return docker.APIClient(**place, version=MIN_VERSION, timeout=timeout)
    except (docker.errors.InvalidConfigFile, AttributeError, KeyError, TypeError, ValueError) as error:
        # The SDK does not validate the file.
        raise JobError(
            "the settings of Docker on this computer cannot be read",
            str(error),
            "repair or remove `~/.docker/config.json`",
            Code.NO_ENGINE,
        ) from error


def _local_client(timeout: float) -> Any:
    from docker.utils import kwargs_from_env  # type: ignore[import-untyped]

    from gpuinfra.runner.docker.transport import SocketConnection

    place = kwargs_from_env() if os.environ.get("DOCKER_HOST") else _current_context()
    address = str(place.get("base_url", ""))
    if address.startswith("ssh://"):
        raise JobError(
            "the engine is on another machine",
            f"Docker is configured to use {address}",
            "attach that machine as a target: `gpuinfra attach`",
            Code.NO_ENGINE,
        )
    if address.startswith(SOCKET):
        return _client(address, lambda: SocketConnection(address.removeprefix(SOCKET)), timeout)
    return _plain_client(timeout, **place)


def _current_context() -> dict[str, Any]:
    """Return the address of the engine in the current context of the Docker CLI."""
    from docker.context import ContextAPI  # type: ignore[import-untyped]
    from docker.errors import ContextNotFound  # type: ignore[import-untyped]

    name = os.environ.get("DOCKER_CONTEXT")
    context = ContextAPI.get_context(name)
    if context is None:
        raise ContextNotFound(name or "of ~/.docker/config.json")
    tls = {"tls": context.TLSConfig} if context.TLSConfig else {}
    # The SDK adds a scheme to the address of the default socket.
    return {"base_url": str(context.Host).removeprefix("http+"), **tls}
