"""Requests that the sandbox makes itself: a deployment's resources, a group's contents, a scheduled shutdown."""

import logging
import uuid
from typing import Any

from gpuinfra.sandbox.kernel.access_control import check_permission
from gpuinfra.sandbox.kernel.call import CLOUD_ITSELF, Answer, Call, Principal
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.errors import ArmError
from gpuinfra.sandbox.kernel.faults import request_error
from gpuinfra.sandbox.kernel.locks import check_locks

logger = logging.getLogger(__name__)

API_VERSION = "2024-11-01"


def call_inside(
    cloud: Cloud,
    method: str,
    path: str,
    body: Any = None,
    *,
    api_version: str = API_VERSION,
    principal: Principal = CLOUD_ITSELF,
) -> Answer:
    """Carry out a request atomically with the rights of a principal. Faults hit it like a client's request."""
    call = Call(
        cloud=cloud,
        method=method,
        path=path,
        parameters={},
        query={"api-version": api_version},
        headers={},
        body=body,
        principal=principal,
        base_url=cloud.base_url,
        correlation_id=str(uuid.uuid4()),
    )
    check_permission(call)
    check_locks(call)
    if fault := cloud.faults.for_internal_request(method, path, cloud.region_of(path, body)):
        raise request_error(fault)
    try:
        with cloud.store.savepoint():
            return cloud.dispatch(call)
    except ArmError:
        raise
    except Exception as error:  # an event that raises would be repeated without end
        logger.exception("%s %s", method, path)
        raise ArmError(500, "SandboxError", f"{type(error).__name__}: {error}") from error


def pause(elapsed: float, *, progress: bool) -> float:
    """Return the seconds until the next check: none after progress, otherwise more the longer it takes."""
    return 0.0 if progress else max(1.0, min(60.0, elapsed / 20))
