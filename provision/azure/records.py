"""What the team knows about deleted machines: their ledger entries, in the subscription's deployment history.

A deleted machine has no tags, and Azure's log forgets it after 90 days. Each machine has one deployment without
resources, which Azure keeps free of charge. It keeps 800, and beyond 700 deletes the oldest; one that is written again
counts as new: https://learn.microsoft.com/azure/azure-resource-manager/templates/deployment-history-deletions.
"""

import hashlib
from typing import Any

from gpuinfra.provision.azure.clients import Clients, Requests
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.tags import machine_key
from gpuinfra.provision.waiting import retry

API = "2022-09-01"
PREFIX = "gpuinfra-receipts-"
MOST_ENTRIES = 2000
"""About 1 MB. Azure refuses a deployment of more than 4 MB."""
# Azure deletes old deployments while a new one makes the history too long.
_PASSING = frozenset({"DeploymentActive", "DeploymentQuotaExceeded"})

Entries = list[dict[str, Any]]


class Records:
    """The shared records of one subscription."""

    def __init__(self, clients: Clients) -> None:
        self._clients, self._requests = clients, Requests(clients)
        self._path = f"/subscriptions/{clients.access.subscription}/providers/Microsoft.Resources/deployments"

    def all(self) -> Entries:
        """Return the entries of all machines."""
        found = self._requests.pages(self._path, API)
        own = (body for body in found if str(body.get("name")).casefold().startswith(PREFIX))
        return [entry for body in own for entry in _entries(body)]

    def add(self, group: str, name: str, region: str, entries: Entries) -> None:
        """Add a machine's entries that are not stored yet."""
        path, limits = f"{self._path}/{_name(group, name)}", self._clients.limits

        def attempt() -> None:
            found = self._find(path)
            known = _entries(found)
            added = [entry for entry in entries if entry not in known]
            if added:
                # The location of a deployment cannot change.
                body = _deployment(str(found.get("location") or region), [*known, *added][-MOST_ENTRIES:])
                self._requests.send("PUT", path, API, body)

        # Of two clients that write at once, Azure refuses the second one, which then reads again.
        retry(attempt, limits.deadline, limits.interrupt.sleep, busy_codes=_PASSING)

    def _find(self, path: str) -> dict[str, Any]:
        try:
            return self._requests.send("GET", path, API)
        except CloudError as error:
            if error.fault is Fault.ABSENT:
                return {}
            raise


def _name(group: str, name: str) -> str:
    """Return the name of a machine's deployment: at most 64 characters, and never that of another machine."""
    digest = hashlib.sha256(machine_key(group, name).encode()).hexdigest()[:10]
    return f"{PREFIX}{name.casefold()[:32]}-{digest}"


def _deployment(location: str, entries: Entries) -> dict[str, Any]:
    template = {
        "$schema": "https://schema.management.azure.com/schemas/2018-05-01/subscriptionDeploymentTemplate.json#",
        "contentVersion": "1.0.0.0",
        "parameters": {"entries": {"type": "array"}},
        "resources": [],
    }
    properties = {"mode": "Incremental", "template": template, "parameters": {"entries": {"value": entries}}}
    return {"location": location, "properties": properties}


def _entries(deployment: dict[str, Any]) -> Entries:
    """Return the entries in a deployment. Others can write one, so anything unexpected counts as empty."""
    found: Any = deployment
    for name in ("properties", "parameters", "entries", "value"):
        found = found.get(name) if isinstance(found, dict) else None
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
