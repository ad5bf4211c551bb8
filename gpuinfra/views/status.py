"""Machines: a table, once or repeatedly, or JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any

from gpuinfra.views import json_output
from gpuinfra.views.plan import unmanaged_lines
from gpuinfra.views.terminal import (
    UNKNOWN,
    Cell,
    columns,
    cost,
    counted,
    duration,
    harmless,
    messages,
    per_hour,
    results,
    table,
    width_of,
    wrapped,
)

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

    from gpuinfra.models.inventory import Mismatch, MissingMachine
    from gpuinfra.models.machine import Machine, ScheduledChange

# Region, since, size, next, price, lease: left out first if the table does not fit.
LEAST = (3, 2, 4, 8, 5, 7)
NONE = "no machines in this subscription"
# A running agent writes every few seconds.
STALE_SECONDS = 60
STYLES = {"running": "green", "deallocated": "dim", "stopped": "bold red"}


def show(
    machines: Sequence[Machine],
    now: datetime,
    *,
    json: bool,
    simulated: bool,
    left_alone: Sequence[str] = (),
    notes: Sequence[str] = (),
    mismatch: Mismatch | None = None,
) -> None:
    """Print all machines, what is in no spec, and specs without a machine; then what is left alone, and notes."""
    if json:
        more: dict[str, list[Any]] = {
            "unmanaged": [each.as_json() for each in mismatch.unmanaged] if mismatch else [],
            "notCreated": [each.as_json() for each in mismatch.missing] if mismatch else [],
            "leftAlone": list(left_alone),
            "notes": list(notes),
        }
        json_output.show(
            {**_data(machines, now, simulated=simulated), **{name: lines for name, lines in more.items() if lines}}
        )
        return
    if machines:
        console = results()
        console.print(render(machines, now, simulated=simulated, width=width_of(console)))
    else:
        messages().print(NONE)
    if mismatch:
        for shown in (*unmanaged_lines(mismatch.unmanaged, simulated=simulated), *_missing(mismatch.missing)):
            results().print(shown)
    for line in (*left_alone, *(f"note: {note}" for note in notes)):
        messages().print(harmless(line))


def _missing(missing: Sequence[MissingMachine]) -> Iterator[Text]:
    from rich.text import Text

    if missing:
        yield Text("\nNot created:", "bold")
    rows = [
        (each.name, each.file, f"{per_hour(each.per_hour)}/h while on" if each.per_hour else "") for each in missing
    ]
    yield from (Text(f"  {line}") for line in columns(rows))


def render(machines: Sequence[Machine], now: datetime, *, simulated: bool = False, width: int | None = None) -> Text:
    """Return one line per machine, then one for each difference from its spec."""
    from rich.text import Text

    money = "COST (simulated)" if simulated else "COST"
    header = ("NAME", "STATE", "SINCE", "REGION", "SIZE", "$/H", money, "LEASE", "NEXT")
    rows = [header, *(_row(machine, now) for machine in machines)]
    text = table(rows, right={5, 6}, least=LEAST, width=width)
    drift = [
        Text(f"{harmless(machine.name)}: ").append(wrapped(harmless(each), width, len(machine.name) + 2), "bold red")
        for machine in machines
        for each in machine.drift
    ]
    purposes = [
        Text(wrapped(harmless(f"{machine.name}: on for {machine.purpose.words}"), width, 0))
        for machine in machines
        if machine.purpose
    ]
    agents = [Text(wrapped(line, width, 0)) for machine in machines for line in agent_lines(machine, now)]
    return Text("\n").join([text, *drift, *purposes, *agents])


def agent_lines(machine: Machine, now: datetime) -> list[str]:
    """Return the lines about the machine's guest agent."""
    agent, name = machine.agent, f"agent of {machine.name}"
    if agent is None:
        return []
    if isinstance(agent, str):
        return [harmless(f"{name}: unknown: {agent}")]
    at, cause = agent.forecast
    off = f"off {_near(at, now)} ({cause})"
    if agent.ends_with:
        off = f"off when run {' and '.join(agent.ends_with)} has ended, {_near(at, now)} at the latest ({cause})"
    facts = [agent.action, off]
    if agent.held_for and agent.held_until:
        facts.append(f"on until {_near(agent.held_until, now)} for a look at failed run {agent.held_for}")
    if agent.idle_since:
        facts.append(f"idle since {_near(agent.idle_since, now)}")
    facts.append(f"jobs: {', '.join(agent.jobs) or 'none'}")
    facts.append(counted(agent.sessions, "login"))
    if agent.gpu_utilization is not None:
        facts.append(f"GPU {agent.gpu_utilization} %")
    if agent.eviction_notice:
        facts.append("Azure is about to evict it")
    if agent.age_seconds(now) > STALE_SECONDS:
        facts.append(f"last update {duration(agent.age_seconds(now))} ago")
    lines = [f"{name}: {'; '.join(facts)}"]
    if agent.last_error:
        lines.append(f"  last error: {agent.last_error}")
    return [harmless(line) for line in lines]


def _row(machine: Machine, now: datetime) -> tuple[Cell, ...]:
    return (
        machine.name,
        (machine.power_state, STYLES.get(machine.power_state, "yellow")),
        _minute(machine.since) if machine.since else UNKNOWN,
        f"{machine.region}/{machine.zone}" if machine.zone else machine.region,
        f"{machine.size} spot" if machine.spot else machine.size,
        per_hour(machine.price_per_hour),
        cost(machine.cost_so_far(now)),
        _lease(machine, now),
        _change(machine.next_change, now) if machine.next_change else UNKNOWN,
    )


def _lease(machine: Machine, now: datetime) -> str:
    # A machine that is off has no lease, even if its tag is still there.
    if machine.lease_until is None or machine.power_state == "deallocated":
        return UNKNOWN
    left = (machine.lease_until - now).total_seconds()
    return duration(left) if left > 0 else "over"


def _change(change: ScheduledChange, now: datetime) -> str:
    word = "off" if change.power == "deallocated" else "on"
    return f"{word} {_near(change.at, now)} ({change.cause})"


def _near(at: datetime, now: datetime) -> str:
    """Return only the time of day if the date is today."""
    at = at.astimezone(UTC)
    return f"{at:%H:%M}Z" if at.date() == now.astimezone(UTC).date() else _minute(at)


def _minute(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M}Z"


def _data(machines: Sequence[Machine], now: datetime, *, simulated: bool) -> dict[str, Any]:
    shown = {"machines": [machine.as_json(now) for machine in machines]}
    return {**shown, "simulated": True} if simulated else shown


class StatusWatch:
    """Repeats the table: in place on a terminal, one after the other elsewhere."""

    def __init__(self, *, json: bool, simulated: bool) -> None:
        self._json, self._simulated = json, simulated
        self._console = results()
        self._live: Live | None = None
        self._text: Text | None = None
        self._trouble = ""

    def __enter__(self) -> StatusWatch:
        console = self._console
        if not self._json and console.file.isatty() and console.is_interactive and not console.is_dumb_terminal:
            from rich.live import Live

            console.soft_wrap = False  # rich has to know how many lines there are
            self._live = Live(console=console, get_renderable=self._render, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def show(self, machines: Sequence[Machine], now: datetime) -> None:
        from rich.text import Text

        if self._json:
            payload = {"schemaVersion": json_output.SCHEMA_VERSION, **_data(machines, now, simulated=self._simulated)}
            sys.stdout.write(json_output.to_text(payload))
            sys.stdout.flush()
            return
        width = width_of(self._console)
        table = render(machines, now, simulated=self._simulated, width=width) if machines else Text(NONE)
        self._text, self._trouble = Text(f"{now.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z\n").append(table), ""
        if self._live:
            self._live.refresh()
        else:
            self._console.print(self._text)

    def trouble(self, text: str) -> None:
        self._trouble = harmless(text)
        if self._live:
            self._live.refresh()
        else:
            messages().print(self._trouble)

    def _render(self) -> Text:
        from rich.text import Text

        lines = [*(self._text.split("\n") if self._text else []), Text(self._trouble, "yellow")]
        for line in lines:
            # A wrapped line would count as two and shift the next table.
            line.truncate(self._console.width - 1, overflow="crop")
        return Text("\n", no_wrap=True).join(line for line in lines if line)
