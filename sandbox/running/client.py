"""A client of the control endpoints: clock, faults, bill, log. It needs the secret in a file with mode 0600."""

import http.client
import json
import ssl
from functools import cached_property
from pathlib import Path
from typing import Any

from gpuinfra.sandbox.running.description import Description

HEADER = "x-sandbox-secret"
SECRET = "secret"  # noqa: S105 the name of a file
HOST = "127.0.0.1"


class ClientError(Exception):
    """A request to the sandbox failed."""


class UnreachableError(ClientError):
    """The server does not answer."""


class RefusedError(ClientError):
    """The server refused, and its message says why."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class Client:
    """Sends requests to the server of a description."""

    def __init__(self, folder: Path, description: Description, *, timeout: float = 60.0) -> None:
        self._folder, self._description, self._timeout = folder, description, timeout

    @cached_property
    def _trusted(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self._description.ca)

    def get(self, path: str) -> dict[str, Any]:
        """Return the answer at a path, such as `bill` or `log?after=3`."""
        return self._ask("GET", path)

    def post(self, path: str, payload: dict[str, Any]) -> dict[str, Any]:
        return self._ask("POST", path, payload)

    def delete(self, path: str) -> dict[str, Any]:
        return self._ask("DELETE", path)

    def _ask(self, method: str, path: str, payload: dict[str, Any] | None = None) -> dict[str, Any]:
        content = None if payload is None else json.dumps(payload)
        # Not urllib, which would send loopback requests to a proxy from the environment.
        connection = None
        try:
            secret = (self._folder / SECRET).read_text("ascii")
            connection = http.client.HTTPSConnection(
                HOST, self._description.port, timeout=self._timeout, context=self._trusted
            )
            connection.request(
                method, f"/_sandbox/{path}", content, {HEADER: secret, "Content-Type": "application/json"}
            )
            answer = connection.getresponse()
            status, text = answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            where = f"{HOST}:{self._description.port}"
            raise UnreachableError(f"{where} does not answer: {error or type(error).__name__}") from error
        finally:
            if connection is not None:
                connection.close()
        return _read(status, text)


def _read(status: int, text: bytes) -> dict[str, Any]:
    try:
        body = json.loads(text)
        if status == 200 and isinstance(body, dict):
            return body
        raise RefusedError(status, str(body["error"]["code"]), str(body["error"]["message"]))
    except (ValueError, KeyError, TypeError):
        raise RefusedError(status, "NotASandbox", f"the server answered {status} with something else") from None
