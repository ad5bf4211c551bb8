"""Our machines in a subscription, by lists and never one by one."""

from __future__ import annotations

from typing import Any

from provision import tags
from provision.azure.clients import Clients
from provision.azure.errors import translated


def list_machines(clients: Clients) -> list[dict[str, Any]]:
    """Bodies of all machines that carry our tag, each with its instance view."""
    with translated("machines"):
        rows = _list(clients, status_only="true")
        if _is_lean(rows):
            rows = _merged(_list(clients), rows)
    return [row for row in rows if tags.get(row.get("tags"), tags.NAME)]


def _list(clients: Clients, **options: str) -> list[dict[str, Any]]:
    return [machine.as_dict() for machine in clients.compute.virtual_machines.list_all(**options)]


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
