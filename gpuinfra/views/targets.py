"""Targets: a table or JSON, and the results of `attach` and `detach`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from shlex import quote
from typing import TYPE_CHECKING, Any

from gpuinfra.models.target import DetachResult, unreachable_runs
from gpuinfra.views import diagnostics as diagnostics_view
from gpuinfra.views import json_output
from gpuinfra.views.terminal import UNKNOWN, Cell, harmless, messages, results, table, width_of

if TYPE_CHECKING:
    from rich.text import Text

    from gpuinfra.diagnostics import Diagnostic
    from gpuinfra.models.target import AttachResult, Reachability, Target

HEADER = ("NAME", "TYPE", "ADDRESS", "GPU", "IMAGE", "REACHABLE")
HERE = "this computer"
DEFAULT = "default"
"""The image that each run chooses for the driver."""
WORDS = {"yes": "yes", "no": "no", "other-key": "other host key"}
STYLES = {"yes": "green", "no": "red", "other-key": "bold red"}
# Image, GPU, address: left out first if the table does not fit.
LEAST = (4, 3, 2)
IN_CONTAINERS = {"localdocker", "remotedocker"}


def show(
    targets: Sequence[Target],
    reached: Mapping[str, Reachability],
    diagnostics: Sequence[Diagnostic],
    workspace: str,
    *,
    json: bool,
) -> None:
    """Print all targets, then the files that could not be read."""
    if json:
        listed = [_data(target, reached.get(target.name)) for target in targets]
        json_output.show({"targets": listed, **diagnostics_view.as_payload(diagnostics)})
        return
    if targets:
        console = results()
        console.print(render(targets, reached, width_of(console)))
    elif not diagnostics:
        messages().print(f"no target in {harmless(workspace)}; `gpuinfra up` and `gpuinfra attach` create them")
    diagnostics_view.show(diagnostics)


def render(targets: Sequence[Target], reached: Mapping[str, Reachability], width: int | None = None) -> Text:
    """Return one line per target."""
    rows = [HEADER, *(_row(target, reached.get(target.name)) for target in targets)]
    return table(rows, least=LEAST, width=width)


def _row(target: Target, reach: Reachability | None) -> tuple[Cell, ...]:
    simulated = " (simulated)" if target.simulated else ""
    gpu = _gpu(target)
    return (
        target.name,
        f"{target.type}{simulated}",
        _address(target),
        UNKNOWN if gpu is None else "yes" if gpu else "no",
        _image(target) or (DEFAULT if target.type in IN_CONTAINERS else UNKNOWN),
        (_answer(reach), STYLES[reach.state]) if reach else UNKNOWN,
    )


def _address(target: Target) -> str:
    if target.is_here:
        return HERE
    if not target.address:
        return UNKNOWN
    host = f"[{target.address}]" if ":" in target.address else target.address
    port = "" if target.port == 22 else f":{target.port}"
    return f"{target.username}@{host}{port}" if target.username else f"{host}{port}"


def _gpu(target: Target) -> bool | None:
    """Return whether containers get the GPUs; None for targets without containers."""
    return target.nvidia_docker if target.type in IN_CONTAINERS else None


def _image(target: Target) -> str | None:
    return target.base_docker_image if target.type in IN_CONTAINERS else None


def _answer(reach: Reachability) -> str:
    return f"{WORDS[reach.state]}: {reach.detail}" if reach.detail else WORDS[reach.state]


def _data(target: Target, reach: Reachability | None) -> dict[str, Any]:
    return {
        **target.as_json(),
        "gpu": _gpu(target),
        "image": _image(target),
        "reachable": reach.state if reach else None,
        "detail": reach.detail if reach and reach.detail else None,
    }


def show_detached(detached: DetachResult, *, json: bool) -> None:
    """Print what was removed, and what was not."""
    if json:
        password_field = {"keepsPassword": True} if detached.keeps_password else {}
        run_fields = {"runs": [run.id for run in detached.runs]} if detached.runs else {}
        json_output.show({"name": detached.name, "removed": list(detached.files), **password_field, **run_fields})
        return
    for file in detached.files:
        results().print(f"removed {harmless(file)}")
    if detached.runs:
        messages().print(harmless(unreachable_runs(detached.runs)))
    if detached.keeps_password:
        messages().print("Its password may still be in this computer's keyring, which did not delete it.")
    if detached.has_machine:
        messages().print("The machine itself is unchanged. While it is on, it may be billed.")


PASSWORD_KEPT, PASSWORD_ASKED = "stored in this computer's keyring", "not stored: gpuinfra asks each time"


def show_attached(attached: AttachResult, *, json: bool) -> None:
    """Print the attached target."""
    if json:
        json_output.show(attached.as_json())
        return
    console, target = results(), attached.target
    simulated = " (simulated)" if target.simulated else ""
    console.print(f"{harmless(target.name)} is attached{simulated}: {target.type}")
    console.print(f"  address     {harmless(target.username)}@{harmless(target.address)} port {target.port}")
    console.print(f"  host key    {attached.fingerprint}")
    # Show the GPU only if jobs use it.
    if attached.checkup.gpu and any(check.name == "gpu" for check in attached.checkup.checks):
        console.print(f"  GPU         {harmless(attached.checkup.gpu.summary)}")
    if target.password:
        console.print(f"  password    {PASSWORD_KEPT if target.password.startswith('keyring:') else PASSWORD_ASKED}")
    for file in attached.files:
        console.print(f"  wrote       {harmless(file)}")
    if not attached.files:
        console.print("  files       unchanged")
    forget = f"gpuinfra detach {quote(harmless(target.name))}"
    messages().print(f"Next: `gpuinfra targets`; `{forget}` when you no longer need it")
