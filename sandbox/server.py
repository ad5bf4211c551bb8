"""The server: one event loop that answers requests, processes due events, and runs the guests."""

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from gpuinfra.sandbox.guest_host import GuestHost
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.services.registry import SERVICES
from gpuinfra.sandbox.web.app import abort, make_app
from gpuinfra.sandbox.web.authority import make_certificates, make_identities
from gpuinfra.sandbox.web.control import Control
from gpuinfra.sandbox.web.instance_metadata import metadata_app

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
KEEP = 1.0
"""How often the simulated time is saved, in real seconds; a killed server may repeat this much."""


class _Protocol(H11Protocol):
    """Passes its connection to the application, so that a fault can cut it."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, "transport": transport}


class _Quiet(uvicorn.Server):
    """A second web server in the process, which leaves signals to the first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Server:
    """A sandbox in a folder, served on loopback until `stop`."""

    def __init__(self, folder: Path, port: int = 0) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.folder = folder
        self.authority_file, certificate, key = make_certificates(folder)
        self.secret = _secret(folder / "secret")
        self.cloud = Cloud(folder, SERVICES)
        make_identities(self.cloud.store)
        self.socket = _listen(port)
        self.port = self.socket.getsockname()[1]
        self.cloud.base_url = f"https://localhost:{self.port}"
        self.metadata_socket = _listen(0)
        metadata_url = f"http://{HOST}:{self.metadata_socket.getsockname()[1]}"
        ssh_port, self._ssh_socket = _reserve_ssh_port(self.cloud)
        self.host = GuestHost(self.cloud, ssh_port, metadata_url)
        self._changed = asyncio.Event()
        """Whether the next event may be due earlier than it was."""
        self._uvicorn = _web_server(
            make_app(self.cloud, Control(self.cloud, self.secret, self.host.reset), self.host.carry_out),
            http=_Protocol,
            ssl_certfile=str(certificate),
            ssl_keyfile=str(key),
            date_header=False,  # RequestHandler sets the simulated time
        )
        self._metadata = _Quiet(_web_server(metadata_app(self.cloud), date_header=False).config)

    async def run(self) -> None:
        """Serve until `stop` is called."""
        loop = asyncio.get_running_loop()

        def wake() -> None:
            loop.call_soon_threadsafe(self._changed.set)

        self.cloud.on_event = self.cloud.clock.on_change = wake
        self.host.boot_all()
        metadata = asyncio.create_task(self._metadata.serve([self.metadata_socket]))
        events = asyncio.create_task(self._process_events())
        try:
            await self._uvicorn.serve([self.socket])
        except asyncio.CancelledError:
            pass  # stopped
        finally:
            events.cancel()
            await asyncio.gather(events, return_exceptions=True)
        for connection in list(self._uvicorn.server_state.connections):
            abort(connection.transport)  # its client keeps it open
        self._metadata.should_exit = True
        await metadata
        await self.host.stop()
        if self._ssh_socket:
            self._ssh_socket.close()
        self.cloud.clock.keep()
        self.cloud.store.close()

    @property
    def is_serving(self) -> bool:
        return self._uvicorn.started

    def stop(self) -> None:
        self._uvicorn.should_exit = True

    async def _process_events(self) -> None:
        """Process each event when it is due, and save the time."""
        kept = 0.0
        while True:
            self._changed.clear()
            seconds = KEEP
            try:
                self.cloud.settle()
                self.host.carry_out()
                if time.monotonic() - kept >= KEEP:
                    self.cloud.clock.keep()
                    kept = time.monotonic()
                seconds = min(KEEP, self.cloud.seconds_to_next_event())
            except Exception:
                logger.exception("while processing events")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), max(0.0, seconds))

    def describe(self) -> dict[str, Any]:
        """Return what clients need to know, for `server.json`."""
        setting = self.cloud.store.setting
        return {
            "pid": os.getpid(),
            "port": self.port,
            "endpoint": self.cloud.base_url,
            "authority": self.cloud.base_url,
            "ca": str(self.authority_file),
            "tenant": setting("tenant"),
            "subscription": setting("subscription"),
            "clientId": setting("client-id"),
            "sshPort": self.host.ssh_port,
            "dockerHost": self.host.docker_host,
        }


def _web_server(app: Starlette, **settings: Any) -> uvicorn.Server:
    quiet: dict[str, Any] = {"log_config": None, "access_log": False, "lifespan": "off"}
    return uvicorn.Server(uvicorn.Config(app, timeout_graceful_shutdown=2, **quiet, **settings))


def _reserve_ssh_port(cloud: Cloud) -> tuple[int, socket.socket | None]:
    """Return the port that guests answer SSH on, each on an address of its own, and a socket that holds it.

    The guests of another sandbox have the same addresses: while the socket is open, no other sandbox gets the port. It
    is the same for the life of the sandbox. If another program has it after a restart, only the guests listen there.
    """
    kept = cloud.store.setting("ssh-port")
    try:
        held = _listen(int(kept or 0))
    except OSError:
        if kept is None:
            raise
        return int(kept), None
    port = int(held.getsockname()[1])
    cloud.store.set_setting("ssh-port", port)
    return port, held


def _listen(port: int) -> socket.socket:
    # With the protocol set, asyncio uses TCP_NODELAY; without it, every answer waits 40 ms for an acknowledgement.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((HOST, port))
    return listener


def _secret(file: Path) -> str:
    if not file.exists():
        # Atomic: an empty secret would admit every caller.
        temporary = file.with_suffix(".new")
        temporary.touch(mode=0o600)
        temporary.write_text(secrets.token_urlsafe(32))
        temporary.replace(file)
    return file.read_text()
