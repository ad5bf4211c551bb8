"""Get a password for an Azure Container Registry with this VM's identity, for one pull. It is written to no file."""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from gpuinfra.remote.wire import Wire

METADATA = "http://169.254.169.254/metadata"
METADATA_SECONDS, EXCHANGE_SECONDS = 3.0, 20.0
# A token for registries only. One for Resource Manager could also deallocate this VM, and no registry may get it.
AUDIENCE = "https://containerregistry.azure.net"
MAX_CONTENT, MAX_DETAIL = 1 << 16, 200
# The registries of public Azure, and nothing that only looks like one: no further labels, no port, ASCII only.
_REGISTRY = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.azurecr\.io")
OBJECT_ID = re.compile(r"[0-9a-fA-F-]{36}")

# Why there is no password.
NO_METADATA = "no-metadata"
NO_IDENTITY = "no-identity"
REFUSED = "refused"
UNREACHABLE = "unreachable"
FAILED = "failed"


class LoginError(Exception):
    """There is no password; `problem` is one of the words above."""

    def __init__(self, problem: str, detail: str, principal: str = "") -> None:
        super().__init__(detail)
        self.problem, self.principal = problem, principal


def azure_registry(host: str) -> str | None:
    """Return the registry's name in lower case if Azure Container Registry serves it, else None."""
    name = host.lower()
    return name if host.isascii() and _REGISTRY.fullmatch(name) else None


def answer_login(wire: Wire, request: dict[str, Any]) -> None:
    """Send a password for the registry, and whose it is, or why there is none."""
    try:
        wire.send_json(_log_in(request["registry"]))
    except LoginError as error:
        wire.send_json({"problem": error.problem, "detail": str(error)[:MAX_DETAIL], "principal": error.principal})


def _log_in(host: str) -> dict[str, Any]:
    registry = azure_registry(host)
    if registry is None:  # the client has checked this, too
        raise LoginError(FAILED, "it is not an Azure Container Registry")
    token = _identity_token()
    return {"password": _exchange(registry, token), "principal": _principal(token)}


def _identity_token() -> str:
    """Return a token of this VM's identity. The metadata service has a link-local address and refuses proxies."""
    # The embedded Azure sets the variable on its machines.
    place = urlsplit(os.environ.get("GPUINFRA_IMDS_ENDPOINT") or METADATA)
    path = f"{place.path}/identity/oauth2/token?api-version=2018-02-01&resource={quote(AUDIENCE, safe='')}"
    connection = http.client.HTTPConnection(place.netloc, timeout=METADATA_SECONDS)
    try:
        connection.request("GET", path, headers={"Metadata": "true"})
        response = connection.getresponse()
        status, content = response.status, response.read(MAX_CONTENT)
    except (OSError, http.client.HTTPException) as error:
        raise LoginError(NO_METADATA, _brief(error)) from None
    finally:
        connection.close()
    answer = _object(content)
    token = answer.get("access_token")
    if status == 200 and isinstance(token, str) and token:
        return token
    reason = str(answer.get("error_description") or "")
    if status == 400 and "identit" in reason.lower():
        raise LoginError(NO_IDENTITY, reason)
    raise LoginError(NO_METADATA if status == 404 else FAILED, f"the metadata service answered {status}: {reason}")


def _exchange(registry: str, token: str) -> str:
    """Return the registry's refresh token for the identity's token."""
    # Imported late: it takes longer than the rest, and few calls need it.
    import urllib.error
    import urllib.request

    class NoRedirect(urllib.request.HTTPRedirectHandler):
        """Treats a redirect as an error: it would send the token to another place."""

        def redirect_request(self, *_: Any) -> None:
            return None

    form = {"grant_type": "access_token", "service": registry, "access_token": token}
    address = f"https://{registry}/oauth2/exchange"
    try:
        opener = urllib.request.build_opener(NoRedirect)
        with opener.open(address, urlencode(form).encode(), timeout=EXCHANGE_SECONDS) as response:
            password = _object(response.read(MAX_CONTENT)).get("refresh_token")
    except urllib.error.HTTPError as error:
        with error:
            # Not the content: it could repeat the token.
            problem = REFUSED if error.code in {401, 403} else FAILED
            raise LoginError(problem, f"{address} answered {error.code}", _principal(token)) from None
    except (OSError, http.client.HTTPException) as error:
        raise LoginError(UNREACHABLE, _brief(getattr(error, "reason", None) or error), _principal(token)) from None
    if not isinstance(password, str) or not password or not password.isascii():
        raise LoginError(FAILED, f"{address} returned no token", _principal(token))
    return password


def _principal(token: str) -> str:
    """Return the object id of the identity in its token, which is not a secret, or an empty text."""
    try:
        part = token.split(".")[1]
        found = _object(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))).get("oid")
    except (IndexError, ValueError):
        return ""
    return found if isinstance(found, str) and OBJECT_ID.fullmatch(found) else ""


def _object(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {}


def _brief(error: object) -> str:
    return str(error) or type(error).__name__
