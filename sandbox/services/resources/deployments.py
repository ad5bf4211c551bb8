"""Template deployments to a resource group: their requests and answers. `deployment_run` runs them."""

from datetime import UTC, datetime
from typing import Any

from gpuinfra.sandbox.kernel.call import Answer, Call
from gpuinfra.sandbox.kernel.clock import stamp_z
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.errors import ArmError, invalid_content, outside_the_slice
from gpuinfra.sandbox.kernel.long_running_operations import IN_PROGRESS
from gpuinfra.sandbox.kernel.routes import GROUP, Service
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services import common
from gpuinfra.sandbox.services.operations import job_url
from gpuinfra.sandbox.services.resources.deployment_run import ACTIVE, begin_run, run_step, start
from gpuinfra.sandbox.services.resources.template import Plan, make_plan
from gpuinfra.sandbox.services.resources.template_expressions import Scope

service = Service()

KIND = "Microsoft.Resources/deployments"
_ALL = f"{GROUP}/providers/{KIND}"
_ONE = f"{_ALL}/{{name}}"


@service.route("PUT", _ONE)
def _put_deployment(call: Call) -> Answer:
    group = common.require_group(call, for_write=True)
    existing = call.cloud.store.get(_id(call))
    if existing and existing.properties["provisioningState"] in ACTIVE:
        raise _active(existing, "edit or replace")
    plan = _plan(call, group)
    deployment = existing or Resource(_id(call), group.location, {})
    deployment.body = _body(call, deployment.id, call["name"], plan, "Accepted")
    operation_id = begin_run(call, deployment, plan)
    url = (
        f"{call.base_url}{deployment.id.replace('/resourceGroups/', '/resourcegroups/')}/operationStatuses/"
        f"{operation_id}?api-version={call.api_version}"
    )
    headers = {"Azure-AsyncOperation": url, **call.cloud.operations.retry_headers(5)}
    return Answer(200 if existing else 201, deployment.body, headers, operation_id)


@service.route("POST", f"{_ONE}/validate")
def validate_deployment(call: Call) -> Answer:
    """Evaluate a template without creating anything."""
    plan = _plan(call, common.require_group(call))
    body = _body(call, _id(call), call["name"], plan, "Succeeded")
    body["properties"]["validatedResources"] = [{"id": planned.id} for planned in plan.resources]
    return Answer(200, body)


@service.get(_ONE)
def _get_deployment(call: Call) -> Answer:
    return Answer(200, _require(call).body)


@service.route("GET", _ALL)
def _list_deployments(call: Call) -> Answer:
    wanted = common.parse_filter(call.query.get("$filter", ""), {"provisioningstate"}).get("provisioningstate")
    return common.page(
        call,
        kind=KIND,
        wanted=lambda each: wanted is None or each.properties["provisioningState"].lower() == wanted.lower(),
    )


@service.route("DELETE", _ONE)
def delete_deployment(call: Call) -> Answer:
    """Delete a deployment from the history; its resources stay."""
    common.require_group(call)
    deployment = call.cloud.store.get(_id(call))
    if deployment is None:
        return Answer(204)
    if deployment.properties["provisioningState"] in ACTIVE:
        raise _active(deployment, "delete")
    operation = call.cloud.operations.begin(call, deployment, "delete", latency="deployment-delete")
    headers = {
        "Location": job_url(call, "DEPLOYMENTDELETIONJOB", deployment.name, operation.id, deployment.location),
        **call.cloud.operations.retry_headers(15),
    }
    return Answer(202, None, headers, operation.id)


@service.route("GET", f"{_ONE}/operationStatuses/{{id}}")
def _get_status(call: Call) -> Answer:
    common.require_group(call)
    body = call.cloud.store.get_operation(call["id"])
    if body is None or body["action"] != "deployments/write":
        raise ArmError(404, "NotFound", f"The operation '{call['id']}' could not be found.")
    if body["status"] != IN_PROGRESS:
        shown = {"status": body["status"]}
        return Answer(200, {**shown, "error": body["error"]} if "error" in body else shown)
    deployment = call.cloud.store.get(body["resource"])
    status = deployment.properties["provisioningState"] if deployment else "Running"
    return Answer(200, {"status": status}, call.cloud.operations.retry_headers(5))


@service.route("GET", f"{_ONE}/operations")
def _list_operations(call: Call) -> Answer:
    deployment = _require(call)
    shown = [_operation(deployment, step) for step in deployment.hidden["steps"] if step["state"] != "waiting"]
    return Answer(200, {"value": shown})


@service.route("GET", f"{_ONE}/operations/{{id}}")
def _get_operation(call: Call) -> Answer:
    deployment = _require(call)
    for step in deployment.hidden["steps"]:
        if step["number"].lower() == call["id"].lower() and step["state"] != "waiting":
            return Answer(200, _operation(deployment, step))
    raise ArmError(404, "DeploymentOperationNotFound", f"Deployment operation '{call['id']}' could not be found.")


service.effect("deployment-start")(start)
service.effect("deployment-step")(run_step)


@service.effect("deployment-delete")
def _deployment_delete(cloud: Cloud, payload: dict[str, Any]) -> None:
    if "failure" not in payload:
        cloud.store.delete(payload["id"])


def _id(call: Call) -> str:
    common.check_name(call["name"], r"[-\w._()]{1,64}", "A deployment's name has 1 to 64 letters, digits and -_.().")
    return common.resource_id(call, KIND)


def _require(call: Call) -> Resource:
    common.require_group(call)
    found = call.cloud.store.get(_id(call))
    if found is None:
        raise ArmError(404, "DeploymentNotFound", f"Deployment '{call['name']}' could not be found.")
    return found


def _active(deployment: Resource, verb: str) -> ArmError:
    return ArmError(
        409,
        "DeploymentActive",
        f"Unable to {verb} deployment '{deployment.name}': previous deployment from "
        f"'{deployment.properties['timestamp']}' is still active. Please see https://aka.ms/arm-deploy for usage "
        "details.",
    )


def _plan(call: Call, group: Resource) -> Plan:
    properties = common.section(common.require_object(call), "properties")
    for name in ("templateLink", "parametersLink", "onErrorDeployment"):
        if properties.get(name) is not None:
            raise outside_the_slice(call.method, f"{call.path} with {name}")
    mode = properties.get("mode", "Incremental")
    if not isinstance(mode, str) or mode.lower() not in {"incremental", "complete"}:
        raise invalid_content("The request content was invalid: 'mode' must be Incremental or Complete.")
    if mode.lower() == "complete":
        raise outside_the_slice(call.method, f"{call.path} with mode Complete")
    template = properties.get("template")
    if not isinstance(template, dict):
        raise invalid_content("The request content was invalid: 'properties.template' must be an object.")
    plan = make_plan(template, common.section(properties, "parameters"), scope_of(call.cloud, group, call["name"]))
    for planned in plan.resources:
        if not isinstance(call.cloud.router.find("PUT", planned.id), tuple):
            raise outside_the_slice("PUT", planned.id)
    return plan


def scope_of(cloud: Cloud, group: Resource, name: str) -> Scope:
    """Return what a template in a resource group can refer to."""
    now = datetime.fromtimestamp(cloud.now, UTC)
    return Scope(cloud.subscription, cloud.tenant, group.body, name, {}, now=now)


def _body(call: Call, deployment_id: str, name: str, plan: Plan, state: str) -> dict[str, Any]:
    return {
        "id": deployment_id,
        "name": name,
        "type": KIND,
        "properties": {
            "templateHash": plan.hash,
            "parameters": plan.parameters,
            "mode": "Incremental",
            "provisioningState": state,
            "timestamp": stamp_z(call.cloud.now),
            "duration": "PT0S",
            "correlationId": call.correlation_id,
            "providers": _providers(call.cloud, plan),
            "dependencies": [
                {"dependsOn": [_target(plan.resources[index]) for index in each.after], **_target(each)}
                for each in plan.resources
                if each.after
            ],
        },
    }


def _target(planned: Any) -> dict[str, str]:
    return {"id": planned.id, "resourceType": planned.type, "resourceName": planned.name}


def _providers(cloud: Cloud, plan: Plan) -> list[dict[str, Any]]:
    found: dict[str, dict[str, list[str]]] = {}
    for planned in plan.resources:
        namespace, _, kind = planned.type.partition("/")
        locations = found.setdefault(namespace, {}).setdefault(kind, [])
        region = cloud.catalogue.region(str(planned.body.get("location")))
        if region and region.name not in locations:
            locations.append(region.name)
    return [
        {
            "namespace": namespace,
            "resourceTypes": [{"resourceType": kind, "locations": places} for kind, places in kinds.items()],
        }
        for namespace, kinds in found.items()
    ]


def _operation(deployment: Resource, step: dict[str, Any]) -> dict[str, Any]:
    states = {"running": "Running", "done": "Succeeded", "failed": "Failed"}
    properties = {
        "provisioningOperation": "Create",
        "provisioningState": states[step["state"]],
        "timestamp": stamp_z(step.get("ended") or step["started"]),
        "duration": f"PT{max(0.0, (step.get('ended') or step['started']) - step['started']):.7f}S",
        "trackingId": step["tracking"],
        "statusCode": step.get("status", "Accepted"),
        "targetResource": {"id": step["id"], "resourceType": step["type"], "resourceName": step["name"]},
    }
    if "error" in step:
        properties["statusMessage"] = {"error": step["error"]}
    return {
        "id": f"{deployment.id}/operations/{step['number']}",
        "operationId": step["number"],
        "properties": properties,
    }
