"""How commands reach a cloud: Azure as the shell is set up for it, or the embedded one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuinfra.app.settings import Settings

if TYPE_CHECKING:
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
