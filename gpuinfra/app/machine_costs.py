"""Read the cost of machines from the workspace's ledger and Azure's activity log, for commands other than `cost`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import TYPE_CHECKING, Any

from gpuinfra.app.settings import Settings
from gpuinfra.diagnostics import Problem

if TYPE_CHECKING:
    from gpuinfra.app.access import CloudSession
    from gpuinfra.app.workspace import Workspace
    from gpuinfra.models.receipt import LedgerEntry
    from gpuinfra.models.run import Run
    from gpuinfra.provision.costing.activity import Event
    from gpuinfra.provision.costing.history import CostHistory
    from gpuinfra.provision.costing.report import Job
    from gpuinfra.provision.market import Prices

AT_ONCE = 8
_Key = tuple[str, str, str]


class MachineCosts:
    """The histories of machines since their last power-on from this workspace."""

    def __init__(self, session: CloudSession) -> None:
        self._session = session
        self._logs: dict[_Key, list[Event] | None] = {}
        """The log of each machine in one state. While Azure does not change the machine, the log does not change."""

    def histories(self, rows: Sequence[Mapping[str, Any]], now: datetime, prices: Prices) -> dict[str, CostHistory]:
        """Return histories by lower-case VM ID. If the log cannot be read, use the ledger and the current state."""
        from gpuinfra.provision.costing.evidence import Evidence
        from gpuinfra.provision.costing.report import PriceBook
        from gpuinfra.provision.market import shipped_prices

        log_since, logs = self._read(rows, now)
        entries, book = self._entries(), PriceBook(prices, shipped_prices())
        found = {}
        for row in rows:
            key = str(row["id"]).casefold()
            group, name = _place(row)
            mine = [each for each in entries if each.machine.casefold() == name]
            mine = [each for each in mine if each.group is None or each.group.casefold() == group]
            events = logs.get(key)
            since = None if events is None else log_since.get(key)
            if since:
                # Another client may have switched the machine off and on again since the ledger's last entry.
                mine = [each for each in mine if each.at >= since]
            (found[key],) = Evidence(now, events or (), since, mine, [row]).histories(book)
        return found

    def _read(
        self, rows: Sequence[Mapping[str, Any]], now: datetime
    ) -> tuple[dict[str, datetime], dict[str, list[Event] | None]]:
        """Return for each machine since when the log was read, and its events. Many machines share one request."""
        from gpuinfra.provision.power_log import window

        windows = {str(row["id"]).casefold(): window(row.get("tags"), now) for row in rows}
        if len(rows) > AT_ONCE:
            first = min(windows.values())
            states = " ".join(" ".join(_state(row)) for row in rows)
            events = self._log((states, "", ""), first, now)
            own = {key: None if events is None else [e for e in events if e.machine == key] for key in windows}
            return dict.fromkeys(windows, first), own
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="log") as pool:
            logs = list(
                pool.map(
                    lambda row: self._log(_state(row), windows[str(row["id"]).casefold()], now, str(row["id"])), rows
                )
            )
        return windows, dict(zip(windows, logs, strict=True))

    def _log(self, key: _Key, since: datetime, now: datetime, resource: str | None = None) -> list[Event] | None:
        """Return the events of one machine or of all, or None if the log cannot be read."""
        from gpuinfra.provision.costing.activity import read_events
        from gpuinfra.provision.errors import CloudError, Fault

        if key not in self._logs:
            try:
                self._logs[key] = read_events(self._session.cloud.fleet.activity_log(since, now, resource))
            except CloudError as error:
                if error.fault in {Fault.INTERRUPTED, Fault.LOGIN}:
                    raise
                self._logs[key] = None
        return self._logs[key]

    def _entries(self) -> list[LedgerEntry]:
        cloud = self._session.cloud
        found = ledger_entries(self._session.settings, simulated=cloud.simulated)
        return [each for each in found if each.subscription.casefold() in {"", cloud.subscription.casefold()}]


def ledger_entries(
    settings: Settings,
    *,
    simulated: bool,
    machine: str | None = None,
    warn: Callable[[str], None] | None = None,
) -> list[LedgerEntry]:
    """Return this workspace's entries for real or simulated machines, or for the machines with one name.

    If the ledger cannot be read, return nothing. A machine in the sandbox may have the name of a real one.
    """
    from gpuinfra.store import Ledger

    try:
        found = Ledger(settings.state).entries()
    except Problem as problem:
        if warn:
            warn(f"warning: {problem.diagnostics[0].summary}: {problem.diagnostics[0].note}")
        return []
    named = [each for each in found if machine is None or each.machine.casefold() == machine.casefold()]
    return [each for each in named if each.simulated == simulated]


def hourly_price(settings: Settings, machine: str, *, simulated: bool) -> float | None:
    """Return the price of a machine when it was last switched on or changed from this workspace, or None."""
    entries = ledger_entries(settings, simulated=simulated, machine=machine)
    prices = [each.price_per_hour for each in entries if each.price_per_hour is not None]
    return prices[-1] if prices else None


def with_costs(settings: Settings, runs: Sequence[Run], now: datetime) -> list[Run]:
    """Return the runs, each with the machine's cost while its job ran, if the ledger has the price."""
    from dataclasses import replace

    from gpuinfra.provision.costing.report import cost_by_ledger
    from gpuinfra.store import History as Runs

    if not jobs_of(runs, now):
        return list(runs)
    everything = {run.id: run for run in (*Runs(settings.state).list(), *runs)}
    costs: dict[str, float] = {}
    for simulated in {run.simulated for run in runs}:
        own = [run for run in everything.values() if run.simulated == simulated]
        costs |= cost_by_ledger(ledger_entries(settings, simulated=simulated), jobs_of(own, now))
    return [replace(run, cost_usd=round(costs[run.id], 4)) if run.id in costs else run for run in runs]


def record_cost(workspace: Workspace, run: Run, *, tracked: bool) -> Run:
    """Return a finished run with the machine's cost while its job ran, if the ledger has the price."""
    if run.cost_usd is not None or run.ended is None:
        return run
    (counted,) = with_costs(workspace.settings, [run], run.ended)
    if counted.cost_usd is None or not tracked:
        return counted
    try:
        return workspace.history.update(run.id, cost_usd=counted.cost_usd)
    except Problem:
        return counted


def jobs_of(runs: Iterable[Run], now: datetime) -> list[Job]:
    """Return the runs that worked on a machine as jobs. A job that still runs ends now."""
    from gpuinfra.models.run import RunState
    from gpuinfra.provision.costing.report import Job

    return [
        Job(run.id, machine, run.started, end, is_over=run.ended is not None and not run.is_end_latest)
        for run in runs
        # The record of a run whose machine was deleted keeps only the id.
        if (machine := run.machine or run.resource_id.rpartition("/")[2])
        and run.started
        and (end := run.ended or (now if run.state is RunState.RUNNING else None))
    ]


def _place(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return a machine's group and name in lower case."""
    # /subscriptions/S/resourceGroups/G/providers/Microsoft.Compute/virtualMachines/M
    words = str(row["id"]).casefold().split("/")
    return words[4], words[8]


def _state(row: Mapping[str, Any]) -> _Key:
    statuses = ((row.get("properties") or {}).get("instanceView") or {}).get("statuses") or []
    codes = " ".join(str(each.get("code")) for each in statuses)
    return str(row["id"]).casefold(), codes, " ".join(str(each.get("time")) for each in statuses)
