"""`gpuinfra status`: every machine of ours in the subscription."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from gpuinfra.app.accounts import Accounts
from gpuinfra.app.settings import Settings
from gpuinfra.cli.options import begin, frontend
from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem
from gpuinfra.provision.waiting.progress import Silent

if TYPE_CHECKING:
    from gpuinfra.app.machines import CloudSession
    from gpuinfra.load.spec import Located
    from gpuinfra.models.machine import Machine
    from gpuinfra.provision.market.port import Prices
    from gpuinfra.views.status import Watch

SECONDS = 120.0
"""For one look, Azure's wishes to wait included."""


def status(
    context: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Machines, by name, target or spec; all if left out."),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Look again and again, until Ctrl-C.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=1, max=3600, help="How often --watch looks.")
    ] = 5,
    agent: Annotated[
        bool, typer.Option("--agent", help="Ask machines that run, by SSH, what their guest agents say.")
    ] = False,
) -> int:
    """Show machines: power state, price, cost so far, lease, next change, and how they differ from their specs."""
    from gpuinfra.app.machines import explained, reach
    from gpuinfra.views import status as view

    settings = begin(context)
    specs = _specs(settings)
    with frontend(settings) as progress, explained("listing machines"):
        looking = StatusQuery(
            reach(settings, _subscription(specs), SECONDS, progress), specs, names or [], agents=agent
        )
        machines, now = looking.look()
    simulated = looking.reached.cloud.simulated
    _settle(settings, machines)
    if not watch:
        view.show(machines, now, json=settings.json, simulated=simulated, left_alone=looking.left_alone)
        return Exit.DONE
    try:
        with view.Watch(json=settings.json, simulated=simulated) as shown, explained("listing machines"):
            _watch(looking, shown, interval, machines, now)
    except KeyboardInterrupt:
        pass  # it is how a watch ends
    return Exit.DONE


def _settle(settings: Settings, machines: Sequence[Machine]) -> None:
    """Record the end of runs whose machine is off."""
    from gpuinfra.app.settlement import OFF, settle_runs
    from gpuinfra.runner.results.history import History
    from gpuinfra.workspace import STATE, find_workspace

    off = {machine.name.casefold() for machine in machines if machine.power_state in OFF}
    with suppress(Problem):  # what is wrong with the history does not hide a machine that is billed
        runs = History(find_workspace(settings.workspace) / STATE).unfinished() if off else []
        settle_runs(settings, [run for run in runs if run.machine.casefold() in off])


class StatusQuery:
    """Looks at the machines as often as it is asked to."""

    def __init__(
        self, reached: CloudSession, specs: Sequence[Located], names: Sequence[str], *, agents: bool = False
    ) -> None:
        self.reached, self._specs, self._names, self._agents = reached, specs, names, agents
        self.left_alone: tuple[str, ...] = ()
        """What carries our tag and is not ours."""
        self._asked: tuple[str, ...] = ()
        self._prices: Prices | None = None
        self._accounts = Accounts(reached)

    def look(self, *, strict: bool = True) -> tuple[list[Machine], datetime]:
        """The machines, and the time in Azure. Strict raises a Problem about a name that no machine has."""
        from gpuinfra.app.machine_names import chosen
        from gpuinfra.provision import fleet
        from gpuinfra.provision.azure.fleet import list_all_machines
        from gpuinfra.provision.waiting.deadline import Deadline

        clients = self.reached.cloud.clients
        clients.patience.deadline = Deadline.after(SECONDS)
        rows = list_all_machines(clients)
        now = self.reached.cloud.now()
        prices = self._prices_of(fleet.sizes(rows))
        found = fleet.machines(rows, self._specs, now, prices, self._accounts.histories(rows, now, prices))
        self.left_alone = fleet.lookalikes(rows)
        wanted, absent, problems = chosen(self.reached.settings, self._names, rows)
        if strict and (problems or absent):
            raise Problem(*problems, *map(_not_made, absent), exit_code=Exit.USAGE if problems else Exit.FAILED)
        shown = [machine for machine in found if not self._names or (machine.name, machine.group) in wanted]
        return (self._with_agents(shown) if self._agents else shown), now

    def _with_agents(self, machines: list[Machine]) -> list[Machine]:
        from gpuinfra.app.agents import with_agents

        return with_agents(self.reached, machines, self._specs)

    def _prices_of(self, sizes: tuple[str, ...]) -> Prices:
        # A service of prices that does not answer is not asked again and again.
        if self._prices is None or not set(sizes) <= set(self._asked):
            self._prices, self._asked = self.reached.market.prices(sizes), sizes
        return self._prices


class _Waits(Silent):
    """Tells of waits in the place where the table is."""

    def __init__(self, shown: Watch) -> None:
        self._shown = shown

    def wait(self, reason: str, seconds: float) -> None:
        """It is the table's line of trouble."""
        self._shown.trouble(f"waiting {seconds:.0f} s: {reason}")


def _not_made(name: str) -> Diagnostic:
    note, help_line = f"Azure has no machine `{name}` in the group of its spec", "`gpuinfra up SPEC` creates it"
    return Diagnostic(Code.NO_SUCH_MACHINE, "no such machine", note=note, help=help_line)


def _watch(looking: StatusQuery, shown: Watch, interval: float, machines: list[Machine], now: datetime) -> None:
    from gpuinfra.provision.errors import CloudError, Fault

    passing = {Fault.UNREACHABLE, Fault.THROTTLED, Fault.BUSY, Fault.TIMEOUT}
    looking.reached.cloud.clients.patience.progress = _Waits(shown)
    shown.show(machines, now)
    while True:
        time.sleep(interval)
        try:
            shown.show(*looking.look(strict=False))
        except CloudError as error:
            if error.fault not in passing:
                raise
            shown.trouble(f"Azure does not answer: {error}")


def _specs(settings: Settings) -> list[Located]:
    """The workspace's specs, to compare with. One that has problems must not hide a machine that is billed."""
    from gpuinfra.load.files import load_paths
    from gpuinfra.views import status as view
    from gpuinfra.workspace import find_workspace

    workspace = find_workspace(settings.workspace)
    loaded = load_paths([str(workspace)])
    problems = [each for each in loaded.diagnostics if each.code is not Code.NO_SPEC_FOUND]
    if problems:
        view.show_bad_specs(len(problems), str(workspace))
    return loaded.specs


def _subscription(specs: Sequence[Located]) -> str | None:
    """The one that all specs agree on, if they name any."""
    named = {located.spec.subscription for located in specs if located.spec.subscription}
    return named.pop() if len(named) == 1 else None
