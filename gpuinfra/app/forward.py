"""Forward a port of this computer to a machine."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from gpuinfra.app.access import power_of, settings_for_target
from gpuinfra.app.frontend import Frontend
from gpuinfra.app.machine_names import target_named
from gpuinfra.app.settings import Settings
from gpuinfra.app.workspace import linked, machine_of
from gpuinfra.diagnostics import Code, Exit, problem
from gpuinfra.models.target import Target
from gpuinfra.runner.connection.ssh import SshConnection
from gpuinfra.runner.errors import ConnectError, Unreachable, job_problems
from gpuinfra.runner.forwarding import PortForward, Tunnel
from gpuinfra.runner.link import Link

TUNNEL_SECONDS = 20.0
LOOK_SECONDS = 0.5
# After a sleep or a change of the network, the machine is called again for this long.
RECONNECT_SECONDS = 3600.0
HIGHEST = 65535
_PORTS = re.compile(r"(?:([0-9]{1,5}):)?([0-9]{1,5})")


def forward(
    settings: Settings, name: str, ports: str, frontend: Frontend, started: Callable[[str, int, str], None]
) -> None:
    """Forward a port until Ctrl-C or until the machine is off.

    `started` is called once, when the port is open, with the machine, its port and the address on this computer.

    This does not renew the lease: a browser that was left open would keep a machine on without any work.
    """
    local, port = parse_ports(ports)
    target = target_named(settings, name)
    with linked(target, frontend) as link, job_problems(target.name):
        link.power = power_of(
            settings_for_target(settings, target), machine_of(target, None), resource_id=target.resource_id
        )
        _ = link.connection  # report now if it cannot be reached
        with open_forward(link, port, local, frontend) as found:
            started(target.machine, port, found.address)
            _keep_connected(link, target, frontend)


def _keep_connected(link: Link, target: Target, frontend: Frontend) -> None:
    """Open the connection again whenever it is lost. Raise an error when that fails for too long."""

    def lost(error: Exception) -> None:
        frontend.note(f"the connection to {target.machine} is lost, and is opened again: {error}")

    while True:
        if not link.is_connected:
            link.retry(lambda: link.connection, link.retry_policy(RECONNECT_SECONDS, lost))
        time.sleep(LOOK_SECONDS)


def open_forward(link: Link, port: int, local: int, frontend: Frontend, *, is_only: bool = True) -> PortForward:
    """Return a forward to a port of the link's machine. Raise Problem if the local port is in use."""
    refusals: list[ConnectError] = []

    def open_tunnel() -> Tunnel:
        try:
            connection = link.connection
            if not isinstance(connection, SshConnection):
                raise Unreachable(f"port {port} is on this computer, and needs no tunnel")
            return connection.tunnel(port, timeout=TUNNEL_SECONDS)
        except ConnectError as error:
            link.handle_loss(error)
            if not refusals:  # a browser tries again and again
                frontend.note(str(error))
            refusals.append(error)
            raise

    try:
        return PortForward(open_tunnel, local, is_only=is_only)
    except OSError as error:
        note = f"port {local} of this computer: {error.strerror}"
        other = local + 10000 if local < 50000 else 8888
        help_line = f"forward to another one of this computer: `{other}:{port}`"
        raise problem(Code.USAGE, "the port cannot be opened", note, help_line, exit_code=Exit.USAGE) from error


def parse_ports(text: str) -> tuple[int, int]:
    """Return the port on this computer, and the one on the machine. Raise Problem if they are invalid."""
    found = _PORTS.fullmatch(text)
    local, port = (int(found[1] or found[2]), int(found[2])) if found else (0, 0)
    if not (0 < local <= HIGHEST and 0 < port <= HIGHEST):
        note, help_line = f"`{text[:80]}` is neither a port nor LOCAL:PORT", "for example `6006`, `16006:6006`"
        raise problem(Code.USAGE, "invalid port", note, help_line, exit_code=Exit.USAGE)
    return local, port
