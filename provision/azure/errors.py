"""Convert the SDK's exceptions to CloudError."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError, ServiceRequestError

from gpuinfra.provision.errors import CloudError, Fault, fault_of


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
