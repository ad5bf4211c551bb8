"""The embedded Azure in a thread, and the real SDK's clients for it."""

import asyncio
import gc
import json
import ssl
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.identity import ClientSecretCredential
from azure.mgmt.compute import ComputeManagementClient
from azure.mgmt.network import NetworkManagementClient
from azure.mgmt.resource.resources import ResourceManagementClient

from sandbox.server import Server


class Sandbox:
    """A server on loopback with everything that talks to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = Server(folder)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="sandbox", daemon=True)
        self._thread.start()
        deadline = time.monotonic() + 20
        while not self.server.is_serving:
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.01)
        self.endpoint = f"https://localhost:{self.server.port}"
        self.subscription = self.server.cloud.subscription
        self._tls = ssl.create_default_context(cafile=str(self.server.authority_file))
        self._clients: list[Any] = []

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self.server.run())
        # Connections that were cut need a moment to say so, or Python warns that they were left open.
        selector, deadline = vars(self._loop)["_selector"], time.monotonic() + 2
        self._loop.run_until_complete(asyncio.sleep(0.05))
        while len(selector.get_map()) > 1 and time.monotonic() < deadline:  # one is the loop's own
            self._loop.run_until_complete(asyncio.sleep(0.05))
        self._loop.close()

    def stop(self) -> None:
        gc.collect()  # an error that was caught holds on to its answer, and that to its connection
        for client in self._clients:
            client.close()
        self.server.stop()
        self._thread.join(timeout=20)
        assert not self._thread.is_alive(), "the server did not stop"

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
        self._clients.append(credential)
        return credential

    def _client(self, kind: Any) -> Any:
        client = kind(
            self.credential(),
            self.subscription,
            base_url=self.endpoint,
            credential_scopes=["https://management.azure.com/.default"],
            connection_verify=str(self.server.authority_file),
        )
        self._clients.append(client)
        return client

    @property
    def compute(self) -> ComputeManagementClient:
        return self._cached("compute", ComputeManagementClient)  # type: ignore[no-any-return]

    @property
    def network(self) -> NetworkManagementClient:
        return self._cached("network", NetworkManagementClient)  # type: ignore[no-any-return]

    @property
    def resource(self) -> ResourceManagementClient:
        return self._cached("resource", ResourceManagementClient)  # type: ignore[no-any-return]

    def _cached(self, name: str, kind: Any) -> Any:
        found = self.__dict__.get(f"_{name}")
        if found is None:
            found = self.__dict__[f"_{name}"] = self._client(kind)
        return found

    def http(
        self, method: str, path: str, body: Any = None, *, token: bool = True, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], Any]:
        """A plain request: status, headers (names in lower case), body. `path` has its own query."""
        sent = {"Content-Type": "application/json", **(headers or {})}
        if token:
            sent["Authorization"] = f"Bearer {self._token()}"
        content = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.endpoint}{path}", content, sent, method=method)
        try:
            with urllib.request.urlopen(request, context=self._tls, timeout=30) as response:
                status, received, text = response.status, response.headers, response.read()
        except urllib.error.HTTPError as error:
            with error:
                status, received, text = error.code, error.headers, error.read()
        return status, {name.lower(): value for name, value in received.items()}, json.loads(text) if text else None

    def _token(self) -> str:
        from sandbox.web.authority import Authority

        cloud = self.server.cloud
        return str(Authority(cloud.store, cloud.clock).token("owner", "owner", owner=True)["access_token"])

    def control(self, method: str, path: str, body: Any = None) -> Any:
        """The sandbox's own endpoints."""
        status, _, answer = self.http(
            method, f"/_sandbox/{path}", body, token=False, headers={"x-sandbox-secret": self.server.secret}
        )
        assert status == 200, answer
        return answer


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    """A sandbox of the test's own."""
    running = Sandbox(tmp_path / "sandbox")
    yield running
    running.stop()
