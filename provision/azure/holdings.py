"""List our disks and public IPs, which cost money even while the machine is off."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gpuinfra.provision import tags
from gpuinfra.provision.azure.clients import Clients
from gpuinfra.provision.azure.fleet import list_machines
from gpuinfra.provision.azure.requests import Requests

DISKS, DISKS_API = "Microsoft.Compute/disks", "2024-03-02"
ADDRESSES, ADDRESSES_API = "Microsoft.Network/publicIPAddresses", "2024-05-01"

Bodies = list[dict[str, Any]]


def list_holdings(clients: Clients) -> tuple[Bodies, Bodies, Bodies]:
    """Return the current VMs, disks and public IPs with our tag, whether they are ours or not."""
    # Import here, in one thread: concurrent imports of the SDK's modules block each other.
    _ = clients.resource, clients.compute
    with ThreadPoolExecutor(3, thread_name_prefix="holdings") as pool:
        machines = pool.submit(list_machines, clients)
        disks = pool.submit(_list, clients, DISKS, DISKS_API)
        addresses = pool.submit(_list, clients, ADDRESSES, ADDRESSES_API)
        return machines.result(), disks.result(), addresses.result()


def _list(clients: Clients, kind: str, api_version: str) -> Bodies:
    """Return all resources of a kind with our tag. Not with the SDK: its network client takes too long to import."""
    path = f"/subscriptions/{clients.access.subscription}/providers/{kind}"
    found = Requests(lambda: clients.resource).pages(path, api_version)
    return [body for body in found if tags.get(body.get("tags"), tags.NAME)]
