"""List our resources in a subscription, and its activity log, with list requests, never one by one."""

import re
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

from gpuinfra.models.json_values import stamp
from gpuinfra.models.plan import ARM_TYPES, Kind, Ref
from gpuinfra.provision import tags
from gpuinfra.provision.azure.clients import Clients, Requests, translated
from gpuinfra.provision.azure.records import Records
from gpuinfra.provision.azure.rights import Rights
from gpuinfra.provision.cloud import Listed

MACHINES_VERSION = "2024-11-01"
RESOURCES_VERSION = "2021-04-01"
DISKS_API = "2024-03-02"
NETWORK_API = "2024-05-01"

Bodies = list[dict[str, Any]]


def list_machines(clients: Clients) -> list[dict[str, Any]]:
    """Return the bodies of all VMs with our tag, with instance views."""
    return [row for row in list_all_machines(clients) if tags.get(row.get("tags"), tags.NAME)]


def list_all_machines(clients: Clients) -> list[dict[str, Any]]:
    """Return the bodies of all VMs, including others', with instance views."""
    rows = _list(clients, statusOnly="true")
    return _merged(_list(clients), rows) if _is_lean(rows) else rows


def _list(clients: Clients, **query: str) -> list[dict[str, Any]]:
    # Plain JSON: the SDK needs two seconds to build models of a thousand VMs.
    path = f"/subscriptions/{clients.access.subscription}/providers/Microsoft.Compute/virtualMachines"
    return list(Requests(clients).pages(path, MACHINES_VERSION, query))


class AzureFleet:
    """A whole subscription. Every method raises only CloudError."""

    def __init__(self, clients: Clients) -> None:
        self.clients = clients

    def machines(self) -> list[dict[str, Any]]:
        return list_all_machines(self.clients)

    def parts(self) -> list[Listed]:
        path = f"/subscriptions/{self.clients.access.subscription}/resources"
        # Without a tag value: with one, Azure omits the tags.
        query = {"$filter": f"tagName eq '{tags.NAME}'", "$expand": "createdTime,changedTime"}
        rows = Requests(self.clients).pages(path, RESOURCES_VERSION, query)
        return [part for row in rows if (part := _listed(row))]

    def holdings(self) -> tuple[Bodies, Bodies, Bodies]:
        with ThreadPoolExecutor(3, thread_name_prefix="holdings") as pool:
            machines = pool.submit(list_machines, self.clients)
            disks = pool.submit(_list_tagged, self.clients, ARM_TYPES[Kind.DISK], DISKS_API)
            addresses = pool.submit(_list_tagged, self.clients, ARM_TYPES[Kind.PUBLIC_IP], NETWORK_API)
            return machines.result(), disks.result(), addresses.result()

    def network(self) -> dict[Kind, Bodies]:
        kinds = (Kind.NIC, Kind.NSG)
        with ThreadPoolExecutor(len(kinds), thread_name_prefix="network") as pool:
            found = [pool.submit(_list_kind, self.clients, ARM_TYPES[kind], NETWORK_API) for kind in kinds]
            return {kind: each.result() for kind, each in zip(kinds, found, strict=True)}

    def activity_log(self, since: datetime, until: datetime, resource: str | None = None) -> Bodies:
        return read_log(self.clients, since, until, resource)

    def records(self) -> Bodies:
        return Records(self.clients).all()

    def add_record(self, group: str, name: str, region: str, entries: Bodies) -> None:
        Records(self.clients).add(group, name, region, entries)

    def has_agent_role(self) -> bool:
        return Rights(self.clients).has_role()

    # The caller retries and checks the result, so the SDK does neither.

    def ask_off(self, ref: Ref) -> None:
        with translated(str(ref)):
            self.clients.compute.virtual_machines.begin_deallocate(ref.group, ref.name, polling=False, retry_status=0)

    def ask_delete(self, ref: Ref) -> None:
        with translated(str(ref)):
            self.clients.compute.virtual_machines.begin_delete(ref.group, ref.name, polling=False, retry_status=0)


def _list_tagged(clients: Clients, kind: str, api_version: str) -> Bodies:
    """Return all resources of a kind with our tag."""
    return [body for body in _list_kind(clients, kind, api_version) if tags.get(body.get("tags"), tags.NAME)]


def _list_kind(clients: Clients, kind: str, api_version: str) -> Bodies:
    """Return all resources of a kind. Not with the SDK: its network client takes too long to import."""
    path = f"/subscriptions/{clients.access.subscription}/providers/{kind}"
    return list(Requests(clients).pages(path, api_version))


def _listed(row: dict[str, Any]) -> Listed | None:
    ref = ref_from_id(str(row.get("id") or ""))
    times = {name: str(row.get(name) or "") for name in ("createdTime", "changedTime")}
    since = max((at for name in times if (at := tags.moment(times, name))), default=None)
    return Listed(ref, dict(row.get("tags") or {}), since) if ref else None


def _is_lean(rows: list[dict[str, Any]]) -> bool:
    """Return whether the status list lacks tags or VM properties.

    Azure guarantees only statuses (https://github.com/Azure/azure-rest-api-specs/issues/42411), and users report
    missing tags. A second list then provides the rest. If the first one is complete, as in the sandbox, it suffices.
    """
    bodies = (row.get("properties") or {} for row in rows)
    return bool(rows) and (
        not any(row.get("tags") for row in rows) or not all("hardwareProfile" in body for body in bodies)
    )


def _merged(rows: list[dict[str, Any]], statuses: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return full bodies with instance views from the status list. A VM in only one list is new or was just deleted."""
    views = {_key(status): (status.get("properties") or {}).get("instanceView") for status in statuses}
    return [
        {**row, "properties": {**(row.get("properties") or {}), "instanceView": views.get(_key(row)) or {}}}
        for row in rows
    ]


def _key(row: dict[str, Any]) -> str:
    # Azure ignores case in IDs, and the two lists may use different case.
    return str(row.get("id") or "").casefold()


API_VERSION = "2015-04-01"
# Azure's time comes from the Date header, in whole seconds. The latest events may have a later timestamp.
AHEAD = timedelta(seconds=5)
# Fields that can be selected. According to Azure's documentation `caller` is not among them; only full events have it.
SELECTED = "eventTimestamp,operationName,operationId,correlationId,resourceId,status,subStatus,properties"


def read_log(clients: Clients, since: datetime, until: datetime, resource: str | None = None) -> list[dict[str, Any]]:
    """Return events, newest first: of one resource, or of all VMs and disks, then without the caller.

    `since` must be at most `costing.activity.KEPT` before `until`. A few events may be seconds later than `until`.
    """
    span = f"eventTimestamp ge '{stamp(since)}' and eventTimestamp le '{stamp(until + AHEAD)}'"
    # Azure allows only one condition in addition to the time.
    what = f"resourceUri eq '{resource}'" if resource else "resourceProvider eq 'Microsoft.Compute'"
    query = {"$filter": f"{span} and {what}", **({} if resource else {"$select": SELECTED})}
    path = f"/subscriptions/{clients.access.subscription}/providers/Microsoft.Insights/eventtypes/management/values"
    return list(Requests(clients).pages(path, API_VERSION, query))


_ID = re.compile(
    r"/subscriptions/[^/]+/resourceGroups/(?P<group>[^/]+)/providers/(?P<type>[^/]+/[^/]+)/(?P<name>[^/]+)",
    re.IGNORECASE,
)
_KINDS = {arm_type.casefold(): kind for kind, arm_type in ARM_TYPES.items() if kind is not Kind.RESOURCE_GROUP}


def ref_from_id(resource_id: str) -> Ref | None:
    """Return the resource that an ID names, or None if gpuinfra never creates this kind."""
    match = _ID.fullmatch(resource_id)
    kind = _KINDS.get(match["type"].casefold()) if match else None
    return Ref(kind, match["group"], match["name"]) if match and kind else None
