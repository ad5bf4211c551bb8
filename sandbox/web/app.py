"""The HTTP application: authentication, access control, throttling, faults, then dispatch."""

import asyncio
import contextlib
import json
import logging
import re
import time
import uuid
from collections.abc import Callable
from email.utils import formatdate
from typing import Any
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gpuinfra.sandbox.kernel.access_control import check_permission
from gpuinfra.sandbox.kernel.call import Answer, Call, Principal
from gpuinfra.sandbox.kernel.clock import stamp
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.errors import ArmError, invalid_content
from gpuinfra.sandbox.kernel.faults import AFTER, BEFORE, HOLDS, request_error
from gpuinfra.sandbox.kernel.locks import check_locks
from gpuinfra.sandbox.web.authority import Authority
from gpuinfra.sandbox.web.control import Control

logger = logging.getLogger(__name__)

METHODS = ["GET", "HEAD", "PUT", "PATCH", "POST", "DELETE", "OPTIONS"]
MAX_BODY = 4 * 1024 * 1024
OPEN_PATHS = ("/metadata/endpoints", "/api/retail/prices")
"""Paths that need no token, as in Azure."""


class _Dropped(Exception):  # noqa: N818 a signal inside this file
    """The connection was cut by a fault."""


class RequestHandler:
    """Answers every request. State changes happen between awaits, so that each is atomic."""

    def __init__(self, cloud: Cloud, control: Control, carry_out: Callable[[], None]) -> None:
        self.cloud, self.control, self._carry_out_orders = cloud, control, carry_out
        self.authority = Authority(cloud.store, cloud.clock)
        self.throttle = control.throttle

    async def answer(self, request: Request) -> Response:
        """Answer a request. Its `Date` is the simulated time, which leases use."""
        response = await self._answer(request)
        # Before the answer: a VM that is reported as deallocated must not be reachable.
        self._carry_out_orders()
        response.headers["Date"] = formatdate(self.cloud.clock.now(), usegmt=True)
        return response

    async def _answer(self, request: Request) -> Response:
        base_url = f"https://{request.url.netloc}"
        # As ARM does, accept empty parts: `az lock` sends one where a nested resource would name its parent.
        path = re.sub("/{2,}", "/", request.scope["raw_path"].decode("ascii", "replace").split("?")[0])
        if path.startswith("/_sandbox/"):
            return await self.control.answer(request)
        parts = path.strip("/").split("/")
        if path.endswith("/.well-known/openid-configuration"):
            return JSONResponse(self.authority.openid_configuration(base_url, parts[0]))
        if path.endswith(("/oauth2/v2.0/token", "/oauth2/token")) and request.method == "POST":
            form = dict(parse_qsl((await request.body()).decode("utf-8", "replace")))
            status, body = self.authority.token_for_client(form)
            return JSONResponse(body, status)
        return await self._answer_arm(request, path, base_url)

    async def _answer_arm(self, request: Request, path: str, base_url: str) -> Response:
        started, began = self.cloud.clock.now(), time.monotonic()
        correlation_id = request.headers.get("x-ms-correlation-request-id") or str(uuid.uuid4())
        headers = {}
        try:
            call = await self._read(request, path, base_url, correlation_id)
            answer = await self._carry_out(request, call)
            headers = self.throttle.headers(call)
        except _Dropped:
            self._log(request, path, 0, started, began, correlation_id)
            return Response(status_code=500)  # never seen: the connection is gone
        except ArmError as error:
            answer = Answer(error.status, error.envelope(), dict(error.headers))
        except ClientDisconnect:
            raise
        except Exception as error:
            logger.exception("%s %s", request.method, path)
            answer = Answer(500, ArmError(500, "SandboxError", f"{type(error).__name__}: {error}").envelope())
        self._log(request, path, answer.status, started, began, correlation_id)
        return _response(request, answer, correlation_id, {**headers, **answer.headers}, self.cloud.now)

    async def _read(self, request: Request, path: str, base_url: str, correlation_id: str) -> Call:
        query = {name.lower(): value for name, value in request.query_params.multi_items()}
        is_open = path.rstrip("/").lower() in OPEN_PATHS
        header = request.headers.get("authorization")
        principal = Principal("", is_owner=True) if is_open else self.authority.principal(header)
        if "api-version" not in query and not is_open:
            message = "The api-version query parameter (?api-version=) is required for all requests."
            raise ArmError(400, "MissingApiVersionParameter", message)
        return Call(
            cloud=self.cloud,
            method=request.method,
            path=path,
            parameters={},
            query=query,
            headers={name.lower(): value for name, value in request.headers.items()},
            body=await _body(request),
            principal=principal,
            base_url=base_url,
            correlation_id=correlation_id,
        )

    async def _carry_out(self, request: Request, call: Call) -> Answer:
        cloud = self.cloud
        cloud.settle()
        check_permission(call)
        check_locks(call)
        self.throttle.check(call)
        resource_id = _resource_of(call.path)
        fault = cloud.faults.for_request(call.method, resource_id, cloud.region_of(resource_id, call.body))
        if fault and fault["name"] == "slow":
            await asyncio.sleep(cloud.clock.real(float(fault.get("seconds", 5))))
        elif fault and fault["name"] in BEFORE:
            raise await self._cut(request, fault)
        elif fault and fault["name"] in AFTER:
            with contextlib.suppress(ArmError):  # a lost answer may be an error as well
                self._dispatch(call)
            raise await self._cut(request, fault)
        elif fault:
            raise request_error(fault)
        return self._dispatch(call)

    def _dispatch(self, call: Call) -> Answer:
        answer = self.cloud.dispatch(call)
        self.cloud.settle()
        return answer

    async def _cut(self, request: Request, fault: dict[str, Any]) -> _Dropped:
        try:
            if fault["name"] in HOLDS:
                await self.control.holds.hold(request, fault)
        finally:
            abort(request.scope["state"]["transport"])  # also if the server stops meanwhile
        return _Dropped()

    def _log(self, request: Request, path: str, status: int, started: float, began: float, correlation_id: str) -> None:
        self.cloud.store.add_request(
            {
                "method": request.method,
                "path": path,
                "query": request.url.query,
                "status": status,
                "start": stamp(started),
                "end": stamp(self.cloud.clock.now()),
                "seconds": round(time.monotonic() - began, 6),
                "correlationId": correlation_id,
            }
        )


def abort(transport: asyncio.WriteTransport) -> None:
    """Cut a connection, unless its client has closed it."""
    with contextlib.suppress(AttributeError):  # what Python 3.11.2 raises for it
        transport.abort()


async def _body(request: Request) -> Any:
    content, size = b"", 0
    # A body that is too large is still read to its end: a client that is sending would miss the answer.
    async for chunk in request.stream():
        size += len(chunk)
        content = content + chunk if size <= MAX_BODY else b""
    if size > MAX_BODY:
        message = f"The request content size exceeds the maximum size of {MAX_BODY} bytes."
        raise ArmError(413, "RequestContentTooLarge", message)
    if not content.strip():
        return None
    try:
        return read_json(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise invalid_content(f"The request content was invalid and could not be deserialized: '{error}'.") from None


def _resource_of(path: str) -> str:
    """Return the id of the resource that a path is about, without a POST's verb."""
    parts = path.strip("/").split("/")
    lowered = [part.lower() for part in parts]
    if "providers" in lowered and (len(parts) - lowered.index("providers")) % 2 and len(parts) > 8:
        parts = parts[:-1]
    return "/" + "/".join(parts)


def _response(request: Request, answer: Answer, correlation_id: str, headers: dict[str, str], now: float) -> Response:
    request_id = str(uuid.uuid4())
    content = b"" if answer.body is None or request.method == "HEAD" else json.dumps(answer.body).encode()
    common = {
        "Cache-Control": "no-cache",
        "Pragma": "no-cache",
        "Expires": "-1",
        "Strict-Transport-Security": "max-age=31536000; includeSubDomains",
        "X-Content-Type-Options": "nosniff",
        "x-ms-request-id": request_id,
        "x-ms-correlation-request-id": correlation_id,
        "x-ms-routing-request-id": f"SANDBOX:{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now))}:{request_id}",
    }
    client_id = request.headers.get("x-ms-client-request-id")
    if client_id:
        common["x-ms-client-request-id"] = client_id
    if content:
        common["Content-Type"] = "application/json; charset=utf-8"
    return Response(content, answer.status, {**common, **headers})


def make_app(cloud: Cloud, control: Control, carry_out: Callable[[], None]) -> Starlette:
    """Return the application; `carry_out` starts to carry out new orders for guests."""
    gate = RequestHandler(cloud, control, carry_out)
    return Starlette(routes=[Route("/{path:path}", gate.answer, methods=METHODS)])


# Each part matches to its end, closed or not, so that scanning is linear.
_PARTS = re.compile(
    r"""(?P<text>"(?:[^"\\]|\\.)*+(?:"|\\?\Z))"""
    r"""|(?P<comment>//[^\n]*+|/\*.*?(?:\*/|\Z))"""
    r"""|(?P<name>[A-Za-z_$][\w$]*+)(?P<colon>\s*+:)?""",
    re.DOTALL,
)


def read_json(text: str) -> Any:
    """Parse JSON as ARM does, with comments and unquoted names: `az` sends template files as they are."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except ValueError:
        plain = _PARTS.sub(_plain, text)
        if plain == text:
            raise
        return json.loads(plain, parse_constant=_refuse_constant)


def _plain(found: re.Match[str]) -> str:
    if found["comment"]:
        return " "
    return f'"{found["name"]}"{found["colon"]}' if found["colon"] else found[0]


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")
