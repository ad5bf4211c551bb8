"""The embedded Azure in a thread, the real SDK's clients for it, and a pool of both."""

import asyncio
import gc
import json
import shutil
import ssl
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any, TypeVar

from azure.core.credentials import AccessToken
from azure.identity import ClientSecretCredential
from azure.mgmt.compute import ComputeManagementClient
from azure.mgmt.network import NetworkManagementClient
from azure.mgmt.resource.resources import ResourceManagementClient

from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.server import Server
from gpuinfra.sandbox.web.authority import Authority

T = TypeVar("T")
WAIT_SECONDS = 60.0
"""How long to wait for what should take a moment: only a failure ever takes that long."""
IDLE_SECONDS = 2.0
"""After this long without a request a connection is not used again: the server closes it after five seconds."""
STANDSTILL = 1e-6
"""The speed of a clock that has not moved by a second after a week."""
ROOM = dict.fromkeys(("cores", "lowPriorityCores", "Standard NCASv3_T4 Family"), 100_000)


def wait_until(condition: Callable[[], object], what: str | Callable[[], str] = "it did not happen in time") -> None:
    """Return as soon as the condition holds; fail with `what` if it does not in time."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, what() if callable(what) else what
        time.sleep(0.01)


class OwnCredential:
    """Tokens of the tenant's client, one for each request: the sandbox's clock may have passed the last one's end."""

    def __init__(self, sandbox: "Sandbox") -> None:
        self._sandbox = sandbox

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        setting = self._sandbox.server.cloud.store.setting
        return AccessToken(self._sandbox.token(setting("client-object-id"), setting("client-id")), 0)


class Sandbox:
    """A server on loopback with everything that talks to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = Server(folder)
        self._effects = dict(self.server.cloud.effects)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="sandbox", daemon=True)
        self._thread.start()
        wait_until(lambda: self.server.is_serving, "the server did not start")
        self.endpoint = f"https://localhost:{self.server.port}"
        self.subscription = self.server.cloud.subscription
        self._authority = Authority(self.server.cloud.store, self.server.cloud.clock)
        self._tls = ssl.create_default_context(cafile=str(self.server.authority_file))
        self._connections: list[tuple[HTTPSConnection, float]] = []
        self._clients: dict[str, Any] = {}
        self._credentials: list[ClientSecretCredential] = []

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self.server.run())
        # Connections that were cut need a moment to say so, or Python warns that they were left open.
        selector, deadline = vars(self._loop)["_selector"], time.monotonic() + 2
        self._loop.run_until_complete(asyncio.sleep(0.01))
        while len(selector.get_map()) > 1 and time.monotonic() < deadline:  # one is the loop's own
            self._loop.run_until_complete(asyncio.sleep(0.01))
        self._loop.close()

    def stop(self) -> None:
        gc.collect()  # an error that was caught holds on to its answer, and that to its connection
        for client in (*self._clients.values(), *self._credentials):
            client.close()
        for connection, _ in self._connections:
            connection.close()
        self.server.stop()
        self._thread.join(timeout=WAIT_SECONDS)
        assert not self._thread.is_alive(), f"the server did not stop: {self._doing()}"

    def _doing(self) -> str:
        """What the tasks of the server wait for, and where its thread is."""
        tasks = [f"{task.get_coro()} at {task.get_stack(limit=3)}" for task in asyncio.all_tasks(self._loop)]
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "\n".join([*tasks, *traceback.format_stack(frame)])

    def reset(self) -> None:
        """Make it as good as new: empty, at the computer's own time, instant. Only its identity and clients stay."""
        self.control("POST", "reset", {})
        self.wait_for(self._restore)
        for credential in self._credentials:
            credential.close()
        self._credentials.clear()

    async def _restore(self) -> None:
        server, cloud = self.server, self.server.cloud
        # A guest that boots or runs a command would keep its deletion waiting.
        cloud.guest_orders.clear()
        await server.host.stop()
        cloud.guests_ready.clear()
        shutil.rmtree(self.folder / "guests", ignore_errors=True)
        cloud.effects.clear()
        cloud.effects.update(self._effects)
        with cloud.store.transaction():
            cloud.store.set_setting("profile", "instant")
            cloud.clock.restart()

    def freeze(self) -> None:
        """Let its clock stand still: only steps move it, however long a test takes."""
        self.control("POST", "clock", {"speed": STANDSTILL})

    def make_room(self) -> None:
        """Give it quota for any number of machines."""
        self.inside(lambda cloud: cloud.store.set_setting("quota-limits", {"eastus": ROOM}))

    def inside(self, action: Callable[[Cloud], T]) -> T:
        """Return what `action` returns for the cloud, called in the server's own thread and in one transaction."""

        async def run() -> T:
            cloud = self.server.cloud
            with cloud.store.transaction():
                return action(cloud)

        return self.wait_for(run)

    def wait_for(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return what `work` returns, awaited in the server's own thread."""

        async def run() -> T:
            return await work()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(WAIT_SECONDS)

    def credential(self, secret: str | None = None) -> ClientSecretCredential:
        setting = self.server.cloud.store.setting
        credential = ClientSecretCredential(
            setting("tenant"),
            setting("client-id"),
            secret or setting("client-secret"),
            authority=self.endpoint,
            disable_instance_discovery=True,
            connection_verify=str(self.server.authority_file),
        )
        self._credentials.append(credential)
        return credential

    @property
    def compute(self) -> ComputeManagementClient:
        return self._client("compute", ComputeManagementClient)  # type: ignore[no-any-return]

    @property
    def network(self) -> NetworkManagementClient:
        return self._client("network", NetworkManagementClient)  # type: ignore[no-any-return]

    @property
    def resource(self) -> ResourceManagementClient:
        return self._client("resource", ResourceManagementClient)  # type: ignore[no-any-return]

    def _client(self, name: str, kind: Any) -> Any:
        if name not in self._clients:
            self._clients[name] = kind(
                OwnCredential(self),
                self.subscription,
                base_url=self.endpoint,
                credential_scopes=["https://management.azure.com/.default"],
                connection_verify=str(self.server.authority_file),
            )
        return self._clients[name]

    def http(
        self, method: str, path: str, body: Any = None, *, token: bool = True, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], Any]:
        """A plain request: status, headers (names in lower case), body. `path` has its own query."""
        sent = {"Content-Type": "application/json", **(headers or {})}
        if token:
            sent["Authorization"] = f"Bearer {self.token()}"
        content = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        connection = self._connection()
        try:
            connection.request(method, path, content, sent)
            response = connection.getresponse()
            text = response.read()
        except BaseException:
            connection.close()
            raise
        self._connections.append((connection, time.monotonic()))
        received = {name.lower(): value for name, value in response.headers.items()}
        return response.status, received, json.loads(text) if text else None

    def _connection(self) -> HTTPSConnection:
        """A connection that no other thread uses."""
        while self._connections:
            connection, since = self._connections.pop()
            if time.monotonic() - since < IDLE_SECONDS:
                return connection
            connection.close()
        return HTTPSConnection("localhost", self.server.port, timeout=WAIT_SECONDS, context=self._tls)

    def token(self, object_id: str = "owner", application_id: str = "owner") -> str:
        """Return a valid token with all rights."""
        return str(self._authority.token(object_id, application_id, owner=True)["access_token"])

    def control(self, method: str, path: str, body: Any = None) -> Any:
        """The sandbox's own endpoints."""
        status, _, answer = self.http(
            method, f"/_sandbox/{path}", body, token=False, headers={"x-sandbox-secret": self.server.secret}
        )
        assert status == 200, answer
        return answer


class Servers:
    """Servers that are started once, and lent empty to one borrower at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._all: list[Sandbox] = []
        self._free: list[Sandbox] = []

    @contextmanager
    def lend(self) -> Iterator[Sandbox]:
        """Yield an empty server for exclusive use."""
        if self._free:
            server = self._free.pop()
            server.reset()
        else:
            server = Sandbox(self._folder / str(len(self._all)))
            self._all.append(server)
        yield server
        self._free.append(server)

    def stop(self) -> None:
        for server in self._all:
            server.stop()
