"""Asks machines that run for what their guest agents say: all at once, each for a few seconds at most."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuinfra.diagnostics import Problem

if TYPE_CHECKING:
    from gpuinfra.app.machines import CloudSession
    from gpuinfra.models.agent import AgentState
    from gpuinfra.models.machine import Machine
    from gpuinfra.models.target import Target
    from gpuinfra.parse.spec import Located
    from gpuinfra.provision.cloud import Observed

AT_ONCE = 16


def with_agents(reached: CloudSession, machines: Sequence[Machine], specs: Sequence[Located]) -> list[Machine]:
    """The machines, each that runs with its agent's word, or with the reason why there is none."""
    # Imported here and not in the threads: the SDK's modules wait for each other when threads import them together.
    _ = reached.cloud.clients.network
    keys = {located.spec.name.casefold(): located.spec.admin.key() for located in specs}
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="agent") as pool:
        asked = [
            pool.submit(_ask, reached, machine, keys.get(machine.name.casefold()))
            if machine.power_state == "running"
            else None
            for machine in machines
        ]
        pairs = zip(machines, asked, strict=True)
        return [replace(machine, agent=answer.result()) if answer else machine for machine, answer in pairs]


def _observed(reached: CloudSession, machine: Machine) -> Observed:
    """As much of it as is needed to reach it."""
    from gpuinfra.models.resource import Kind
    from gpuinfra.provision.cloud import Observed
    from gpuinfra.provision.names import ref_of

    refs = [ref_of(kind, machine.group, machine.name) for kind in (Kind.VM, Kind.PUBLIC_IP)]
    parts = [part for ref in refs if (part := reached.cloud.look(ref))]
    return Observed(machine.name, machine.group, tuple(parts))


def _ask(reached: CloudSession, machine: Machine, public_key: str | None) -> AgentState | str:
    from gpuinfra.app.machines import with_known_key
    from gpuinfra.provision.errors import CloudError
    from gpuinfra.provision.find import target_of
    from gpuinfra.runner.machine.identity import identity_of
    from gpuinfra.workspace import find_workspace

    workspace = reached.settings.workspace
    try:
        identity = identity_of(public_key, workspace) if public_key else None
        target = target_of(
            _observed(reached, machine),
            ssh_port=reached.cloud.clients.access.ssh_port,
            identity=identity,
            simulated=reached.cloud.simulated,
        )
        return read_agent_state(with_known_key(find_workspace(workspace), target))
    except (NoAgentError, CloudError) as error:
        return str(error)
    except Problem as problem:
        found = problem.diagnostics[0]
        return found.note or found.summary


SECONDS = 10.0


class NoAgentError(Exception):
    """There is nothing to read; `is_reached` where the machine was, and the agent is what is missing."""

    def __init__(self, reason: str, *, is_reached: bool) -> None:
        super().__init__(reason)
        self.is_reached = is_reached


def read_agent_state(target: Target, seconds: float = SECONDS) -> AgentState:
    """The agent's own file, within so many seconds; NoAgentError where there is none."""
    from gpuinfra.runner.machine.within import within

    try:
        return within(seconds, lambda: _read(target, time.monotonic() + seconds))
    except TimeoutError:
        raise NoAgentError(f"the machine did not answer within {seconds:g} s", is_reached=False) from None


def _read(target: Target, ends: float) -> AgentState:
    import contextlib

    from gpuinfra.models.agent import STATE_FILE, parse_agent_state
    from gpuinfra.runner.machine.connection import ConnectError
    from gpuinfra.runner.machine.ssh import SshConnection

    try:
        with contextlib.closing(SshConnection.open(target, ends - time.monotonic())) as connection:
            # A simulated machine has no root of its own: where its files are is in a variable there, and nowhere else.
            shown = connection.run(
                ["sh", "-c", f'cat "$GPUINFRA_GUEST_ROOT{STATE_FILE}"'], timeout=max(0.1, ends - time.monotonic())
            )
    except ConnectError as error:
        raise NoAgentError(str(error), is_reached=False) from error
    if shown.exit_code != 0:
        raise NoAgentError(f"the machine has no {STATE_FILE}: no agent runs there", is_reached=True)
    state = parse_agent_state(shown.stdout)
    if state is None:
        raise NoAgentError(f"what is in {STATE_FILE} of the machine is not the agent's", is_reached=True)
    return state
