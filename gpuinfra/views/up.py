"""The result of `up`, and what exists after an interrupt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuinfra.models.events import CommandInterrupted, Interrupted
from gpuinfra.views import diagnostics as diagnostics_view
from gpuinfra.views import json_output
from gpuinfra.views import plan as plan_view
from gpuinfra.views.formatting import columns, per_hour, sandbox_option, timestamp
from gpuinfra.views.terminal import harmless, messages, results

if TYPE_CHECKING:
    from gpuinfra.diagnostics import Diagnostic
    from gpuinfra.models.results import UpResult


def show(brought: Sequence[UpResult], diagnostics: Sequence[Diagnostic] = (), *, json: bool) -> None:
    """Print each machine, then problems; or everything as one JSON object."""
    if json:
        payload = {"machines": [each.as_json() for each in brought]} if brought or not diagnostics else {}
        json_output.show({**payload, **diagnostics_view.as_payload(diagnostics)})
        return
    for number, each in enumerate(brought):
        if number:
            results().print()
        _show(each)
    diagnostics_view.show(diagnostics)


def _show(brought: UpResult) -> None:
    plan_view.show([brought.plan], json=False, applied=True)
    console, target = results(), brought.target
    if target is None:
        console.print(f"{brought.plan.name} is off, as its spec says.")
        return
    place = brought.plan.candidate
    price = "" if brought.plan.price.per_hour is None else f", {per_hour(brought.plan.price.per_hour)}/h"
    simulated = " (simulated)" if brought.simulated else ""
    console.print(f"{harmless(target.machine)} is running{simulated}: {place}{price}")
    console.print(f"  address     {target.username}@{target.address} port {target.port}")
    if brought.gpu:
        said = "simulated" in brought.gpu.summary
        mark = " (simulated)" if brought.gpu.simulated and not said else ""
        console.print(f"  GPU         {harmless(brought.gpu.summary)}{mark}")
    if brought.lease_until:
        console.print(f"  lease       until {timestamp(brought.lease_until)}")
    if brought.agent not in {None, "armed"}:
        console.print(f"  agent       cannot switch it off: see `gpuinfra doctor {target.machine}`")
    for file in brought.files:
        console.print(f"  wrote       {harmless(file)}")
    where = sandbox_option(simulated=brought.simulated)
    messages().print(f"Next: `gpuinfra ssh {target.machine}{where}`; `gpuinfra down {target.machine}{where}` when done")


def show_all_interrupted(event: CommandInterrupted) -> None:
    """Print the state of each machine after Ctrl-C, and what to run next."""
    console = messages()
    console.print("interrupted; in Azure:")
    rows = [
        (each.name, each.power, f"{per_hour(each.per_hour)}/h" if each.power == "on" else "") for each in event.machines
    ]
    for line in columns(rows):
        console.print(f"  {line}")
    console.print(f"help: {harmless(event.help)}")


def show_interrupted(event: Interrupted) -> None:
    """Print what exists after Ctrl-C, when Azure stops the machine, and what to run next."""
    console = messages()
    if event.resources is None:
        console.print("interrupted; Azure did not say what exists")
    elif event.resources:
        console.print(f"interrupted; in Azure exists: {harmless(', '.join(event.resources))}")
    else:
        console.print("interrupted; nothing exists in Azure")
        return
    if event.stops:
        console.print(f"the machine is billed while it is on; Azure's schedule stops it at {timestamp(event.stops)}")
    remove = f"gpuinfra down {event.name} --delete{sandbox_option(simulated=event.simulated)}"
    console.print(f"help: run the same command again to continue, or `{remove}` to remove everything")
