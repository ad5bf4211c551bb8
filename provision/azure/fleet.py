"""Our machines in a subscription, by lists and never one by one."""

from __future__ import annotations

from typing import Any

from gpuinfra.models.resource import Ref
from gpuinfra.provision import tags
from gpuinfra.provision.azure.clients import Clients
from gpuinfra.provision.azure.errors import translated
from gpuinfra.provision.azure.ids import ref_from_id
from gpuinfra.provision.azure.requests import Requests
from gpuinfra.provision.reaping.port import Listed

MACHINES_VERSION = "2024-11-01"
RESOURCES_VERSION = "2021-04-01"


def list_machines(clients: Clients) -> list[dict[str, Any]]:
    """Bodies of all machines that carry our tag, each with its instance view."""
    return [row for row in list_all_machines(clients) if tags.get(row.get("tags"), tags.NAME)]


def list_all_machines(clients: Clients) -> list[dict[str, Any]]:
    """Bodies of all machines, others' as well, each with its instance view."""
    rows = _list(clients, statusOnly="true")
    return _merged(_list(clients), rows) if _is_lean(rows) else rows


def _list(clients: Clients, **query: str) -> list[dict[str, Any]]:
    # As they are: the SDK takes two seconds to make models of a thousand machines, to be taken apart again.
    path = f"/subscriptions/{clients.access.subscription}/providers/Microsoft.Compute/virtualMachines"
    return list(Requests(lambda: clients.resource).pages(path, MACHINES_VERSION, query))


class AzureFleet:
    """A whole subscription, for reaping. Every method raises CloudError and nothing else."""

    def __init__(self, clients: Clients) -> None:
        self.clients = clients

    def machines(self) -> list[dict[str, Any]]:
        """All machines there are."""
        return list_all_machines(self.clients)

    def parts(self) -> list[Listed]:
        """All resources that carry our tag. Asked for by the tag's name alone: with a value, Azure leaves tags out."""
        path = f"/subscriptions/{self.clients.access.subscription}/resources"
        query = {"$filter": f"tagName eq '{tags.NAME}'", "$expand": "createdTime,changedTime"}
        rows = Requests(lambda: self.clients.resource).pages(path, RESOURCES_VERSION, query)
        return [part for row in rows if (part := _listed(row))]

    def ask_off(self, ref: Ref) -> None:
        """Have a machine deallocated. Whoever asks tries again and looks for itself: the SDK need do neither."""
        with translated(str(ref)):
            self.clients.compute.virtual_machines.begin_deallocate(ref.group, ref.name, polling=False, retry_status=0)

    def ask_delete(self, ref: Ref) -> None:
        """Have a machine deleted whose deletion has not ended."""
        with translated(str(ref)):
            self.clients.compute.virtual_machines.begin_delete(ref.group, ref.name, polling=False, retry_status=0)


def _listed(row: dict[str, Any]) -> Listed | None:
    ref = ref_from_id(str(row.get("id") or ""))
    times = {name: str(row.get(name) or "") for name in ("createdTime", "changedTime")}
    since = max((at for name in times if (at := tags.moment(times, name))), default=None)
    return Listed(ref, dict(row.get("tags") or {}), since) if ref else None


def _is_lean(rows: list[dict[str, Any]]) -> bool:
    """Whether a list of statuses has nothing but statuses.

    Azure promises no more (https://github.com/Azure/azure-rest-api-specs/issues/42411), and others find no tags in it.
    Then a second list has the rest. Where it is all there, as in the sandbox, one is enough.
    """
    bodies = (row.get("properties") or {} for row in rows)
    return bool(rows) and (
        not any(row.get("tags") for row in rows) or not all("hardwareProfile" in body for body in bodies)
    )


def _merged(rows: list[dict[str, Any]], statuses: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Whole bodies with the instance views of their statuses. What is in one list only came or went in between."""
    views = {_key(status): (status.get("properties") or {}).get("instanceView") for status in statuses}
    return [
        {**row, "properties": {**(row.get("properties") or {}), "instanceView": views.get(_key(row)) or {}}}
        for row in rows
    ]


def _key(row: dict[str, Any]) -> str:
    # Azure does not see case in ids, and the two lists need not agree on it.
    return str(row.get("id") or "").casefold()
