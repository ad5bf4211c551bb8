"""A machine that was met, and what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuinfra.views import document
from gpuinfra.views.terminal import harmless, messages, results

if TYPE_CHECKING:
    from gpuinfra.models.attached import Attached

KEPT, ASKED = "kept in the keyring of this computer", "not kept: it is asked for each time"


def show_host_key(where: str, kind: str, fingerprint: str) -> None:
    """Before somebody is asked whether it is the right one."""
    console = messages()
    console.print(f"{harmless(where)} is not known yet. It shows the host key")
    console.print(f"  {fingerprint} ({kind})")
    console.print("On the machine itself `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub`, or its like, prints it.")


def show(attached: Attached, *, json: bool) -> None:
    """The target as it is now."""
    if json:
        document.show(attached.as_json())
        return
    console, target = results(), attached.target
    simulated = " (simulated)" if target.simulated else ""
    console.print(f"{harmless(target.name)} is attached{simulated}: {target.type}")
    console.print(f"  address     {harmless(target.username)}@{harmless(target.address)} port {target.port}")
    console.print(f"  host key    {attached.fingerprint}")
    # One that is there and not wanted is not what jobs get.
    if attached.checkup.gpu and any(check.name == "gpu" for check in attached.checkup.checks):
        console.print(f"  GPU         {harmless(attached.checkup.gpu.summary)}")
    if target.password:
        console.print(f"  password    {KEPT if target.password.startswith('keyring:') else ASKED}")
    for file in attached.files:
        console.print(f"  wrote       {harmless(file)}")
    if not attached.files:
        console.print("  files       as they were")
    messages().print(f"Next: gpuinfra targets; gpuinfra detach {harmless(target.name)} when it is not needed any more")
