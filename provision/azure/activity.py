"""Azure's activity log: https://learn.microsoft.com/rest/api/monitor/activity-logs/list."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from gpuinfra.models.receipt import stamp
from gpuinfra.provision.azure.clients import Clients
from gpuinfra.provision.azure.requests import Requests

API_VERSION = "2015-04-01"
# Azure keeps it for ninety days, and refuses to look for more; what is asked takes a moment to arrive.
KEPT = timedelta(days=90) - timedelta(minutes=5)
# Azure tells its time in whole seconds, by the date of its answers: what has just happened may be after it.
AHEAD = timedelta(seconds=5)
# Of what can be selected. The caller, by Azure's documentation, cannot be: it comes only with all of an event.
SELECTED = "eventTimestamp,operationName,operationId,correlationId,resourceId,status,subStatus,properties"


def read_log(clients: Clients, since: datetime, until: datetime, resource: str | None = None) -> list[dict[str, Any]]:
    """Events of one resource; or of all machines and disks, and then without who did it. The newest first.

    `since` is `until` less KEPT at most. Events of a few seconds after `until` may be among them.
    """
    span = f"eventTimestamp ge '{stamp(since)}' and eventTimestamp le '{stamp(until + AHEAD)}'"
    # Beside the time there can be one condition more, and no other.
    what = f"resourceUri eq '{resource}'" if resource else "resourceProvider eq 'Microsoft.Compute'"
    query = {"$filter": f"{span} and {what}", **({} if resource else {"$select": SELECTED})}
    path = f"/subscriptions/{clients.access.subscription}/providers/Microsoft.Insights/eventtypes/management/values"
    return list(Requests(lambda: clients.resource).pages(path, API_VERSION, query))
