"""What came of `up`, and what there is when it was interrupted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuinfra.models.events import Interrupted
from gpuinfra.views import diagnostics as diagnostics_view
from gpuinfra.views import document
from gpuinfra.views import plan as plan_view
from gpuinfra.views.cells import moment, per_hour, place_option
from gpuinfra.views.terminal import harmless, messages, results

if TYPE_CHECKING:
    from gpuinfra.diagnostics import Diagnostic
    from gpuinfra.models.up_result import UpResult


def show(brought: Sequence[UpResult], diagnostics: Sequence[Diagnostic] = (), *, json: bool) -> None:
    """Each machine as it is now, then the problems of those that are not; or all as one object."""
    if json:
        payload = {"machines": [each.as_json() for each in brought]} if brought or not diagnostics else {}
        document.show({**payload, **diagnostics_view.as_payload(diagnostics)})
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
        console.print(f"{brought.plan.name} is off, as the spec says.")
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
        console.print(f"  lease       until {moment(brought.lease_until)}")
    if brought.agent not in {None, "armed"}:
        console.print(f"  agent       cannot switch it off: see `gpuinfra doctor {target.machine}`")
    for file in brought.files:
        console.print(f"  wrote       {harmless(file)}")
    where = place_option(simulated=brought.simulated)
    messages().print(f"Next: gpuinfra ssh {target.machine}{where}; gpuinfra down {target.machine}{where} when done")


def show_interrupted(event: Interrupted) -> None:
    """What exists after Ctrl-C, when Azure itself stops the machine that is among it, and what to run."""
    console = messages()
    if event.resources is None:
        console.print("interrupted; what exists in Azure could not be seen")
    elif event.resources:
        console.print(f"interrupted; in Azure there is now: {harmless(', '.join(event.resources))}")
    else:
        console.print("interrupted; there is nothing of it in Azure")
        return
    if event.stops:
        console.print(f"the machine is billed once it is on; Azure's own schedule stops it at {moment(event.stops)}")
    remove = f"gpuinfra down {event.name} --delete{place_option(simulated=event.simulated)}"
    console.print(f"help: run the same command again to go on, or `{remove}` to remove it all")
