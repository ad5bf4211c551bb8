"""The SDK's clients: their credentials, retries and errors, and requests for which the SDK has no typed client."""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError, ServiceRequestError
from azure.core.pipeline.policies import RetryPolicy, SansIOHTTPPolicy
from azure.core.rest import HttpRequest
from azure.identity import (
    AzureCliCredential,
    ChainedTokenCredential,
    ClientSecretCredential,
    CredentialUnavailableError,
    DefaultAzureCredential,
    EnvironmentCredential,
    ManagedIdentityCredential,
    WorkloadIdentityCredential,
)
from azure.mgmt.core.exceptions import ARMErrorFormat

from gpuinfra.diagnostics import Code, Diagnostic, Problem
from gpuinfra.models.names import SUBSCRIPTION
from gpuinfra.provision.azure.access import Access
from gpuinfra.provision.errors import CloudError, Fault, fault_of
from gpuinfra.provision.waiting import Deadline, Interrupt, Progress, Silent

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential, TokenProvider
    from azure.core.pipeline.transport import RequestsTransport
    from azure.mgmt.compute import ComputeManagementClient
    from azure.mgmt.network import NetworkManagementClient
    from azure.mgmt.resource.resources import ResourceManagementClient


@contextmanager
def translated(subject: str = "") -> Iterator[None]:
    """Convert every exception of the SDK in this block to CloudError."""
    try:
        yield
    except AzureError as error:
        raise translate(error, subject) from error
    except OSError as error:  # such as a missing certificate file
        raise CloudError(Fault.UNREACHABLE, type(error).__name__, _first_line(error), subject=subject) from error


def translate(error: AzureError, subject: str = "") -> CloudError:
    """Return the CloudError for an exception of the SDK. The error code takes precedence over class and status."""
    if isinstance(error, ClientAuthenticationError) and not _has_body(error):
        return CloudError(Fault.LOGIN, "CredentialUnavailable", _reasons(error), subject=subject)
    if isinstance(error, HttpResponseError):
        code, message = _innermost(error)
        fault = fault_of(code, message, error.status_code)
        return CloudError(fault, code, message, subject=subject, status=error.status_code)
    if isinstance(error, ServiceRequestError):
        return CloudError(Fault.UNREACHABLE, "ServiceRequestError", _first_line(error), subject=subject)
    return CloudError(Fault.UNREACHABLE, type(error).__name__, _first_line(error), subject=subject)


def _innermost(error: HttpResponseError) -> tuple[str, str]:
    """Return code and message. For a wrapped deployment error, return those of the actual failure."""
    found: Any = error.error
    code, message = getattr(found, "code", None), getattr(found, "message", None)
    if not code:
        code, message = _from_body(error)
    while code in {"DeploymentFailed", "ResourceDeploymentFailure", "Conflict", "InvalidTemplateDeployment"}:
        details = getattr(found, "details", None)
        if not details:
            break
        found = details[0]
        code, message = getattr(found, "code", None) or code, getattr(found, "message", None) or message
    return str(code or f"HTTP {error.status_code}"), " ".join(str(message or error.message).split())


def _from_body(error: HttpResponseError) -> tuple[str | None, str | None]:
    try:
        body = json.loads(error.response.text()) if error.response else {}
        return body["error"]["code"], body["error"].get("message")
    except (ValueError, KeyError, TypeError, AttributeError):
        return None, None


def _has_body(error: HttpResponseError) -> bool:
    return bool(getattr(error.error, "code", None) or _from_body(error)[0])


def _reasons(error: Exception) -> str:
    """Return the first line of a credential chain's error, with the directory's and `az`'s messages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = ("AADSTS", "Authentication failed", "CliCredential: ")
    said = [line for line in lines[1:] if any(word in line for word in telling)]
    return " ".join([*lines[:1], *dict.fromkeys(said)]) or type(error).__name__


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


CONNECT_SECONDS = 10
READ_SECONDS = 60
MAX_COMMAND_SECONDS = 3600.0


class RequestLimits:
    """The limits of a command's requests: deadline, interrupt, where waits are reported, and whether they may write."""

    def __init__(
        self,
        deadline: Deadline | None = None,
        progress: Progress | None = None,
        *,
        writes: bool = True,
        interrupt: Interrupt | None = None,
    ) -> None:
        self.writes = writes
        self.deadline = deadline or Deadline.after(MAX_COMMAND_SECONDS)
        self.progress: Progress = progress or Silent()
        self.interrupt = interrupt or Interrupt()


class Clock(SansIOHTTPPolicy[Any, Any]):
    """Azure's time, from the Date header of its responses, advanced by the local monotonic clock."""

    def __init__(self) -> None:
        self._seen: tuple[datetime, float] | None = None

    def on_response(self, request: Any, response: Any) -> None:  # noqa: ARG002 the base class defines the signature
        """Note the response's date."""
        try:
            date = parsedate_to_datetime(response.http_response.headers["Date"])
        except (KeyError, TypeError, ValueError):
            return
        self._seen = (date.astimezone(UTC), time.monotonic())

    def now(self) -> datetime:
        """Return Azure's time, or the local time before the first response."""
        if self._seen is None:
            return datetime.now(UTC)
        date, noted = self._seen
        return date + timedelta(seconds=time.monotonic() - noted)


class Retries(RetryPolicy[Any, Any]):
    """The SDK's retry policy, with waits that are shown and never exceed the deadline."""

    def __init__(self, limits: RequestLimits) -> None:
        super().__init__(retry_total=12, retry_connect=3, retry_read=3, retry_status=5, retry_backoff_max=20)
        self.limits = limits

    def send(self, request: Any) -> Any:
        """Send the request. In a command that must not write, raise CloudError instead of registering a provider."""
        response = super().send(request)
        if not self.limits.writes and _status(response) == 409 and "MissingSubscriptionReg" in _text(response):
            message = "the subscription does not use this resource provider yet; `gpuinfra up` registers it"
            raise CloudError(Fault.OTHER, "MissingSubscriptionRegistration", message, status=409)
        return response

    def increment(self, settings: dict[str, Any], response: Any = None, error: Any = None) -> bool:
        """Return whether to retry. Throttling does not count as a failure: only the deadline limits it.

        The caller retries a deletion, after a look: meanwhile another client may have created the resource again.
        """
        if response is not None and response.http_request.method == "DELETE" and _status(response) != 429:
            return False
        if error is None and _status(response) == 429:
            settings["total"] += 1
            settings["status"] += 1
        return super().increment(settings, response=response, error=error)

    def sleep(self, settings: dict[str, Any], transport: Any, response: Any = None) -> None:  # noqa: ARG002
        """Wait as long as Azure asks. Raise CloudError if that exceeds the deadline."""
        asked = self.get_retry_after(response) if response else None
        seconds = asked or self.get_backoff_time(settings)
        status = _status(response)
        if seconds > self.limits.deadline.left:
            reason = "Azure asks to wait" if asked else "Azure fails, and the next attempt would be in"
            raise CloudError(
                Fault.THROTTLED if status == 429 else Fault.UNREACHABLE,
                "TooManyRequests" if status == 429 else f"HTTP {status or 'connection'}",
                f"{reason} {seconds:.0f} s, which is beyond the deadline of this command",
                status=status,
            )
        if asked and seconds >= 1:
            self.limits.progress.wait("Azure is throttling" if status == 429 else "Azure is busy", seconds)
        self.limits.interrupt.sleep(seconds)


def _status(response: Any) -> int | None:
    answer = getattr(response, "http_response", None)
    return answer.status_code if answer is not None else None


def _text(response: Any) -> str:
    try:
        return str(response.http_response.text())
    except (UnicodeDecodeError, ValueError):
        return ""


T = TypeVar("T")
_lock = threading.RLock()


class ClientProperty(cached_property[T]):
    """A cached property that one thread at a time creates: concurrent imports of the SDK's modules block each other."""

    def __get__(self, instance: object, owner: type[Any] | None = None) -> T:  # type: ignore[override]
        """Return the client, created on first use."""
        with _lock:
            return super().__get__(instance, owner)


class Clients:
    """The compute, network and resource clients of one subscription, with one credential."""

    def __init__(self, access: Access, limits: RequestLimits | None = None, correlation_id: str | None = None) -> None:
        self.access, self.correlation_id = access, correlation_id
        self.limits = limits or RequestLimits()
        self.clock = Clock()
        # The SDK's warnings would appear between our lines. What matters reaches the user as a Problem.
        logging.getLogger("azure").addHandler(logging.NullHandler())

    @cached_property
    def credential(self) -> TokenCredential:
        """The credential for all requests."""

        return make_credential(self.access)

    @ClientProperty
    def _transport(self) -> RequestsTransport:
        """The connections, which the clients share: each TLS handshake takes several round trips."""
        from azure.core.pipeline.transport import RequestsTransport

        found = RequestsTransport(
            connection_timeout=CONNECT_SECONDS, read_timeout=READ_SECONDS, connection_verify=self.access.ca or True
        )
        found.open()  # threads that open it at the same time would make several sessions
        return found

    @ClientProperty
    def compute(self) -> ComputeManagementClient:
        """The client for VMs, disks, sizes, quota and images."""
        from azure.mgmt.compute import ComputeManagementClient

        return ComputeManagementClient(self.credential, self.access.subscription, **self._options())

    @ClientProperty
    def network(self) -> NetworkManagementClient:
        """The client for VNets, public IPs, NICs and NSGs."""
        from azure.mgmt.network import NetworkManagementClient

        return NetworkManagementClient(self.credential, self.access.subscription, **self._options())

    @ClientProperty
    def resource(self) -> ResourceManagementClient:
        """The client for groups, providers, tags, and any resource by its ID."""
        from azure.mgmt.resource.resources import ResourceManagementClient

        return ResourceManagementClient(self.credential, self.access.subscription, **self._options())

    def _options(self) -> dict[str, Any]:
        headers = {"x-ms-correlation-request-id": self.correlation_id} if self.correlation_id else {}
        return {
            "base_url": self.access.arm,
            "credential_scopes": [self.access.scope],
            "retry_policy": Retries(self.limits),
            "per_retry_policies": [self.clock],
            "headers": headers,
            "transport": self._transport,
            "logging_enable": False,
        }


class Requests:
    """A sender that uses the resource client, and so the same credential, retries and clock."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    def send(
        self,
        method: str,
        path: str,
        api_version: str | None,
        body: dict[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Send one request, and return the JSON object in the response."""
        parameters = {**({"api-version": api_version} if api_version else {}), **(query or {})}
        with translated(path):
            answer = self._clients.resource.send_request(HttpRequest(method, path, params=parameters, json=body))
            if answer.status_code >= 400:
                raise HttpResponseError(response=answer, error_format=ARMErrorFormat)
        try:
            found = answer.json() if answer.content else {}
        except ValueError as error:  # most likely a proxy's error page
            raise CloudError(Fault.UNREACHABLE, "NotJson", "the answer is not Azure's", subject=path) from error
        return found if isinstance(found, dict) else {}

    def pages(self, path: str, api_version: str, query: Mapping[str, str] | None = None) -> Iterator[dict[str, Any]]:
        """Iterate over the items on all pages of a list. The link to the next page is a complete URL."""
        page = self.send("GET", path, api_version, query=query)
        yield from page.get("value") or []
        while link := page.get("nextLink"):
            page = self.send("GET", link, None)
            yield from page.get("value") or []


CHOICE = "AZURE_TOKEN_CREDENTIALS"
# In seconds. `az` is a large program and starts slowly the first time on a busy computer.
AZ_SECONDS = 30


class SubscriptionCliCredential(AzureCliCredential):
    """The `az` login for one subscription. If `az` does not know the subscription, the next credential is tried."""

    def _get_token_base(self, *scopes: str, **options: Any) -> Any:
        try:
            return super()._get_token_base(*scopes, **options)
        except CredentialUnavailableError:
            raise
        except ClientAuthenticationError as error:
            if re.search(r"subscription .*not found", str(error), re.IGNORECASE):
                raise CredentialUnavailableError(message=error.message) from error
            raise


def make_credential(access: Access) -> TokenCredential:
    """Return the credential for all calls. This sends no request yet."""
    options: dict[str, Any] = {"connection_timeout": CONNECT_SECONDS, "read_timeout": READ_SECONDS}
    if access.authority:
        # Microsoft's instance discovery does not know a custom authority.
        options |= {"authority": access.authority, "disable_instance_discovery": True}
    if access.ca:
        options["connection_verify"] = access.ca
    if given := access.client_secret:
        return ClientSecretCredential(given.tenant, given.client_id, given.secret, **options)
    choice = os.environ.get(CHOICE, "").strip().lower()
    if choice == "azureclicredential":
        return _az(access)
    return _chosen(options) if choice else ChainedTokenCredential(*_usual(access, options))


def _usual(access: Access, options: dict[str, Any]) -> list[TokenProvider]:
    found: list[TokenProvider] = [EnvironmentCredential(**options)]
    with suppress(ValueError):  # the variables of a workload identity are not set
        found.append(WorkloadIdentityCredential(**options))
    found.append(_az(access))
    identity = {
        name: value for name, value in options.items() if name not in {"authority", "disable_instance_discovery"}
    }
    found.append(ManagedIdentityCredential(client_id=os.environ.get("AZURE_CLIENT_ID"), **identity))
    return found


def _az(access: Access) -> AzureCliCredential:
    known = access.subscription if re.fullmatch(SUBSCRIPTION, access.subscription) else None
    return SubscriptionCliCredential(subscription=known, process_timeout=AZ_SECONDS)


def _chosen(options: dict[str, Any]) -> TokenCredential:
    try:
        return DefaultAzureCredential(**options)
    except ValueError as error:
        help_line = f"unset {CHOICE}, or set it to one of these"
        raise Problem(Diagnostic(Code.LOGIN_FAILED, "unknown credential", note=str(error), help=help_line)) from error
