"""Disks and addresses of ours, which are paid for whether a machine is on or not."""

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
    """Machines, disks and addresses that carry our tag, ours or not, as Azure has them now."""
    # One import at a time: the SDK's modules wait for each other when threads import them together.
    _ = clients.resource, clients.compute
    with ThreadPoolExecutor(3, thread_name_prefix="holdings") as pool:
        machines = pool.submit(list_machines, clients)
        disks = pool.submit(_list, clients, DISKS, DISKS_API)
        addresses = pool.submit(_list, clients, ADDRESSES, ADDRESSES_API)
        return machines.result(), disks.result(), addresses.result()


def _list(clients: Clients, kind: str, api_version: str) -> Bodies:
    """All of a kind that are ours. Not by the SDK: its client for networks takes longer to import than all of this."""
    path = f"/subscriptions/{clients.access.subscription}/providers/{kind}"
    found = Requests(lambda: clients.resource).pages(path, api_version)
    return [body for body in found if tags.get(body.get("tags"), tags.NAME)]
