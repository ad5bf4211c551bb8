"""What a machine's guest agent says of itself, asked by SSH."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuinfra.models.agent import AgentState
    from gpuinfra.models.target import Target

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
