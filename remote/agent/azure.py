"""The requests of the VM to Azure: metadata, scheduled events, a token, and its own deallocation."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from gpuinfra.remote.agent.clock import Clock

METADATA_SECONDS, ARM_SECONDS = 3.0, 20.0
METADATA_VERSION, EVENTS_VERSION, TOKEN_VERSION = "2021-02-01", "2020-07-01", "2018-02-01"
COMPUTE_VERSION = "2024-11-01"
PUBLIC = "https://management.azure.com"
# By `azEnvironment` in instance metadata. A token is valid only for Resource Manager of its own cloud.
MANAGERS = {
    "azurepubliccloud": PUBLIC,
    "azureusgovernmentcloud": "https://management.usgovcloudapi.net",
    "azurechinacloud": "https://management.chinacloudapi.cn",
}


def manager_of(cloud: str) -> str:
    """Return the Resource Manager of a cloud, by its name in instance metadata; public Azure's by default."""
    return MANAGERS.get(cloud.lower(), PUBLIC)


class AzureError(Exception):
    """Azure refused a request, or did not answer."""


class Azure:
    """The requests that this VM can send to Azure."""

    def __init__(self, clock: Clock, environment: Mapping[str, str]) -> None:
        self._clock = clock
        self._metadata = environment.get("GPUINFRA_IMDS_ENDPOINT") or "http://169.254.169.254/metadata"
        self._arm = environment.get("GPUINFRA_ARM_ENDPOINT")
        # Metadata has a link-local address and refuses requests through a proxy.
        self._direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._outward = urllib.request.build_opener()

    def compute(self) -> dict[str, Any]:
        """Return this VM's metadata, including its tags."""
        found = self._ask_metadata(f"instance/compute?api-version={METADATA_VERSION}")
        if not isinstance(found, dict):
            raise AzureError("instance metadata does not describe a VM")
        return found

    def events(self) -> Any:
        """Return the scheduled events of this VM."""
        return self._ask_metadata(f"scheduledevents?api-version={EVENTS_VERSION}")

    def acknowledge(self, event: str) -> None:
        """Tell Azure that this event can start now."""
        body = {"StartRequests": [{"EventId": event}]}
        self._ask_metadata(f"scheduledevents?api-version={EVENTS_VERSION}", body)

    def deallocate(self, machine: str, cloud: str) -> None:
        """Deallocate this VM in this cloud. Return when Azure has accepted the request."""
        if not machine:
            raise AzureError("instance metadata has not returned this VM's resource ID")
        manager = manager_of(cloud)
        path = f"identity/oauth2/token?api-version={TOKEN_VERSION}&resource={manager}/"
        answer = self._ask_metadata(path)
        token = answer.get("access_token") if isinstance(answer, dict) else None
        if not token:
            raise AzureError("instance metadata returned no token")
        url = f"{(self._arm or manager).rstrip('/')}{machine}/deallocate?api-version={COMPUTE_VERSION}"
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        request = urllib.request.Request(url, b"", headers, method="POST")  # noqa: S310 Azure's own
        self._send(self._outward, request, ARM_SECONDS)

    def _ask_metadata(self, path: str, body: Any = None) -> Any:
        content = None if body is None else json.dumps(body).encode()
        headers = {"Metadata": "true", **({"Content-Type": "application/json"} if content else {})}
        request = urllib.request.Request(f"{self._metadata}/{path}", content, headers)  # noqa: S310 Azure's own
        text = self._send(self._direct, request, METADATA_SECONDS)
        try:
            return json.loads(text) if text else None
        except ValueError:
            raise AzureError("instance metadata returned invalid JSON") from None

    def _send(self, opener: urllib.request.OpenerDirector, request: urllib.request.Request, seconds: float) -> bytes:
        """Return the response's content. Every response has Azure's time, even an error."""
        what = f"{request.get_method()} {request.full_url.partition('?')[0]}"
        try:
            with opener.open(request, timeout=seconds) as response:
                self._clock.note(response.headers.get("Date"))
                content: bytes = response.read(4 * 1024 * 1024)
                return content
        except urllib.error.HTTPError as error:
            with error:
                self._clock.note(error.headers.get("Date"))
                text = error.read(1000).decode("utf-8", "replace")
            raise AzureError(f"{what}: {error.code} {' '.join(text.split())[:300]}") from None
        except (OSError, ValueError, EOFError) as error:
            raise AzureError(f"{what}: {error}") from None
        except Exception as error:  # http.client has its own exceptions
            raise AzureError(f"{what}: {type(error).__name__}: {error}") from None


def read_notice(events: Any, machine: str) -> dict[str, Any] | None:
    """Return the scheduled event that evicts this spot VM, or None."""
    found = events.get("Events") if isinstance(events, dict) else None
    for event in found if isinstance(found, list) else []:
        if not isinstance(event, dict) or event.get("EventType") != "Preempt" or not event.get("EventId"):
            continue
        names = event.get("Resources")
        # Azure writes VMs of a scale set as `_name`.
        known = {str(name).lower().lstrip("_") for name in names} if isinstance(names, list) else set()
        if machine.lower() in known:
            return event
    return None
