"""Open a cloud for a command: Azure as the shell is configured for it, or the sandbox."""

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
    from gpuinfra.provision.azure.clients import Clients
    from gpuinfra.provision.cloud import Cloud
    from gpuinfra.provision.progress import Progress
    from gpuinfra.provision.waiting import Deadline


def open_access(settings: Settings, subscription: str | None = None) -> Access:
    """Return the cloud's endpoints and login. `subscription` is the one in the spec."""
    if settings.cloud == "sandbox":
        return _sandbox_access()
    from gpuinfra.provision.azure.access import current

    return current(subscription)


def open_clients(
    settings: Settings,
    subscription: str | None = None,
    *,
    deadline: Deadline | None = None,
    progress: Progress | None = None,
    writes: bool = False,
) -> Clients:
    """Return the SDK's clients. This sends no request yet. Without `writes`, requests change nothing."""
    from gpuinfra.provision.azure.clients import Clients
    from gpuinfra.provision.azure.transport import RequestLimits

    limits = RequestLimits(deadline, progress, writes=writes, interrupt=settings.interrupt)
    return Clients(open_access(settings, subscription), limits, settings.correlation_id)


def open_cloud(
    settings: Settings,
    subscription: str | None = None,
    *,
    deadline: Deadline | None = None,
    writes: bool = False,
) -> Cloud:
    """Return the cloud. This sends no request yet. Without `writes`, requests change nothing."""
    from gpuinfra.provision.azure.cloud import AzureCloud

    return AzureCloud(open_clients(settings, subscription, deadline=deadline, writes=writes))


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


# For one look. Meanwhile, a client that waits for the machine keeps trying to reach it.
LOOK_SECONDS = 15.0


def cloud_of(settings: Settings, target: Target) -> Settings:
    """Return the settings that find a target's machine: a simulated one exists only in the sandbox."""
    return replace(settings, cloud="sandbox") if target.simulated else settings


def power_of(
    settings: Settings, spec: Spec | MachineId | None, *, is_there: bool = False, resource_id: str = ""
) -> Callable[[], str | None] | None:
    """Return a function that describes the machine's power state if it is off, or returns None if it is on or unknown.

    A machine that Azure does not find is gone if it certainly existed: with the same login (`is_there`), or under the
    target's own `resource_id`. Otherwise the login may be for another subscription. Imports happen on the first call,
    because most jobs never need it.
    """
    if spec is None:
        return None
    machine = spec

    def ask() -> str | None:
        from gpuinfra.models.resource import Kind, same_machine
        from gpuinfra.provision.errors import CloudError
        from gpuinfra.provision.names import ref_of
        from gpuinfra.provision.power import SHUT_DOWN, UNUSABLE
        from gpuinfra.provision.waiting import Deadline

        try:
            cloud = open_cloud(settings, machine.subscription, deadline=Deadline.after(LOOK_SECONDS))
            ref = ref_of(Kind.VM, machine.group_name, machine.name)
            found = cloud.look(ref)
        except (CloudError, Problem):
            return None  # without an answer from Azure, the state is unknown
        if found is None:
            is_known = is_there or same_machine(resource_id, ref.id(cloud.subscription))
            return f"{machine.name} is gone" if is_known else None
        billed = f", and billed until `gpuinfra down {machine.name}`" if found.power in SHUT_DOWN else ""
        return f"{machine.name} is {found.power}{billed}" if found.power in UNUSABLE else None

    return ask
