"""What a terminal shows of a running job while it prints nothing: time, GPU use, and cost so far."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from gpuinfra.models.run import LiveStatus, RunState

if TYPE_CHECKING:
    from gpuinfra.app.frontend import Frontend
    from gpuinfra.app.settings import Settings
    from gpuinfra.runner.heartbeat import Heartbeat
    from gpuinfra.runner.record import Record

# The ledger is read this often.
COST_SECONDS = 15.0


@contextmanager
def live_status(settings: Settings, record: Record, heartbeat: Heartbeat, frontend: Frontend) -> Iterator[None]:
    """Let the frontend show how the job is, during the block."""
    cost: float | None = None
    over = threading.Event()

    def read_costs() -> None:
        from gpuinfra.app.machine_costs import with_costs

        nonlocal cost
        while record.run.machine and not over.wait(COST_SECONDS if cost is not None else 1.0):
            (counted,) = with_costs(settings, [record.run], datetime.now(UTC))
            cost = counted.cost_usd
            if cost is None:
                return  # the ledger does not have the price

    def read() -> LiveStatus | None:
        run = record.run
        if run.state is not RunState.RUNNING or run.started is None:
            return None
        seconds = (datetime.now(UTC) - run.started).total_seconds()
        return LiveStatus(run.id, max(0.0, seconds), heartbeat.gpu, cost, run.simulated)

    if frontend.shows_status:
        threading.Thread(target=read_costs, name="cost", daemon=True).start()
    frontend.set_status(read)
    try:
        yield
    finally:
        over.set()
        frontend.set_status(None)
