"""Disks and addresses of ours, which are paid for whether a machine is on or not."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from provision import tags
from provision.azure.clients import Clients
from provision.azure.errors import translated
from provision.azure.fleet import list_machines

Bodies = list[dict[str, Any]]


def list_holdings(clients: Clients) -> tuple[Bodies, Bodies, Bodies]:
    """Machines, disks and addresses that carry our tag, as Azure has them now."""
    # One import at a time: the SDK's modules wait for each other when threads import them together.
    _ = clients.resource, clients.compute, clients.network
    with ThreadPoolExecutor(3, thread_name_prefix="holdings") as pool:
        machines = pool.submit(list_machines, clients)
        disks, addresses = pool.submit(_disks, clients), pool.submit(_addresses, clients)
        return machines.result(), disks.result(), addresses.result()


def _disks(clients: Clients) -> Bodies:
    with translated("disks"):
        return _ours([disk.as_dict() for disk in clients.compute.disks.list()])


def _addresses(clients: Clients) -> Bodies:
    with translated("addresses"):
        return _ours([address.as_dict() for address in clients.network.public_ip_addresses.list_all()])


def _ours(bodies: Bodies) -> Bodies:
    return [body for body in bodies if tags.get(body.get("tags"), tags.NAME)]
