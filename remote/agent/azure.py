"""The requests of the VM to Azure: metadata, scheduled events, a token, and its own deallocation."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from gpuinfra.remote.agent.guest import Clock

METADATA_SECONDS, ARM_SECONDS = 3.0, 20.0
MAX_CONTENT, MAX_ERROR = 4 << 20, 1000
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
        self._post(url, headers)

    def _ask_metadata(self, path: str, body: Any = None) -> Any:
        content = None if body is None else json.dumps(body).encode()
        method = "GET" if content is None else "POST"
        headers = {"Metadata": "true", **({"Content-Type": "application/json"} if content else {})}
        url = f"{self._metadata}/{path}"
        with _azure_errors(f"{method} {url.partition('?')[0]}"):
            text = self._ask_directly(method, url, content, headers)
        try:
            return json.loads(text) if text else None
        except ValueError:
            raise AzureError("instance metadata returned invalid JSON") from None

    def _ask_directly(self, method: str, url: str, content: bytes | None, headers: dict[str, str]) -> bytes:
        """Return the response's content. Metadata has a link-local address and refuses requests through a proxy."""
        place = urlsplit(url)
        connection = http.client.HTTPConnection(place.netloc, timeout=METADATA_SECONDS)
        try:
            connection.request(method, f"{place.path}?{place.query}", content, headers)
            response = connection.getresponse()
            self._clock.note(response.getheader("Date"))
            if response.status // 100 != 2:
                raise AzureError(_shorten(response.status, response.read(MAX_ERROR)))
            return response.read(MAX_CONTENT)
        finally:
            connection.close()

    def _post(self, url: str, headers: dict[str, str]) -> None:
        """Send a request to Resource Manager, through the VM's proxy if it has one."""
        # Imported late: it takes longer than everything else in the agent, which rarely needs it.
        import urllib.error
        import urllib.request

        request = urllib.request.Request(url, b"", headers, method="POST")  # noqa: S310 Azure's own
        with _azure_errors(f"POST {url.partition('?')[0]}"):
            try:
                with urllib.request.urlopen(request, timeout=ARM_SECONDS) as response:  # noqa: S310
                    self._clock.note(response.headers.get("Date"))
                    response.read(MAX_CONTENT)
            except urllib.error.HTTPError as error:
                with error:
                    self._clock.note(error.headers.get("Date"))  # even an error has Azure's time
                    raise AzureError(_shorten(error.code, error.read(MAX_ERROR))) from None


def _shorten(status: int, content: bytes) -> str:
    return f"{status} {' '.join(content.decode('utf-8', 'replace').split())[:300]}"


@contextmanager
def _azure_errors(what: str) -> Iterator[None]:
    """Raise every error of a request as an AzureError that names it."""
    try:
        yield
    except (AzureError, OSError, ValueError, EOFError) as error:
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
