"""Forward the ports of a job, `job.ports` of its spec, to this computer while it is followed."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from gpuinfra.diagnostics import Problem

if TYPE_CHECKING:
    from gpuinfra.app.frontend import Frontend
    from gpuinfra.models.run import Run
    from gpuinfra.runner.forwarding import PortForward
    from gpuinfra.runner.link import Link

CONNECT_SECONDS = 20.0


@contextmanager
def forwarded_ports(link: Link, run: Run, frontend: Frontend) -> Iterator[None]:
    """Forward the ports of a run's job during this block, and note their addresses. A failure is only noted."""
    if not run.ports or run.state.is_over:
        yield
        return
    from gpuinfra.runner.errors import ConnectError, JobError, RemoteError

    with ExitStack() as stack:
        for name, port in run.ports.items():
            try:
                address = _open(link, run, port, frontend, stack)
            except (Problem, ConnectError, JobError, RemoteError, OSError) as error:
                reason = error.diagnostics[0].summary if isinstance(error, Problem) else error
                frontend.note(f"{name}: port {port} is not forwarded: {reason}")
            else:
                frontend.note(f"{name}: http://{address}")
        yield


def _open(link: Link, run: Run, port: int, frontend: Frontend, stack: ExitStack) -> str:
    """Return the address on this computer that leads to a port of the job while the stack is open."""
    from gpuinfra.runner.container import LOOPBACK

    outer = _machine_port(link, run, port)
    # A simulated machine has the ports of this computer.
    if (link.target.is_here or link.target.simulated) and outer == port:
        return f"{LOOPBACK}:{port}"
    return stack.enter_context(_forward(link, port, outer, frontend)).address


def _machine_port(link: Link, run: Run, port: int) -> int:
    """Return the port of the job's machine that leads to a port of the job."""
    from gpuinfra.runner.container import ContainerJob
    from gpuinfra.runner.errors import JobError
    from gpuinfra.runner.follower import open_job

    job = open_job(link, run)
    if not isinstance(job, ContainerJob):
        return port
    found = job.published_port(port)
    if found is None:
        raise JobError("the port is not open", "the container has ended, or its engine did not open the port")
    return found


def _forward(link: Link, port: int, outer: int, frontend: Frontend) -> PortForward:
    from gpuinfra.app.forward import open_forward
    from gpuinfra.runner.container import LOOPBACK
    from gpuinfra.runner.forwarding import PortForward

    if not link.target.is_here:
        return open_forward(link, outer, port, frontend, is_only=False)

    def connect() -> socket.socket:
        connection = socket.create_connection((LOOPBACK, outer), CONNECT_SECONDS)
        connection.settimeout(None)  # an idle connection stays open
        return connection

    return PortForward(connect, port, is_only=False)
