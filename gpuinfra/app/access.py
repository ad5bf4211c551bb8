"""How commands reach a cloud: Azure as the shell is set up for it, or the embedded one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuinfra.app.settings import Settings
from gpuinfra.diagnostics import Problem

if TYPE_CHECKING:
    from gpuinfra.models.resource import MachineId
    from gpuinfra.models.spec import Spec
    from gpuinfra.models.target import Target
    from gpuinfra.provision.azure.access import Access
    from gpuinfra.provision.azure.cloud import AzureCloud
    from gpuinfra.provision.waiting.deadline import Deadline
    from gpuinfra.provision.waiting.progress import Progress


def open_access(settings: Settings, subscription: str | None = None) -> Access:
    """Where the cloud is and who asks. `subscription` is what the spec says."""
    if settings.cloud == "sandbox":
        return _sandbox_access()
    from gpuinfra.provision.azure.access import current

    return current(subscription)


def open_cloud(
    settings: Settings,
    subscription: str | None = None,
    *,
    deadline: Deadline | None = None,
    progress: Progress | None = None,
    writes: bool = False,
) -> AzureCloud:
    """The cloud itself. No call is made yet; without `writes` none will change anything."""
    from gpuinfra.provision.azure.clients import Clients
    from gpuinfra.provision.azure.cloud import AzureCloud
    from gpuinfra.provision.azure.transport import Patience

    patience = Patience(deadline, progress, writes=writes)
    return AzureCloud(Clients(open_access(settings, subscription), patience, settings.correlation_id))


def _sandbox_access() -> Access:
    from gpuinfra.app.sandbox import Sandbox
    from gpuinfra.provision.azure.access import Access, ClientSecret

    server = Sandbox()
    client, description = server.client(), server.status()
    with server.problems():
        credentials = client.get("credentials")
    assert description is not None, "the client has just answered"  # noqa: S101 for the type checker
    return Access(
        subscription=description.subscription,
        arm=description.endpoint,
        authority=description.authority,
        ca=description.ca,
        prices=f"{description.endpoint}/api/retail/prices",
        client_secret=ClientSecret(credentials["tenant"], credentials["clientId"], credentials["clientSecret"]),
        ssh_port=description.ssh_port or 22,
        simulated=True,
    )


# For one look: whoever waits for the machine tries to reach it all the while.
LOOK_SECONDS = 15.0
OFF = frozenset({"deallocating", "deallocated", "stopping", "stopped"})
# Off for whoever wants to use it, and not for whoever pays for it.
BILLED = frozenset({"stopping", "stopped"})


def cloud_of(settings: Settings, target: Target) -> Settings:
    """The settings by which a target's machine is found: one of the embedded Azure is nowhere else."""
    return replace(settings, cloud="sandbox") if target.simulated else settings


def power_of(
    settings: Settings, spec: Spec | MachineId | None, *, is_there: bool = False
) -> Callable[[], str | None] | None:
    """Asks for the power state of a machine of ours: what it is, where it is off; None where it is on, or nobody knows.

    One that Azure does not know is gone where it `is_there`, for sure, as seen by the same login; otherwise it may be
    another subscription that is asked. Nothing is loaded before it is asked: most jobs end without.
    """
    if spec is None:
        return None
    machine = spec

    def ask() -> str | None:
        from gpuinfra.models.resource import Kind
        from gpuinfra.provision.errors import CloudError
        from gpuinfra.provision.names import ref_of
        from gpuinfra.provision.waiting.deadline import Deadline

        try:
            cloud = open_cloud(settings, machine.subscription, deadline=Deadline.after(LOOK_SECONDS))
            found = cloud.look(ref_of(Kind.VM, machine.group_name, machine.name))
        except (CloudError, Problem):
            return None  # that Azure does not answer says nothing of the machine
        if found is None:
            return f"{machine.name} is gone" if is_there else None
        billed = f", and billed until `gpuinfra down {machine.name}`" if found.power in BILLED else ""
        return f"{machine.name} is {found.power}{billed}" if found.power in OFF else None

    return ask
