"""How a deployment runs: it PUTs each resource, as a client would, once its dependencies exist."""

import json
import uuid
from dataclasses import asdict
from http import HTTPStatus
from typing import Any

from gpuinfra.sandbox.kernel.call import Call, Principal
from gpuinfra.sandbox.kernel.clock import stamp_z
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.errors import ArmError
from gpuinfra.sandbox.kernel.internal_calls import call_inside, pause
from gpuinfra.sandbox.kernel.long_running_operations import FAILED, IN_PROGRESS, LATER
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services.resources.template import Plan, evaluate_outputs, invalid_template
from gpuinfra.sandbox.services.resources.template_expressions import Scope, TemplateError

ACTIVE = frozenset({"Accepted", "Running"})
ATTEMPTS = 5
MAX_SECONDS = 4 * 3600
"""How long Azure waits for a resource."""


def begin_run(call: Call, deployment: Resource, plan: Plan) -> str:
    """Store a deployment and start it. Returns the operation's id."""
    cloud = call.cloud
    operation = cloud.operations.begin(call, deployment, "write", latency="deployment-start", retry_after=(5, 5))
    deployment.hidden = {
        "operation": operation.id,
        "began": cloud.now,
        "principal": asdict(call.principal),
        "values": plan.values,
        "variables": plan.variables,
        "outputs": plan.outputs,
        "secrets": list(plan.secrets),
        "steps": [
            {
                "number": uuid.uuid4().hex[:16].upper(),
                "tracking": str(uuid.uuid4()),
                "state": "waiting",
                "id": planned.id,
                "type": planned.type,
                "name": planned.name,
                "apiVersion": planned.api_version,
                "body": planned.body,
                "after": list(planned.after),
                "attempts": 0,
            }
            for planned in plan.resources
        ],
    }
    cloud.store.put(deployment, cloud.now)
    return operation.id


def start(cloud: Cloud, payload: dict[str, Any]) -> Any:
    """Start the run, unless a fault ends the deployment here."""
    deployment = _deployment(cloud, payload)
    if deployment is None:
        return None
    if failure := payload.get("failure"):
        _end(cloud, deployment, FAILED, error=failure)
        return None
    deployment.properties["provisioningState"] = "Running"
    cloud.store.put(deployment, cloud.now)
    order = {"id": deployment.id, "operation": payload["operation"]}
    cloud.schedule(cloud.now, "deployment-step", order)
    return LATER


def run_step(cloud: Cloud, payload: dict[str, Any]) -> None:
    """Check the resources that are being created, start those that can start, and schedule the next step."""
    deployment = _deployment(cloud, payload)
    if deployment is None:
        cloud.operations.complete(
            payload["operation"], error={"code": "DeploymentCanceled", "message": "The deployment was deleted."}
        )
        return
    steps = deployment.hidden["steps"]
    elapsed = cloud.now - deployment.hidden["began"]
    progress = False
    for step in steps:
        if step["state"] == "running":
            progress = _look(cloud, step, elapsed) or progress
    for step in steps:
        if _is_ready(steps, step):
            progress = _begin(cloud, deployment, step) or progress
    if any(step["state"] == "running" or _is_ready(steps, step) for step in steps) or progress:
        cloud.store.put(deployment, cloud.now)
        cloud.schedule(cloud.now + pause(elapsed, progress=progress), "deployment-step", payload)
        return
    _finish(cloud, deployment, payload["operation"])


def _is_ready(steps: list[dict[str, Any]], step: dict[str, Any]) -> bool:
    return step["state"] == "waiting" and all(steps[index]["state"] == "done" for index in step["after"])


def _deployment(cloud: Cloud, payload: dict[str, Any]) -> Resource | None:
    deployment = cloud.store.get(payload["id"])
    if deployment and deployment.hidden.get("operation") == payload["operation"]:
        return deployment
    return None


def _look(cloud: Cloud, step: dict[str, Any], elapsed: float) -> bool:
    """Update the state of a resource that is being created."""
    operation = cloud.store.get_operation(step["operation"]) or {"status": FAILED}
    if operation["status"] == IN_PROGRESS and elapsed <= MAX_SECONDS:
        return False
    step["ended"] = cloud.now
    if operation["status"] == IN_PROGRESS or "error" in operation:
        late = {"code": "OperationTimedOut", "message": "The operation did not complete in the allotted time."}
        reason = operation.get("error", late)
        step.update(state="failed", status="Conflict")
        step["error"] = {
            "code": "ResourceDeploymentFailure",
            "target": step["id"],
            "message": "The resource write operation failed to complete successfully, because it reached terminal "
            "provisioning state 'Failed'.",
            "details": [reason],
        }
    else:
        step["state"] = "done"
    return True


def _begin(cloud: Cloud, deployment: Resource, step: dict[str, Any]) -> bool:
    """Create a resource. Returns False if that has to be retried later."""
    step.setdefault("started", cloud.now)
    step["attempts"] += 1
    principal = Principal(**deployment.hidden["principal"])
    try:
        answer = call_inside(
            cloud, "PUT", step["id"], step["body"], api_version=step["apiVersion"], principal=principal
        )
    except ArmError as error:
        if _is_passing(error) and step["attempts"] < ATTEMPTS:
            return False
        status = HTTPStatus(error.status).phrase.replace(" ", "")
        text = json.dumps({"error": error.body()}, indent=2).replace("\n", "\r\n")
        step.update(state="failed", ended=cloud.now, status=status, error={"code": status, "message": text})
        return True
    step["status"] = HTTPStatus(answer.status).phrase
    if answer.operation_id:
        step.update(state="running", operation=answer.operation_id)
    else:
        step.update(state="done", ended=cloud.now)
    return True


def _is_passing(error: ArmError) -> bool:
    """Whether ARM itself retries this error."""
    return error.status in {429, 500, 502, 503, 504} or error.code in {"RetryableError", "AnotherOperationInProgress"}


# End


def _finish(cloud: Cloud, deployment: Resource, operation_id: str) -> None:
    details = [step["error"] for step in deployment.hidden["steps"] if step["state"] == "failed"]
    if details:
        error = {
            "code": "DeploymentFailed",
            "target": deployment.id,
            "message": "At least one resource deployment operation failed. Please list deployment operations for "
            "details. Please see https://aka.ms/arm-deployment-operations for usage details.",
            "details": details,
        }
    else:
        try:
            deployment.properties["outputs"] = _outputs(cloud, deployment)
            error = None
        except TemplateError as problem:
            error = {**invalid_template(str(problem)).body(), "code": "DeploymentOutputEvaluationFailed"}
    error = _redacted(error, deployment.hidden["secrets"])
    _end(cloud, deployment, FAILED if error else "Succeeded", error=error)
    cloud.operations.complete(operation_id, error=error)


def _end(cloud: Cloud, deployment: Resource, state: str, *, error: dict[str, Any] | None = None) -> None:
    properties, hidden = deployment.properties, deployment.hidden
    made = [step["id"] for step in hidden["steps"] if step["state"] == "done"]
    properties.update(
        provisioningState=state,
        timestamp=stamp_z(cloud.now),
        duration=f"PT{max(0.0, cloud.now - hidden['began']):.7f}S",
        outputResources=[{"id": each} for each in sorted(made, key=str.lower)],
    )
    if error:
        properties["error"] = error
    secrets = hidden["secrets"]
    steps = [
        {name: _redacted(value, secrets) for name, value in step.items() if name != "body"} for step in hidden["steps"]
    ]
    # Secrets are not stored longer than needed.
    deployment.hidden = {"operation": hidden["operation"], "steps": steps}
    cloud.store.put(deployment, cloud.now)


def _outputs(cloud: Cloud, deployment: Resource) -> dict[str, Any]:
    hidden = deployment.hidden
    group = cloud.store.get(deployment.id.split("/providers/", 1)[0])
    scope = Scope(
        subscription=cloud.subscription,
        tenant=cloud.tenant,
        group=group.body if group else {},
        deployment=deployment.name,
        parameters=hidden["values"],
        variables=hidden["variables"],
        reference=lambda what, full: _reference(cloud, hidden["steps"], what, full=full),
    )
    return evaluate_outputs(hidden["outputs"], scope, tuple(hidden["secrets"]))


def _reference(cloud: Cloud, steps: list[dict[str, Any]], what: str, *, full: bool) -> Any:
    """Return the properties of a resource, by its id or by its name in the template."""
    ids = [step["id"] for step in steps if what.lower() in {step["name"].lower(), step["id"].lower()}]
    resource = cloud.store.get(ids[0] if ids else what)
    if resource is None:
        raise TemplateError(f"The resource referenced in the output, '{what}', is not found")
    return resource.body if full else resource.properties


def _redacted(value: Any, secrets: list[str]) -> Any:
    """Return a JSON value without secrets, which an error may have repeated."""
    if isinstance(value, str):
        for secret in secrets:
            for spelling in (secret, json.dumps(secret)[1:-1]):
                value = value.replace(spelling, "***")
        return value
    if isinstance(value, dict):
        return {name: _redacted(item, secrets) for name, item in value.items()}
    if isinstance(value, list):
        return [_redacted(item, secrets) for item in value]
    return value
