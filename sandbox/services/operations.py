"""The endpoints where clients poll long-running operations."""

import base64
import json
import time

from gpuinfra.sandbox.kernel.call import Answer, Call
from gpuinfra.sandbox.kernel.errors import ArmError
from gpuinfra.sandbox.kernel.long_running_operations import IN_PROGRESS
from gpuinfra.sandbox.kernel.routes import SUBSCRIPTION, Service
from gpuinfra.sandbox.services.common import require_subscription

service = Service()


@service.route("GET", f"{SUBSCRIPTION}/providers/Microsoft.Compute/locations/{{location}}/operations/{{id}}")
@service.route("GET", f"{SUBSCRIPTION}/providers/Microsoft.Network/locations/{{location}}/operations/{{id}}")
def _get_operation(call: Call) -> Answer:
    require_subscription(call)
    if call.query.get("monitor", "").lower() == "true":
        return call.cloud.operations.result(call, call["id"])
    return call.cloud.operations.status(call["id"])


@service.route("GET", f"{SUBSCRIPTION}/providers/Microsoft.Network/locations/{{location}}/operationResults/{{id}}")
def _get_operation_result(call: Call) -> Answer:
    require_subscription(call)
    return call.cloud.operations.result(call, call["id"])


def job_url(call: Call, job: str, name: str, operation_id: str, location: str) -> str:
    """Return the URL to poll for a deletion by Microsoft.Resources. As in Azure, its last part is opaque base64."""
    described = {"jobId": f"{job}-{name.upper()}|{operation_id.upper()}-{location.upper()}", "jobLocation": location}
    encoded = base64.urlsafe_b64encode(json.dumps(described, separators=(",", ":")).encode()).rstrip(b"=").decode()
    return _url(call, encoded)


def answer_result(call: Call, encoded: str) -> Answer:
    """Return 202 with a new `Location` while the operation runs, then an empty answer; raise its error if it failed."""
    job, operation_id = _read(encoded)
    body = call.cloud.store.get_operation(operation_id)
    if body is None or body["provider"] != "Microsoft.Resources":
        raise ArmError(404, "NotFound", "The operation could not be found.")
    if body["status"] == IN_PROGRESS:
        headers = {"Location": _url(call, encoded), **call.cloud.operations.retry_headers(body["retryAfter"][1])}
        return Answer(202, None, headers)
    if error := body.get("error"):
        raise ArmError(409, error["code"], error["message"], details=error.get("details"))
    return Answer(200 if job.startswith("RESOURCEGROUP") else 204)


def _read(encoded: str) -> tuple[str, str]:
    try:
        described = json.loads(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
        job, _, rest = described["jobId"].rpartition("|")
        return job, rest[:36].lower()
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ArmError(400, "InvalidOperationResult", "The operation's identifier is invalid.") from None


def _url(call: Call, encoded: str) -> str:
    cloud = call.cloud
    return (
        f"{call.base_url}/subscriptions/{cloud.subscription}/operationresults/{encoded}"
        f"?api-version={call.api_version}&t={time.time_ns() // 100}"
    )
