"""Show all our machines in the subscription."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from typing import Any

from gpuinfra.app.access import CloudSession, open_session
from gpuinfra.app.agents import with_agents
from gpuinfra.app.frontend import Frontend
from gpuinfra.app.inventory import unmanaged
from gpuinfra.app.machine_costs import MachineCosts
from gpuinfra.app.machine_names import chosen
from gpuinfra.app.settings import Settings
from gpuinfra.app.settlement import settle_runs
from gpuinfra.app.specs import common_subscription, readable_specs
from gpuinfra.diagnostics import Exit, Problem
from gpuinfra.models.inventory import Mismatch
from gpuinfra.models.machine import Machine
from gpuinfra.parse.spec import LocatedSpec
from gpuinfra.provision import fleet, inventory
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.exposure import Network
from gpuinfra.provision.market import Prices
from gpuinfra.provision.power import UNUSABLE
from gpuinfra.provision.waiting import Silent
from gpuinfra.store import History

SECONDS = 120.0
"""For one query, including the waits that Azure asks for."""


def open_status(settings: Settings, names: Sequence[str], frontend: Frontend, *, agents: bool) -> StatusQuery:
    """Return a query for the machines with these names, or all machines without names."""
    specs = readable_specs(settings.folder, "the workspace", frontend)
    waits = WaitReports(frontend.wait)
    session = open_session(settings, common_subscription(specs), SECONDS, waits)
    return StatusQuery(session, specs, names, waits, agents=agents)


def is_passing(error: Exception) -> bool:
    """Return whether a cloud error may be gone at the next query."""
    passing = {Fault.UNREACHABLE, Fault.THROTTLED, Fault.BUSY, Fault.TIMEOUT}
    return isinstance(error, CloudError) and error.fault in passing


def settle_stopped(settings: Settings, machines: Sequence[Machine]) -> None:
    """Record the end of runs whose machine is off."""
    off = {machine.name.casefold() for machine in machines if machine.power_state in UNUSABLE}
    if not off:
        return
    with suppress(Problem):  # a broken history must not hide a machine that is billed
        runs = [run for run in History(settings.state).unfinished() if run.machine.casefold() in off]
        settle_runs(settings, runs)


class StatusQuery:
    """A query for the machines, which can be repeated."""

    def __init__(
        self,
        session: CloudSession,
        specs: Sequence[LocatedSpec],
        names: Sequence[str],
        waits: WaitReports,
        *,
        agents: bool = False,
    ) -> None:
        self._waits = waits
        self.session, self._specs, self._names, self._agents = session, specs, names, agents
        self.left_alone: tuple[str, ...] = ()
        """Resources that have our tag but are not ours."""
        self.notes: tuple[str, ...] = ()
        """What is unknown."""
        self._rows: list[dict[str, Any]] = []
        self._asked: tuple[str, ...] = ()
        self._prices: Prices | None = None
        self._accounts = MachineCosts(session)

    def look(self, *, strict: bool = True) -> tuple[list[Machine], datetime]:
        """Return the machines, and Azure's time. With `strict`, raise Problem for a name without a machine."""
        self.session.cloud.grant(SECONDS)
        self._rows = rows = self.session.cloud.fleet.machines()
        now = self.session.cloud.now()
        with ThreadPoolExecutor(1, thread_name_prefix="network") as pool:
            network = pool.submit(self._network, rows)
            prices = self._prices_of(fleet.sizes(rows))
            histories = self._accounts.histories(rows, now, prices)
            found = fleet.machines(rows, self._specs, now, prices, histories, network.result())
        self.left_alone = fleet.lookalikes(rows)
        wanted, absent, problems = chosen(self.session.settings, self._names, rows)
        if strict and (problems or absent):
            raise Problem(*problems, *absent.values(), exit_code=Exit.USAGE if problems else Exit.FAILED)
        shown = [machine for machine in found if not self._names or (machine.name, machine.group) in wanted]
        return (self._with_agents(shown) if self._agents else shown), now

    def mismatch(self) -> Mismatch:
        """Return what is in no spec of the workspace, and its specs without a machine. Call `look` first."""
        session, rows = self.session, self._rows
        own = [each for each in self._specs if each.spec.subscription in {None, session.cloud.subscription}]
        wanted = (*inventory.sizes(rows), *(each.spec.candidate_sizes[0] for each in own))
        prices = session.market.prices(dict.fromkeys(wanted))
        try:
            parts = session.cloud.fleet.parts()
        except CloudError as error:
            if error.fault is not Fault.DENIED:
                raise
            parts, self.notes = [], (*self.notes, f"disks and addresses without a machine are not known: {error.code}")
        found, note = unmanaged(session, session.settings.folder, own, rows, parts, prices)
        self.notes = (*self.notes, *([note] if note else []))
        return Mismatch(tuple(found), tuple(inventory.missing(rows, own, prices)))

    @property
    def simulated(self) -> bool:
        """Whether the machines are in the sandbox."""
        return self.session.cloud.simulated

    def report_waits(self, report: Callable[[str, float], None]) -> None:
        """Call `report` with reason and seconds of each wait from now on."""
        self._waits.report = report

    def _with_agents(self, machines: list[Machine]) -> list[Machine]:
        return with_agents(self.session, machines, self._specs)

    def _network(self, rows: Sequence[Mapping[str, Any]]) -> Network | None:
        """Return the NICs and NSGs; None without machines, or if they may not be read."""
        if not fleet.sizes(rows):
            return None
        try:
            return Network(self.session.cloud.fleet.network())
        except CloudError as error:
            if error.fault is not Fault.DENIED:
                raise
            self.notes = (f"NSGs were not compared: {error.code}",)
            return None

    def _prices_of(self, sizes: tuple[str, ...]) -> Prices:
        # Do not query an unavailable price service again and again.
        if self._prices is None or not set(sizes) <= set(self._asked):
            self._prices, self._asked = self.session.market.prices(sizes), sizes
        return self._prices


class WaitReports(Silent):
    """A Progress that reports only waits, to a function that can change."""

    def __init__(self, report: Callable[[str, float], None]) -> None:
        self.report = report

    def wait(self, reason: str, seconds: float) -> None:
        """Report a wait that Azure requested."""
        self.report(reason, seconds)
