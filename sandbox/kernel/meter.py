"""The meter: power states of every VM and what they cost. Tests compare gpuinfra's receipts with it."""

from itertools import groupby
from typing import Any

from gpuinfra.sandbox.kernel.clock import stamp
from gpuinfra.sandbox.kernel.store import Store

# https://learn.microsoft.com/azure/virtual-machines/states-billing: a VM that is stopped but allocated is billed.
BILLED = frozenset({"starting", "running", "stopping", "stopped"})
STATES = BILLED | {"creating", "deallocating", "deallocated", "deleted"}


class Meter:
    """Power-state intervals of every VM, including deleted ones."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def change(self, key: str, name: str, state: str, price: float, now: float) -> None:
        """Enter a power state; where it is billed, an hour costs `price` dollars."""
        if state not in STATES:
            raise ValueError(state)
        connection = self.store.connection
        connection.execute("UPDATE power SET until = ? WHERE key = ? AND until IS NULL", (now, key))
        connection.execute(
            "INSERT INTO power (key, name, state, since, until, price) VALUES (?,?,?,?,NULL,?)",
            (key, name, state, now, price),
        )

    def state(self, key: str) -> tuple[str, float] | None:
        """Return the current power state, and since when."""
        row: tuple[str, float] | None = self.store.connection.execute(
            "SELECT state, since FROM power WHERE key = ? AND until IS NULL", (key,)
        ).fetchone()
        return row

    def machines(self, now: float) -> list[dict[str, Any]]:
        """Return the bill, one entry per VM; a VM created again under a deleted one's name has its own entry."""
        rows = self.store.connection.execute(
            "SELECT key, name, state, since, until, price FROM power ORDER BY key, number"
        ).fetchall()
        return [entry for _, own in groupby(rows, key=lambda row: row[0]) for entry in _lives(list(own), now)]


def _lives(rows: list[Any], now: float) -> list[dict[str, Any]]:
    lives: list[list[Any]] = [[]]
    for row in rows:
        if lives[-1] and lives[-1][-1][2] == "deleted":
            lives.append([])
        lives[-1].append(row)
    return [_entry(life, now) for life in lives]


def _entry(rows: list[Any], now: float) -> dict[str, Any]:
    billed = cost = 0.0
    timeline = []
    for _, _, state, since, until, price in rows:
        seconds = max(0.0, (until if until is not None else now) - since)
        if state in BILLED:
            billed += seconds
            cost += seconds / 3600 * price
        timeline.append({"state": state, "from": stamp(since), "to": stamp(until) if until is not None else None})
    return {
        "name": rows[-1][1],
        "id": rows[-1][0],
        "powerState": rows[-1][2],
        "billedSeconds": round(billed, 3),
        "costUsd": round(cost, 6),
        "timeline": timeline,
    }
