"""What a target's jobs will find there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuinfra.views import document
from gpuinfra.views.terminal import harmless, messages, results

if TYPE_CHECKING:
    from gpuinfra.models.gpu import GpuFacts


def show(
    target: str,
    tag: str | None,
    image: str | None,
    gpu: GpuFacts | None,
    unused: str | None,
    *,
    built: bool,
    json: bool,
) -> None:
    """The image, whether it was made just now, and the GPU as a job in it sees it."""
    if json:
        environment = {"target": target, "image": tag, "imageId": image, "built": built}
        document.show({"environment": {**environment, "gpu": gpu.as_json() if gpu else None}})
        return
    console = results()
    if tag:
        console.print(f"{harmless(target)} has its environment: {harmless(tag)}{' (built just now)' if built else ''}")
    else:
        console.print(f"{harmless(target)} has nothing to prepare: jobs run in its own Python")
    if gpu:
        mark = " (simulated)" if gpu.simulated and "simulated" not in gpu.summary else ""
        console.print(f"  GPU         {harmless(gpu.summary)}{mark}")
    if unused:
        messages().print(f"note: {unused}")
