"""Requests that the cloud makes of itself: a deployment's resources, a group's contents, a schedule's shutdown."""

from __future__ import annotations

import logging
import uuid
from typing import Any

from gpuinfra.sandbox.kernel.call import CLOUD_ITSELF, Answer, Call, Principal
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.errors import ArmError
from gpuinfra.sandbox.kernel.faults import request_error
from gpuinfra.sandbox.web.authorization import check_permission

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
    """Carry out a request, all or nothing, with the rights of a principal. Faults hit it as if it came from outside."""
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
    if fault := cloud.faults.for_inner_request(method, path, _region(cloud, path, body)):
        raise request_error(fault)
    try:
        with cloud.store.savepoint():
            return cloud.dispatch(call)
    except ArmError:
        raise
    except Exception as error:  # an event that raises would happen again for ever
        logger.exception("%s %s", method, path)
        raise ArmError(500, "SandboxError", f"{type(error).__name__}: {error}") from error


def _region(cloud: Cloud, path: str, body: Any) -> str:
    if isinstance(body, dict) and isinstance(body.get("location"), str):
        return str(body["location"]).replace(" ", "").lower()
    resource = cloud.store.get(path)
    return resource.location if resource else ""


def pause(elapsed: float, *, progress: bool) -> float:
    """How long to wait before looking again: not at all after progress, and the longer, the longer it goes on."""
    return 0.0 if progress else max(1.0, min(60.0, elapsed / 20))
