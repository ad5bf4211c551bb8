"""Operations that are asked after at `/operationresults/{job}` only: what Microsoft.Resources deletes."""

from __future__ import annotations

import base64
import json
import time

from gpuinfra.sandbox.kernel.call import Answer, Call
from gpuinfra.sandbox.kernel.errors import ArmError
from gpuinfra.sandbox.kernel.operations import IN_PROGRESS


def job_url(call: Call, job: str, name: str, operation_id: str, location: str) -> str:
    """Where to ask. The last part is base64 of the job's name, as in Azure; clients must not look into it."""
    described = {"jobId": f"{job}-{name.upper()}|{operation_id.upper()}-{location.upper()}", "jobLocation": location}
    encoded = base64.urlsafe_b64encode(json.dumps(described, separators=(",", ":")).encode()).rstrip(b"=").decode()
    return _url(call, encoded)


def answer_result(call: Call, encoded: str) -> Answer:
    """202 with a new `Location` while it goes on; then an empty answer, or the error it ended with."""
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
