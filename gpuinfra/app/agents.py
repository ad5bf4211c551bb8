"""Query the guest agents of running machines, in parallel, each for a few seconds at most."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from gpuinfra.app.access import CloudSession
from gpuinfra.app.machine_names import target_of_vm
from gpuinfra.diagnostics import Problem
from gpuinfra.models.machine import STATE_FILE, AgentState, Machine, parse_agent_state
from gpuinfra.models.plan import Kind
from gpuinfra.models.target import Target
from gpuinfra.parse.spec import LocatedSpec
from gpuinfra.provision.errors import CloudError
from gpuinfra.provision.health import MAX_SILENCE_SECONDS
from gpuinfra.provision.observed import Observed
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.tags import ref_of
from gpuinfra.runner.connection.ssh import SshConnection
from gpuinfra.runner.errors import ConnectError
from gpuinfra.runner.progress import within

AT_ONCE = 16


def with_agents(session: CloudSession, machines: Sequence[Machine], specs: Sequence[LocatedSpec]) -> list[Machine]:
    """Return the machines, each running one with its agent's state or the reason why that is unknown."""
    keys = {located.spec.name.casefold(): located.spec.admin.key() for located in specs}
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="agent") as pool:
        asked = [
            pool.submit(ask_agent, session, machine, keys.get(machine.name.casefold()))
            if machine.power_state == "running"
            else None
            for machine in machines
        ]
        pairs = zip(machines, asked, strict=True)
        return [replace(machine, agent=answer.result()) if answer else machine for machine, answer in pairs]


def _observed(session: CloudSession, machine: Machine) -> Observed:
    """Return the resources that are needed to reach the machine."""
    refs = [ref_of(kind, machine.group, machine.name) for kind in (Kind.VM, Kind.PUBLIC_IP)]
    parts = [part for ref in refs if (part := session.cloud.look(ref))]
    return Observed(machine.name, machine.group, tuple(parts))


def is_agent_armed(session: CloudSession, found: ObservedResource, machine: Machine, public_key: str | None) -> bool:
    """Return whether the agent is proven to stop its machine: it has the role, is alive, and reports no error."""
    if machine.power_state != "running" or not session.cloud.agent_role(found).is_held:
        return False
    state = ask_agent(session, machine, public_key)
    if isinstance(state, str) or state.last_error:
        return False
    return abs(state.age_seconds(session.cloud.now())) <= MAX_SILENCE_SECONDS


def ask_agent(session: CloudSession, machine: Machine, public_key: str | None) -> AgentState | str:
    """Return the state that a machine's guest agent reports, or why it is unknown."""
    try:
        return read_agent_state(target_of_vm(session, _observed(session, machine), public_key))
    except (NoAgentError, CloudError) as error:
        return str(error)
    except Problem as problem:
        found = problem.diagnostics[0]
        return found.note or found.summary


SECONDS = 10.0


class NoAgentError(Exception):
    """No agent state could be read. `is_reached` says whether the machine answered and only the agent is missing."""

    def __init__(self, reason: str, *, is_reached: bool) -> None:
        super().__init__(reason)
        self.is_reached = is_reached


def read_agent_state(target: Target, seconds: float = SECONDS) -> AgentState:
    """Return the agent's state within `seconds`. Raise NoAgentError if it cannot be read."""
    try:
        return within(seconds, lambda: _read(target, time.monotonic() + seconds))
    except TimeoutError:
        raise NoAgentError(f"the machine did not answer within {seconds:g} s", is_reached=False) from None


def _read(target: Target, ends: float) -> AgentState:
    import contextlib

    try:
        with contextlib.closing(SshConnection.open(target, ends - time.monotonic())) as connection:
            # A simulated machine has no root folder of its own. A variable on that machine has the path of its files.
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
