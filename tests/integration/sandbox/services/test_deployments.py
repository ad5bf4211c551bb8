"""Deployments of templates: order, expressions, outputs, failures, and what must never be shown."""

import json
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.integration.sandbox.machine_help import Place
from tests.integration.sandbox.recordings import DATA, shape
from tests.integration.sandbox.servers import Sandbox

API = "api-version=2024-11-01"
SECRET = "corRect-horse9"
IDENTITIES = "Microsoft.ManagedIdentity/userAssignedIdentities"
NETWORKS = "Microsoft.Network/virtualNetworks"


def template(*resources: Any, **more: Any) -> dict[str, Any]:
    head = {"$schema": "https://schema.management.azure.com/x#", "contentVersion": "1.0.0.0"}
    return {**head, "resources": list(resources), **more}


def resource(kind: str, name: str, *after: str, **more: Any) -> dict[str, Any]:
    head = {"type": kind, "name": name, "apiVersion": "2024-01-01", "location": "eastus", "dependsOn": list(after)}
    return {**head, **more}


def network(name: str, *after: str) -> dict[str, Any]:
    subnet = {"name": "inner", "properties": {"addressPrefix": "10.0.0.0/24"}}
    space = {"addressPrefixes": ["10.0.0.0/16"]}
    return resource(NETWORKS, name, *after, properties={"addressSpace": space, "subnets": [subnet]})


class Deployments:
    """The deployments of one group."""

    def __init__(self, sandbox: Sandbox, group: str = "demo") -> None:
        self.sandbox = sandbox
        self.group = f"/subscriptions/{sandbox.subscription}/resourceGroups/{group}"
        sandbox.resource.resource_groups.create_or_update(group, {"location": "eastus"})

    def path(self, name: str = "one", rest: str = "") -> str:
        return f"{self.group}/providers/Microsoft.Resources/deployments/{name}{rest}?{API}"

    def put(self, content: Any, name: str = "one", **parameters: Any) -> tuple[int, dict[str, str], Any]:
        given = {each: {"value": value} for each, value in parameters.items()}
        properties = {"mode": "Incremental", "template": content, "parameters": given}
        return self.sandbox.http("PUT", self.path(name), {"properties": properties})

    def get(self, name: str = "one") -> Any:
        return self.sandbox.http("GET", self.path(name))[2]

    def state(self, name: str = "one") -> str:
        return str(self.get(name)["properties"]["provisioningState"])

    def error(self, content: Any, **parameters: Any) -> tuple[str, str]:
        status, _, body = self.put(content, **parameters)
        assert status in {400, 501}, body
        return body["error"]["code"], body["error"]["message"]

    def names(self) -> list[str | None]:
        return [each.name for each in self.sandbox.resource.resources.list_by_resource_group("demo")]


@pytest.fixture
def deployments(sandbox: Sandbox) -> Deployments:
    return Deployments(sandbox)


def test_deployment_creates_resources_and_returns_outputs(deployments: Deployments) -> None:
    content = template(
        network("[variables('network')]"),
        resource(IDENTITIES, "[format('{0}-{{id}}-{1}', toLower(parameters('prefix')), 7)]".replace("{{id}}", "id")),
        parameters={"prefix": {"type": "string", "defaultValue": "Team"}, "count": {"type": "int"}},
        variables={"network": "[concat(parameters('prefix'), 'Net')]", "deep": {"list": [{"name": "found"}]}},
        outputs={
            "space": {
                "type": "array",
                "value": f"[reference(resourceId('{NETWORKS}', variables('network'))).addressSpace.addressPrefixes]",
            },
            "place": {"type": "string", "value": "[resourceGroup().location]"},
            "deep": {"type": "string", "value": "[variables('deep').list[0].name]"},
            "escaped": {"type": "string", "value": "[[not an expression]"},
            "unique": {"type": "string", "value": "[uniqueString(resourceGroup().id)]"},
            "same": {"type": "bool", "value": "[equals(guid('a', 'b'), guid('a', 'b'))]"},
            "subscription": {"type": "string", "value": "[subscription().subscriptionId]"},
        },
    )
    status, headers, body = deployments.put(content, count=3)
    assert (status, body["properties"]["provisioningState"]) == (201, "Accepted")
    assert "location" not in headers
    url = headers["azure-asyncoperation"].removeprefix(deployments.sandbox.endpoint)
    assert "/operationStatuses/" in url
    assert deployments.sandbox.http("GET", url)[2] == {"status": "Succeeded"}
    properties = deployments.get()["properties"]
    outputs = {name: output["value"] for name, output in properties["outputs"].items()}
    assert outputs.pop("space") == ["10.0.0.0/16"]
    assert len(outputs.pop("unique")) == 13
    assert outputs == {
        "place": "eastus",
        "deep": "found",
        "escaped": "[not an expression]",
        "same": True,
        "subscription": deployments.sandbox.subscription,
    }
    assert properties["parameters"] == {
        "prefix": {"type": "String", "value": "Team"},
        "count": {"type": "Int", "value": 3},
    }
    assert deployments.names() == ["team-id-7", "TeamNet"]
    assert deployments.put(content, count=3)[0] == 200


def test_resources_are_created_in_dependency_order(deployments: Deployments) -> None:
    deployments.sandbox.control("POST", "profile", {"profile": "realistic"})
    content = template(
        resource(IDENTITIES, "last", f"[resourceId('{NETWORKS}', 'second')]"),
        network("second", "[concat('microsoft.network/VIRTUALNETWORKS/', 'first')]"),
        network("first"),
        resource(IDENTITIES, "free"),
        resource(IDENTITIES, "named", "free", "never", condition="[equals('a', 'a')]"),
        resource(IDENTITIES, "never", condition="[equals('a', 'b')]"),
    )
    deployments.put(content)
    seen: list[str | None] = []
    states = [deployments.state()]
    for _ in range(60):
        deployments.sandbox.control("POST", "clock", {"advance": 1})
        seen += [name for name in deployments.names() if name not in seen]
        states += [deployments.state()]
        if states[-1] == "Succeeded":
            break
    assert list(dict.fromkeys(states)) == ["Accepted", "Running", "Succeeded"]
    assert sorted(str(name) for name in seen[:3]) == ["first", "free", "named"], "what is independent starts together"
    assert seen[3:] == ["second", "last"]
    status, _, listed = deployments.sandbox.http("GET", deployments.path(rest="/operations"))
    assert status == 200
    shown = {each["properties"]["targetResource"]["resourceName"]: each["properties"] for each in listed["value"]}
    assert {each["provisioningState"] for each in shown.values()} == {"Succeeded"}
    assert shown["first"]["timestamp"] <= shown["second"]["timestamp"]


def test_failed_resource_fails_the_deployment_and_its_dependents(deployments: Deployments) -> None:
    fault = {"name": "SkuNotAvailable", "method": "PUT", "type": "virtualNetworks", "resource": "bad"}
    deployments.sandbox.control("POST", "faults", fault)
    broken = {"name": "AllocationFailed", "method": "PUT", "type": "virtualNetworks", "resource": "broken"}
    deployments.sandbox.control("POST", "faults", broken)
    content = template(
        network("bad"), network("broken"), resource(IDENTITIES, "after", "bad"), resource(IDENTITIES, "other")
    )
    _, headers, _ = deployments.put(content)
    url = headers["azure-asyncoperation"].removeprefix(deployments.sandbox.endpoint)
    answer = deployments.sandbox.http("GET", url)[2]
    assert (answer["status"], answer["error"]["code"]) == ("Failed", "DeploymentFailed")
    by_code = {detail["code"]: detail for detail in answer["error"]["details"]}
    assert json.loads(by_code["Conflict"]["message"])["error"]["code"] == "SkuNotAvailable"
    inner = by_code["ResourceDeploymentFailure"]
    assert [detail["code"] for detail in inner["details"]] == ["AllocationFailed"]
    assert inner["target"].endswith("/virtualNetworks/broken")
    assert deployments.get()["properties"]["error"] == answer["error"]
    assert "after" not in deployments.names()
    assert "other" in deployments.names()


def test_transient_error_is_retried(deployments: Deployments) -> None:
    deployments.sandbox.control("POST", "faults", {"name": "ServiceUnavailable", "method": "PUT", "resource": "later"})
    deployments.put(template(resource(IDENTITIES, "later")))
    assert deployments.state() == "Running"
    deployments.sandbox.control("POST", "clock", {"advance": 60})
    assert deployments.state() == "Succeeded"


def test_invalid_template_is_refused(deployments: Deployments) -> None:
    plain = resource(IDENTITIES, "some")
    number = {"parameters": {"n": {"type": "int"}}}
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (template(resource(IDENTITIES, "[magic('x')]")), {}, "'magic'"),
        (template(resource(IDENTITIES, "[parameters('absent')]")), {}, "'absent'"),
        (template(resource(IDENTITIES, "[concat('a' 'b')]")), {}, "concat"),
        (template(resource(IDENTITIES, "[" + "concat(" * 200 + ")" * 200 + "]")), {}, "nested"),
        (template(resource(IDENTITIES, "[reference('x').y]")), {}, "reference"),
        (template(resource(IDENTITIES, "[variables('x').y]"), variables={"x": {"z": 1}}), {}, "'y'"),
        (template(plain, **number), {}, "'n'"),
        (template(plain, **number), {"n": "text"}, "'n'"),
        (template(plain), {"unknown": 1}, "unknown"),
        (template(plain, plain), {}, "multiple times"),
        (template(resource(IDENTITIES, "one", "two"), resource(IDENTITIES, "two", "one")), {}, "Circular"),
        (template(resource(IDENTITIES, "one", "nowhere")), {}, "'nowhere'"),
        (template(resource(IDENTITIES, "one/two")), {}, "segment"),
        (template(resource(IDENTITIES, "")), {}, "'name'"),
        (template("text"), {}, "resource"),
        ({"resources": []}, {}, "$schema"),
        (template(plain, outputs={"o": {"type": "thing", "value": 1}}), {}, "'o'"),
    ]
    for content, parameters, said in cases:
        code, message = deployments.error(content, **parameters)
        assert code == "InvalidTemplate", (content, message)
        assert said in message, (content, message)
    assert deployments.names() == []


def test_malformed_deployment_body_is_refused(deployments: Deployments) -> None:
    plain = template(resource(IDENTITIES, "some"))
    bodies: list[Any] = [
        None,
        [],
        {},
        {"properties": 3},
        {"properties": {"template": []}},
        {"properties": {"template": plain, "parameters": []}},
        {"properties": {"template": plain, "parameters": {"x": 3}}},
        {"properties": {"template": plain, "mode": "Complete"}},
        {"properties": {"template": plain, "mode": {}}},
        {"properties": {"templateLink": {"uri": "https://example.com"}}},
        {"properties": {"template": {**plain, "resources": {}}}},
        {"properties": {"template": {**plain, "variables": 3}}},
        {"properties": {"template": template(resource(IDENTITIES, "a", copy={"name": "x", "count": 2}))}},
        {"properties": {"template": template(resource("Microsoft.Web/sites", "a"))}},
        {"properties": {"template": template({**resource(IDENTITIES, "a"), "dependsOn": "b"})}},
        {"properties": {"template": template(resource(IDENTITIES, "a", condition="maybe"))}},
    ]
    for body in bodies:
        for method, rest in (("PUT", ""), ("POST", "/validate")):
            status, _, answer = deployments.sandbox.http(method, deployments.path(rest=rest), body)
            assert status in {400, 501}, (body, answer)
    assert deployments.names() == []


def test_validation_creates_nothing(deployments: Deployments) -> None:
    body = {"properties": {"template": template(network("net")), "mode": "Incremental"}}
    status, _, answer = deployments.sandbox.http("POST", deployments.path(rest="/validate"), body)
    assert status == 200
    assert [each["id"] for each in answer["properties"]["validatedResources"]] == [
        f"{deployments.group}/providers/{NETWORKS}/net"
    ]
    assert deployments.names() == []
    assert deployments.sandbox.http("GET", deployments.path())[0] == 404


def test_deployments_can_be_listed_read_and_deleted(deployments: Deployments) -> None:
    http = deployments.sandbox.http
    deployments.put(template(resource(IDENTITIES, "some")), "first")
    deployments.put(template(), "second")
    listed = http("GET", f"{deployments.group}/providers/Microsoft.Resources/deployments/?{API}")[2]
    assert [each["name"] for each in listed["value"]] == ["first", "second"]
    failed = f"{deployments.group}/providers/Microsoft.Resources/deployments?{API}"
    assert http("GET", f"{failed}&$filter=provisioningState%20eq%20'Failed'")[2]["value"] == []
    assert http("HEAD", deployments.path("first"))[0] == 204
    status, headers, _ = http("DELETE", deployments.path("first"))
    assert status == 202
    assert http("GET", headers["location"].removeprefix(deployments.sandbox.endpoint))[0] == 204
    assert http("HEAD", deployments.path("first"))[0] == 404
    assert http("DELETE", deployments.path("first"))[0] == 204
    assert deployments.names() == ["some"], "what it made stays"


def test_running_deployment_cannot_be_replaced(deployments: Deployments) -> None:
    deployments.sandbox.control("POST", "profile", {"profile": "realistic"})
    deployments.put(template(network("net")))
    assert deployments.put(template(network("net")))[2]["error"]["code"] == "DeploymentActive"
    assert deployments.sandbox.http("DELETE", deployments.path())[2]["error"]["code"] == "DeploymentActive"


def test_secrets_are_never_shown(deployments: Deployments) -> None:
    content = template(
        resource(IDENTITIES, "nowhere", location="[parameters('password')]"),
        resource(IDENTITIES, "fine"),
        parameters={"password": {"type": "securestring"}, "more": {"type": "secureObject"}},
        outputs={"leak": {"type": "string", "value": "[concat('x', parameters('password'))]"}},
    )
    answers = [deployments.put(content, password=SECRET, more={"inner": [SECRET]})]
    assert answers[0][2]["properties"]["parameters"] == {
        "password": {"type": "SecureString"},
        "more": {"type": "SecureObject"},
    }
    assert deployments.state() == "Failed", "the region does not exist, and the error names it"
    working = {**content, "resources": [resource(IDENTITIES, "fine", tags={"a": "b"})]}
    answers += [deployments.put(working, "two", password=SECRET, more={"inner": [SECRET]})]
    assert deployments.get("two")["properties"]["outputs"] == {"leak": {"type": "String"}}
    for name in ("one", "two"):
        status = answers[name == "two"][1]["azure-asyncoperation"].removeprefix(deployments.sandbox.endpoint)
        paths = [deployments.path(name), deployments.path(name, "/operations"), status]
        answers += [deployments.sandbox.http("GET", path) for path in paths]
    answers += [deployments.put(content, "three", password=[SECRET], more={})]
    shown = json.dumps([answer[1:] for answer in answers])
    assert SECRET.lower() not in shown.lower()
    kept = deployments.sandbox.server.cloud.store.get(deployments.path("two").partition("?")[0])
    assert kept is not None
    assert SECRET not in json.dumps(kept.hidden)


def recorded(name: str) -> Any:
    file = DATA / "arm-golden" / name
    if not file.exists():
        pytest.skip("the recorded traffic is not here")
    return json.loads(file.read_text())


def of_group(text: Any, sandbox: Sandbox, subscription: str, group: str) -> Any:
    return json.loads(
        json.dumps(text)
        .replace(subscription, sandbox.subscription)
        .replace(f"resourceGroups/{group}", "resourceGroups/demo")
    )


def test_template_of_az_vm_create_creates_a_vm(sandbox: Sandbox) -> None:
    request = recorded("az_2.91_vm_create_deployment_request.json")
    deployments = Deployments(sandbox)
    sandbox.control("POST", "faults", {"name": "no-boot", "count": 0})
    request = of_group(request, sandbox, "00000000-0000-0000-0000-00000000cafe", "rg1")
    status, headers, body = sandbox.http("PUT", deployments.path(), {"properties": request})
    assert status == 201, body
    answer = sandbox.http("GET", headers["azure-asyncoperation"].removeprefix(sandbox.endpoint))[2]
    assert answer == {"status": "Succeeded"}
    machine: Any = sandbox.compute.virtual_machines.get("demo", "vm1", expand="instanceView")
    assert [each.code for each in machine.instance_view.statuses] == [
        "ProvisioningState/succeeded",
        "PowerState/running",
    ]
    # The shape is that of another recording of the same template.
    pairs = (("deployment_put_201_vm_template.json", body), ("deployment_get_200.json", deployments.get()))
    for name, mine in pairs:
        told = shape({**recorded(name)["response_body"]})
        own = shape(mine)
        missing = {place for place in told if own.get(place) != told[place] and "adminPassword" not in place}
        assert missing == set(), name


def test_group_deletion_starts_with_vms(sandbox: Sandbox) -> None:
    place = Place(sandbox)
    place.make("m")
    sandbox.control("POST", "profile", {"profile": "realistic"})
    path = f"/subscriptions/{sandbox.subscription}/resourceGroups/{place.group}?{API}"
    assert sandbox.http("DELETE", path)[0] == 202
    seen: list[set[str]] = []
    for _ in range(50):
        sandbox.control("POST", "clock", {"advance": 4})
        left = {kind.split("/")[0] for kind in place.left()}
        if not seen or seen[-1] != left:
            seen.append(left)
        if sandbox.server.cloud.store.get(path.partition("?")[0]) is None:
            break
    assert "networkInterfaces" in seen[0]
    assert "virtualMachines" in seen[0]
    without_machine = next(left for left in seen if "virtualMachines" not in left)
    assert "networkInterfaces" in without_machine, "the machine goes before its card"
    assert seen[-1] == set()
    assert sandbox.control("GET", "bill")["machines"][0]["powerState"] == "deleted"
    assert not sandbox.resource.resource_groups.check_existence(place.group)


# Dates


def test_deployment_uses_the_sandbox_clock(deployments: Deployments) -> None:
    deployments.sandbox.control("POST", "clock", {"advance": 40 * 86400})
    now = {"type": "string", "defaultValue": "[utcNow('u')]"}
    plain = {"type": "string", "defaultValue": "[utcNow()]"}
    later = {"type": "string", "defaultValue": "[dateTimeAdd(utcNow('u'), '-P1DT1S', 's')]"}
    until = "[dateTimeAdd(parameters('now'), 'P1DT2H3M4S', 'yyyy-MM-ddTHH:mm:ssZ')]"
    content = template(
        parameters={"now": now, "plain": plain, "later": later},
        variables={"until": until},
        outputs={
            "until": {"type": "string", "value": "[variables('until')]"},
            "time": {"type": "string", "value": "[dateTimeAdd('20261116T235901Z', 'PT59S', 'HHmm:00')]"},
        },
    )
    assert deployments.put(content)[0] == 201
    properties = deployments.get()["properties"]
    moment = datetime.fromisoformat(properties["parameters"]["now"]["value"])
    status = deployments.sandbox.control("GET", "status")
    assert abs(moment.timestamp() - status["now"]) < 60
    assert properties["parameters"]["plain"]["value"] == f"{moment:%Y%m%dT%H%M%SZ}"
    assert properties["parameters"]["later"]["value"] == f"{moment - timedelta(days=1, seconds=1):%Y-%m-%dT%H:%M:%S}"
    assert datetime.fromisoformat(properties["outputs"]["until"]["value"]) == moment + timedelta(days=1, seconds=7384)
    assert properties["outputs"]["time"]["value"] == "0000:00"
    assert deployments.put(content, now="2026-11-16T08:00:00Z")[0] == 200
    assert deployments.get()["properties"]["outputs"]["until"]["value"] == "2026-11-17T10:03:04Z"


def test_utc_now_is_allowed_only_in_parameter_defaults(deployments: Deployments) -> None:
    for section in ({"variables": {"now": "[utcNow()]"}}, {"resources": [network("[utcNow()]")]}):
        code, message = deployments.error({**template(), **section})
        assert code == "InvalidTemplate"
        assert "'utcNow' is not expected at this location" in message
    deployments.put(template(outputs={"now": {"type": "string", "value": "[utcNow()]"}}))
    assert deployments.state() == "Failed"


@pytest.mark.parametrize(
    ("expression", "code"),
    [
        ("dateTimeAdd('2026-11-16T08:00:00Z', '4h', 'u')", "InvalidTemplate"),
        ("dateTimeAdd('2026-11-16T08:00:00Z', 'P', 'u')", "InvalidTemplate"),
        ("dateTimeAdd('2026-11-16T08:00:00Z', 'PT', 'u')", "InvalidTemplate"),
        ("dateTimeAdd('2026-11-16T08:00:00Z', 'P1DT', 'u')", "InvalidTemplate"),
        ("dateTimeAdd('2026-11-16T08:00:00Z', 'P99999999999D', 'u')", "InvalidTemplate"),
        ("dateTimeAdd('9999-12-31T08:00:00Z', 'P1D', 'u')", "InvalidTemplate"),
        ("dateTimeAdd('soon', 'PT4H', 'u')", "InvalidTemplate"),
        ("dateTimeAdd(7, 'PT4H', 'u')", "InvalidTemplate"),
        ("dateTimeAdd('2026-11-16T08:00:00Z')", "InvalidTemplate"),
        ("dateTimeAdd('2026-11-16T08:00:00Z', 'P1Y', 'u')", "NotInSandbox"),
        ("dateTimeAdd('2026-11-16T08:00:00Z', 'PT4H')", "NotInSandbox"),
        ("dateTimeAdd('2026-11-16T08:00:00Z', 'PT4H', 'R')", "NotInSandbox"),
        ("dateTimeAdd('2026-11-16T08:00:00Z', 'PT4H', 'yyyy-M-d')", "NotInSandbox"),
        ("dateTimeAdd('2026-11-16T08:00:00Z', 'PT4H', 'hh:mm tt')", "NotInSandbox"),
    ],
)
def test_invalid_date_is_refused(deployments: Deployments, expression: str, code: str) -> None:
    assert deployments.error(template(variables={"x": f"[{expression}]"}))[0] == code


def test_bracket_is_escaped_only_if_it_is_closed(deployments: Deployments) -> None:
    texts = {"both": "[[a]", "half": "[a", "two": "[[a", "in": "a[b]"}
    deployments.put(template(outputs={name: {"type": "string", "value": text} for name, text in texts.items()}))
    outputs = deployments.get()["properties"]["outputs"]
    shown = {name: output["value"] for name, output in outputs.items()}
    assert shown == {"both": "[a]", "half": "[a", "two": "[[a", "in": "a[b]"}
