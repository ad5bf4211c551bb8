"""Deployments to the subscription, without resources: their parameters and outputs stay in the deployment history.

https://learn.microsoft.com/azure/azure-resource-manager/templates/deploy-to-subscription and
https://learn.microsoft.com/azure/azure-resource-manager/templates/deployment-history-deletions.
"""

import uuid
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from gpuinfra.sandbox.kernel.access_control import KEPT_IN
from gpuinfra.sandbox.kernel.call import Answer, Call
from gpuinfra.sandbox.kernel.clock import stamp_z
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.errors import ArmError, invalid_content, outside_the_slice
from gpuinfra.sandbox.kernel.routes import SUBSCRIPTION, ResourceId, Service
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services import common
from gpuinfra.sandbox.services.resources.deployment_run import ACTIVE
from gpuinfra.sandbox.services.resources.template import Plan, evaluate_outputs, make_plan
from gpuinfra.sandbox.services.resources.template_expressions import Scope, TemplateError

service = Service()

KIND = "Microsoft.Resources/deployments"
MOST, GROOMED_ABOVE, GROOMED_TO = 800, 700, 600
_ALL = f"{SUBSCRIPTION}/providers/{KIND}"
_ONE = f"{_ALL}/{{name}}"


@service.route("PUT", _ONE)
def _put(call: Call) -> Answer:
    common.require_subscription(call)
    common.check_name(call["name"], r"[-\w._()]{1,64}", "A deployment's name has 1 to 64 letters, digits and -_.().")
    body = common.require_object(call)
    location = common.require_location(call, body, KIND)
    existing = _find(call)
    if existing and existing.properties["provisioningState"] in ACTIVE:
        raise _active(existing, "edit or replace")
    if existing and existing.location != location:
        message = (
            f"Invalid deployment location '{location}'. The deployment '{call['name']}' already exists in location "
            f"'{existing.location}'."
        )
        raise ArmError(409, "InvalidDeploymentLocation", message)
    plan = _plan(call, common.section(body, "properties"))
    if existing is None:
        _make_room(call.cloud)
    deployment = existing or Resource(_id(call), location, {})
    deployment.body = {
        "id": f"/subscriptions/{call.cloud.subscription}/providers/{KIND}/{call['name']}",
        "type": KIND,
        "name": call["name"],
        "location": location,
        "properties": {
            "templateHash": plan.hash,
            "parameters": plan.parameters,
            "mode": "Incremental",
            "provisioningState": "Accepted",
            "timestamp": stamp_z(call.cloud.now),
            "duration": "PT0S",
            "correlationId": call.correlation_id,
            "providers": [],
            "dependencies": [],
        },
    }
    common.set_tags(deployment, body)
    run = str(uuid.uuid4())
    deployment.hidden = {"run": run, "outputs": _outputs(call, plan)}
    call.cloud.store.put(deployment, call.cloud.now)
    end = call.cloud.now + call.cloud.latency.seconds("deployment-start")
    call.cloud.schedule(end, "subscription-deployment-end", {"id": deployment.id, "run": run})
    url = f"{call.base_url}{deployment.body['id']}/operationStatuses/{run}?api-version={call.api_version}"
    headers = {"Azure-AsyncOperation": url, **call.cloud.operations.retry_headers(5)}
    return Answer(200 if existing else 201, deployment.body, headers)


@service.effect("subscription-deployment-end")
def _end(cloud: Cloud, payload: dict[str, Any]) -> None:
    deployment = cloud.store.get(payload["id"])
    if deployment is None or deployment.hidden["run"] != payload["run"]:
        return
    deployment.properties.update(
        provisioningState="Succeeded", timestamp=stamp_z(cloud.now), outputs=deployment.hidden["outputs"]
    )
    cloud.store.put(deployment, cloud.now)


@service.route("POST", f"{_ONE}/validate")
def _validate(call: Call) -> Answer:
    common.require_subscription(call)
    plan = _plan(call, common.section(common.require_object(call), "properties"))
    return Answer(200, {"name": call["name"], "properties": {"parameters": plan.parameters, "mode": "Incremental"}})


@service.get(_ONE)
def _get(call: Call) -> Answer:
    return Answer(200, _require(call).body)


@service.route("GET", _ALL)
def _list(call: Call) -> Answer:
    common.require_subscription(call)
    return common.page(call, kind=KIND, group=KEPT_IN)


@service.route("DELETE", _ONE)
def _delete(call: Call) -> Answer:
    common.require_subscription(call)
    found = _find(call)
    if found is None:
        return Answer(204)
    if found.properties["provisioningState"] in ACTIVE:
        raise _active(found, "delete")
    call.cloud.store.delete(found.id)
    return Answer(204)


@service.route("GET", f"{_ONE}/operationStatuses/{{id}}")
def _get_status(call: Call) -> Answer:
    return Answer(200, {"status": _require(call).properties["provisioningState"]})


def _id(call: Call) -> str:
    return str(ResourceId(call.cloud.subscription, KEPT_IN, "Microsoft.Resources", (("deployments", call["name"]),)))


def _find(call: Call) -> Resource | None:
    return call.cloud.store.get(_id(call))


def _require(call: Call) -> Resource:
    common.require_subscription(call)
    found = _find(call)
    if found is None:
        raise ArmError(404, "DeploymentNotFound", f"Deployment '{call['name']}' could not be found.")
    return found


def _active(deployment: Resource, verb: str) -> ArmError:
    message = f"Unable to {verb} deployment '{deployment.name}': the previous deployment is still active."
    return ArmError(409, "DeploymentActive", message)


def _make_room(cloud: Cloud) -> None:
    """Delete the oldest deployments, as Azure does when the history is nearly full."""
    found = sorted(cloud.store.resources(kind=KIND, group=KEPT_IN), key=lambda each: each.properties["timestamp"])
    if len(found) >= MOST:
        message = f"Creating the deployment would exceed the quota of '{MOST}' deployments."
        raise ArmError(409, "DeploymentQuotaExceeded", message)
    for each in found[: len(found) - GROOMED_TO] if len(found) > GROOMED_ABOVE else []:
        cloud.store.delete(each.id)


def _scope(call: Call) -> Scope:
    cloud = call.cloud
    return Scope(cloud.subscription, cloud.tenant, {}, call["name"], {}, now=datetime.fromtimestamp(cloud.now, UTC))


def _plan(call: Call, properties: dict[str, Any]) -> Plan:
    template = properties.get("template")
    if not isinstance(template, dict):
        raise invalid_content("The request content was invalid: 'properties.template' must be an object.")
    if template.get("resources"):
        raise outside_the_slice(call.method, f"{call.path} with resources")
    return make_plan(template, common.section(properties, "parameters"), _scope(call))


def _outputs(call: Call, plan: Plan) -> dict[str, Any]:
    try:
        scope = replace(_scope(call), parameters=plan.values, variables=plan.variables)
        return evaluate_outputs(plan.outputs, scope, plan.secrets)
    except TemplateError as problem:
        raise ArmError(400, "InvalidTemplate", str(problem)) from None
