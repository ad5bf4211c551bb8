"""Read Azure's activity log: https://learn.microsoft.com/rest/api/monitor/activity-logs/list."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from gpuinfra.models.receipt import stamp
from gpuinfra.provision.azure.clients import Clients
from gpuinfra.provision.azure.requests import Requests

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
    return list(Requests(lambda: clients.resource).pages(path, API_VERSION, query))
