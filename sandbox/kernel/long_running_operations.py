"""Long-running operations with ARM's protocol: `Azure-AsyncOperation`, `Location`, `Retry-After`."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from gpuinfra.sandbox.kernel.call import Answer, Call
from gpuinfra.sandbox.kernel.clock import stamp
from gpuinfra.sandbox.kernel.errors import ArmError
from gpuinfra.sandbox.kernel.routes import parse_id
from gpuinfra.sandbox.kernel.store import Resource

if TYPE_CHECKING:
    from gpuinfra.sandbox.kernel.cloud import Cloud

logger = logging.getLogger(__name__)

IN_PROGRESS, SUCCEEDED, FAILED = "InProgress", "Succeeded", "Failed"


@dataclass(frozen=True)
class Operation:
    """A started operation, and where to poll it."""

    id: str
    provider: str
    location: str
    retry_after: tuple[int, int]


class Operations:
    """Starts operations, ends them when they are due, and answers polls."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud

    def begin(  # noqa: PLR0913 all of it is needed, and most by name
        self,
        call: Call,
        resource: Resource,
        verb: str,
        *,
        latency: str,
        effect: str = "",
        payload: Mapping[str, Any] | None = None,
        retry_after: tuple[int, int] = (10, 10),
        nested: str = "",
    ) -> Operation:
        """Start an operation on a resource. When it is due, `effect` is called with `payload` and the resource's `id`.

        `verb` is the end of its name in logs, such as `deallocate`; `latency` is a kind of `sandbox.kernel.clock`,
        and also the effect unless that is given; `retry_after` are the seconds in the first answer and in later ones;
        `nested` is the path of a nested resource below the id.
        """
        target = parse_id(f"{resource.id}{nested}")
        # Microsoft.Compute, Microsoft.Network and Microsoft.Resources differ in the bodies of operations.
        provider = target.namespace or "Microsoft.Resources"
        kinds = [kind for kind, _ in target.pairs] or ["resourceGroups"]
        operation = Operation(str(uuid.uuid4()), provider, resource.location, retry_after)
        now = self.cloud.now
        fault = self.cloud.faults.for_operation(call.method, str(target), resource.location)
        self.cloud.store.put_operation(
            operation.id,
            {
                "provider": provider,
                "location": resource.location,
                "resource": str(target),
                "action": "/".join([*kinds, verb]),
                "status": IN_PROGRESS,
                "start": now,
                "retryAfter": list(retry_after),
                "caller": call.principal.id,
                "correlationId": call.correlation_id,
            },
        )
        seconds = self.cloud.latency.seconds(latency)
        if fault and fault.never_ends:
            return operation
        if fault and fault.slow_seconds:
            seconds += fault.slow_seconds
        order: dict[str, Any] = {"operation": operation.id, "effect": effect or latency}
        order["payload"] = {"id": resource.id, **(payload or {})}
        if fault and fault.error:
            order["error"] = fault.error
        self.cloud.schedule(now + seconds, "operation", order)
        return operation

    def finish(self, order: dict[str, Any]) -> None:
        """Call the effect of a due operation, or apply its fault, and end it."""
        body = self.cloud.store.get_operation(order["operation"]) or {}
        payload = {**order["payload"], "operation": order["operation"]}
        failure = order.get("error")
        if failure:
            # The effect needs to know, so that it leaves what a failed operation leaves in Azure.
            payload["failure"] = failure
        try:
            result = self._effect(order["effect"], payload)
        except ArmError as error:
            self._end(order["operation"], body, FAILED, error=error.body())
        except Exception as error:
            logger.exception("operation %s", order["effect"])
            failure = {"code": "SandboxError", "message": f"{type(error).__name__}: {error}"}
            self._end(order["operation"], body, FAILED, error=failure)
        else:
            self._end(order["operation"], body, FAILED if failure else SUCCEEDED, result=result, error=failure)

    def _effect(self, name: str, payload: dict[str, Any]) -> Any:
        with self.cloud.store.savepoint():
            return self.cloud.effects[name](self.cloud, payload)

    def complete(self, operation_id: str, *, result: Any = None, error: dict[str, Any] | None = None) -> None:
        """End an operation whose effect returned LATER."""
        body = self.cloud.store.get_operation(operation_id)
        if body and body["status"] == IN_PROGRESS:
            self._end(operation_id, body, FAILED if error else SUCCEEDED, result=result, error=error)

    def _end(
        self, operation_id: str, body: dict[str, Any], status: str, *, result: Any = None, error: Any = None
    ) -> None:
        if result == LATER and status == SUCCEEDED:
            return
        body.update(status=status, end=self.cloud.now)
        if error is not None:
            body["error"] = error
        elif result is not None:
            body["result"] = result
        self.cloud.store.put_operation(operation_id, body)

    def logged(self, after: int = 0) -> list[dict[str, Any]]:
        """Return all operations after a number, with state and times, for the control endpoint."""
        return [
            {
                "number": number,
                "id": operation_id,
                "action": body["action"],
                "resource": body["resource"],
                "location": body["location"],
                "status": body["status"],
                "start": stamp(body["start"]),
                "end": stamp(body["end"]) if "end" in body else None,
                **({"error": body["error"]} if "error" in body else {}),
            }
            for number, operation_id, body in self.cloud.store.operations(after)
        ]

    # Answers

    def created(self, call: Call, operation: Operation, body: dict[str, Any], *, new: bool) -> Answer:
        """Return the answer to a PUT or PATCH that continues as an operation: 201 for a new resource, else 200."""
        begun = self.cloud.store.get_operation(operation.id) or {}
        # The activity log shows the answer to a write. Other providers' bodies may hold a deployment's parameters.
        response = {"response": body} if operation.provider == "Microsoft.Compute" else {}
        self.cloud.store.put_operation(operation.id, {**begun, "new": new, **response})
        headers = {
            "Azure-AsyncOperation": self._status_url(call, operation),
            "Azure-AsyncNotification": "Enabled",
            **self.retry_headers(operation.retry_after[0]),
        }
        return Answer(201 if new else 200, body, headers, operation.id)

    def accepted(self, call: Call, operation: Operation, body: Any = None) -> Answer:
        """Return the answer to a POST or DELETE that continues as an operation: 202, with both URLs to poll."""
        headers = {
            "Azure-AsyncOperation": self._status_url(call, operation),
            "Location": self._result_url(call, operation),
            "Azure-AsyncNotification": "Enabled",
            **self.retry_headers(operation.retry_after[0]),
        }
        return Answer(202, body, headers, operation.id)

    def retry_headers(self, seconds: float) -> dict[str, str]:
        """Return when to poll again, in real time.

        ARM's header has whole seconds, and the SDK reads 0 as thirty; below a second there is one in milliseconds.
        """
        real = 0.0 if self.cloud.latency.profile == "instant" else self.cloud.clock.real(seconds)
        if real >= 1:
            return {"Retry-After": str(round(real))}
        return {"x-ms-retry-after-ms": str(max(20, round(real * 1000)))}

    def _status_url(self, call: Call, operation: Operation) -> str:
        return (
            f"{call.base_url}/subscriptions/{self.cloud.subscription}/providers/{operation.provider}/locations/"
            f"{operation.location}/operations/{operation.id}?api-version={call.api_version}"
        )

    def _result_url(self, call: Call, operation: Operation) -> str:
        if operation.provider == "Microsoft.Network":
            return self._status_url(call, operation).replace("/operations/", "/operationResults/")
        return f"{self._status_url(call, operation)}&monitor=true"

    def _require(self, operation_id: str) -> dict[str, Any]:
        body = self.cloud.store.get_operation(operation_id)
        if body is None:
            raise ArmError(404, "NotFound", f"The operation '{operation_id}' could not be found.")
        return body

    def status(self, operation_id: str) -> Answer:
        """Return the state of an operation: 200 for every outcome, as in ARM."""
        body = self._require(operation_id)
        shown: dict[str, Any] = {"status": body["status"]}
        if "error" in body:
            shown["error"] = body["error"]
        if body["provider"] != "Microsoft.Network":
            shown |= {"name": operation_id, "startTime": stamp(body["start"])}
            if "end" in body:
                shown["endTime"] = stamp(body["end"])
            if body.get("result") is not None:
                shown["properties"] = {"output": body["result"]}
        headers = self.retry_headers(body["retryAfter"][1]) if body["status"] == IN_PROGRESS else {}
        return Answer(200, shown, headers)

    def result(self, call: Call, operation_id: str) -> Answer:
        """Return the result of an operation, at its `Location`: 202 while it runs."""
        body = self._require(operation_id)
        if body["status"] == IN_PROGRESS:
            headers = {"Location": f"{call.base_url}{call.path}?{_query(call)}"}
            return Answer(202, None, {**headers, **self.retry_headers(body["retryAfter"][1])})
        if "error" in body:
            raise ArmError(409, body["error"]["code"], body["error"]["message"])
        if body["provider"] == "Microsoft.Network":
            return Answer(204)
        return Answer(200, body.get("result"))


LATER = "later"
"""Returned by an effect whose operation is ended by `Operations.complete`."""


def _query(call: Call) -> str:
    return urlencode(dict(call.query))
