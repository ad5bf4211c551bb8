"""The instance metadata service (IMDS), in Azure at 169.254.169.254; here each VM has a URL with its `vmId`."""

import json
import time
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.faults import IDENTITY_REFUSED, US_GOVERNMENT
from gpuinfra.sandbox.kernel.routes import parse_id
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.web.authority import Authority


def instance_document(cloud: Cloud, machine: Resource) -> dict[str, Any]:
    """Return the document. Numbers and booleans are strings in it, as in Azure."""
    return {"compute": _compute(cloud, machine), "network": {"interface": _interfaces(cloud, machine)}}


def environment_of(cloud: Cloud, machine: Resource) -> str:
    """Return which of Azure's clouds the machine is in."""
    is_government = cloud.faults.look(US_GOVERNMENT, resource_id=machine.id, region=machine.location)
    return "AzureUSGovernmentCloud" if is_government else "AzurePublicCloud"


def _compute(cloud: Cloud, machine: Resource) -> dict[str, Any]:
    body, properties = machine.body, machine.properties
    storage = properties.get("storageProfile") or {}
    image = storage.get("imageReference") or {}
    profile = properties.get("osProfile") or {}
    linux = profile.get("linuxConfiguration") or {}
    tags: dict[str, str] = body.get("tags") or {}
    plan = body.get("plan") or {}
    keys = (linux.get("ssh") or {}).get("publicKeys") or []
    return {
        "azEnvironment": environment_of(cloud, machine),
        "customData": "",
        "evictionPolicy": properties.get("evictionPolicy", ""),
        "isHostCompatibilityLayerVm": "false",
        "licenseType": properties.get("licenseType", ""),
        "location": machine.location,
        "name": machine.name,
        "offer": image.get("offer", ""),
        "osProfile": {
            "adminUsername": profile.get("adminUsername", ""),
            "computerName": profile.get("computerName", ""),
            "disablePasswordAuthentication": str(bool(linux.get("disablePasswordAuthentication"))).lower(),
        },
        "osType": (storage.get("osDisk") or {}).get("osType", "Linux"),
        "placementGroupId": "",
        "plan": {name: plan.get(name, "") for name in ("name", "product", "publisher")},
        "platformFaultDomain": "0",
        "platformUpdateDomain": "0",
        "priority": properties.get("priority", ""),
        "provider": "Microsoft.Compute",
        "publicKeys": [{"keyData": key.get("keyData", ""), "path": key.get("path", "")} for key in keys],
        "publisher": image.get("publisher", ""),
        "resourceGroupName": machine.group,
        "resourceId": machine.id,
        "sku": image.get("sku", ""),
        "storageProfile": {"imageReference": image},
        "subscriptionId": cloud.subscription,
        "tags": ";".join(f"{name}:{value}" for name, value in tags.items()),
        "tagsList": [{"name": name, "value": value} for name, value in tags.items()],
        "userData": machine.hidden.get("userData", ""),
        "version": image.get("exactVersion", image.get("version", "")),
        "vmId": properties.get("vmId", ""),
        "vmScaleSetName": "",
        "vmSize": (properties.get("hardwareProfile") or {}).get("vmSize", ""),
        "zone": next(iter(body.get("zones") or []), ""),
    }


def _interfaces(cloud: Cloud, machine: Resource) -> list[dict[str, Any]]:
    references = (machine.properties.get("networkProfile") or {}).get("networkInterfaces") or []
    found = [cloud.store.get(reference["id"]) for reference in references if reference.get("id")]
    return [_interface(cloud, interface) for interface in found if interface is not None]


def _interface(cloud: Cloud, interface: Resource) -> dict[str, Any]:
    configurations = interface.properties.get("ipConfigurations") or []
    parts = [configuration.get("properties") or {} for configuration in configurations]
    return {
        "ipv4": {
            "ipAddress": [
                {"privateIpAddress": part.get("privateIPAddress", ""), "publicIpAddress": _public(cloud, part)}
                for part in parts
            ],
            "subnet": [subnet for part in parts if (subnet := _subnet(cloud, part)) is not None],
        },
        "ipv6": {"ipAddress": []},
        "macAddress": str(interface.properties.get("macAddress", "")).replace("-", "").replace(":", ""),
    }


def _public(cloud: Cloud, part: dict[str, Any]) -> str:
    reference = (part.get("publicIPAddress") or {}).get("id")
    address = cloud.store.get(reference) if reference else None
    return str(address.properties.get("ipAddress", "")) if address else ""


def _subnet(cloud: Cloud, part: dict[str, Any]) -> dict[str, str] | None:
    reference = (part.get("subnet") or {}).get("id")
    if not reference:
        return None
    parsed = parse_id(reference)
    network = cloud.store.get(str(parsed.parent))
    subnets = network.properties["subnets"] if network else []
    own = (each["properties"] for each in subnets if each["name"].lower() == parsed.name.lower())
    properties: dict[str, Any] = next(own, {})
    prefix = properties.get("addressPrefix") or next(iter(properties.get("addressPrefixes") or []), "")
    address, _, length = str(prefix).partition("/")
    return {"address": address, "prefix": length}


_MACHINES = "microsoft.compute/virtualmachines"
_INCARNATIONS = "scheduled-events"
MAX_BODY = 64 * 1024
MANAGERS = {
    "AzurePublicCloud": "https://management.azure.com",
    "AzureUSGovernmentCloud": "https://management.usgovcloudapi.net",
}
"""Tokens for the resource manager of another cloud are refused."""


class Refusal(Exception):  # noqa: N818 it is an answer
    """An error answer."""

    def __init__(self, status: int, error: str, description: str) -> None:
        super().__init__(description)
        self.status, self.body = status, {"error": error, "error_description": description}


Action = Callable[[Request, Resource, bytes], Response]
"""Answers a request of a machine, given the content of a POST."""


class Metadata:
    """Answers guests. State changes happen between awaits, so that each is atomic."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self.authority = Authority(cloud.store, cloud.clock)

    def endpoint(self, act: Action) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint for an action. The `Date` of its answers is the simulated time, which leases use."""

        async def answer(request: Request) -> Response:
            response = await self._answer(request, act)
            response.headers["Date"] = formatdate(self.cloud.clock.now(), usegmt=True)
            return response

        return answer

    async def _answer(self, request: Request, act: Action) -> Response:
        try:
            content = await request.body() if request.method == "POST" else b""
            _check(request, content)
            self.cloud.settle()
            with self.cloud.store.transaction():
                return act(request, self._machine(request.path_params["vm_id"]), content)
        except Refusal as refusal:
            return JSONResponse(refusal.body, refusal.status)

    def _machine(self, vm_id: str) -> Resource:
        row = self.cloud.store.connection.execute(
            "SELECT id FROM resources WHERE type = ? AND json_extract(body, '$.properties.vmId') = ?",
            (_MACHINES, vm_id.lower()),
        ).fetchone()
        machine = self.cloud.store.get(row[0]) if row else None
        state = self.cloud.meter.state(machine.key) if machine else None
        if machine is None or state is None or state[0] != "running":
            raise Refusal(404, "not_found", "No running machine has this id")
        if self.cloud.guests_stopping[machine.properties["vmId"]]:
            # The VM may be on again while processes of the previous boot still end. They get no token for it.
            raise Refusal(404, "not_found", "The machine's guest is being stopped")
        return machine

    # Tokens

    def token(self, request: Request, machine: Resource, _: bytes) -> Response:
        """Return a token for one of the machine's identities."""
        resource = request.query_params.get("resource")
        if not resource:
            raise Refusal(400, "invalid_request", "Required query variable 'resource' is missing")
        principal, client = self._identity(request, machine)
        manager = MANAGERS[environment_of(self.cloud, machine)]
        if resource.rstrip("/") in set(MANAGERS.values()) - {manager}:
            description = f"AADSTS500011: The resource principal named {resource} was not found in the tenant."
            raise Refusal(400, "invalid_resource", description)
        if self.cloud.faults.look(IDENTITY_REFUSED, resource_id=machine.id, region=machine.location):
            raise Refusal(403, "access_denied", "The identity cannot be used at the moment")
        token = self.authority.token(principal, client, owner=False, audience=resource)
        # Guests have the real time, and compare with that.
        now, seconds = int(time.time()), int(token["expires_in"])
        return JSONResponse(
            {
                "access_token": token["access_token"],
                "client_id": client,
                "expires_in": str(seconds),
                "expires_on": str(now + seconds),
                "ext_expires_in": str(token["ext_expires_in"]),
                "not_before": str(now),
                "resource": resource,
                "token_type": token["token_type"],
            }
        )

    def _identity(self, request: Request, machine: Resource) -> tuple[str, str]:
        """Return principal and client of the requested identity, else of the system-assigned, else of the only one."""
        identity = machine.body.get("identity") or {}
        own = (identity.get("principalId"), machine.hidden.get("clientId"))
        assigned = [
            (self.cloud.store.get(name), name.lower()) for name in (identity.get("userAssignedIdentities") or {})
        ]
        found = [(each.properties, name) for each, name in assigned if each is not None]
        query = request.query_params
        wanted = {
            "clientId": query.get("client_id"),
            "principalId": query.get("object_id") or query.get("principal_id"),
            "id": query.get("msi_res_id") or query.get("mi_res_id"),
        }
        if any(wanted.values()):
            known = [{"principalId": own[0], "clientId": own[1], "id": None}] if own[0] else []
            known += [{**properties, "id": name} for properties, name in found]
            for each in known:
                if all(not value or str(each[name]).lower() == value.lower() for name, value in wanted.items()):
                    return each["principalId"], each["clientId"]
        elif own[0] and own[1]:
            return own[0], own[1]
        elif len(found) == 1:
            return found[0][0]["principalId"], found[0][0]["clientId"]
        elif found:
            raise Refusal(
                400,
                "invalid_request",
                "Multiple user assigned identities exist, please specify the clientId / resourceId of the identity in "
                "the token request",
            )
        raise Refusal(400, "invalid_request", "Identity not found")

    # The instance

    def instance(self, request: Request, machine: Resource, _: bytes) -> Response:
        """Return the instance document, or a part of it."""
        value: Any = instance_document(self.cloud, machine)
        for part in filter(None, request.path_params.get("path", "").split("/")):
            if isinstance(value, dict) and part in value:
                value = value[part]
            elif isinstance(value, list) and part.isdecimal() and len(part) < 6 and int(part) < len(value):
                value = value[int(part)]
            else:
                raise Refusal(404, "not_found", "Not found")
        if request.query_params.get("format") == "text":
            if isinstance(value, dict | list):
                names = value if isinstance(value, dict) else range(len(value))
                return PlainTextResponse("\n".join(f"{name}/" for name in names))
            return PlainTextResponse(str(value))
        if isinstance(value, dict | list):
            return JSONResponse(value)
        raise Refusal(404, "not_found", "A single value is given as format=text only")

    # Scheduled events

    def scheduled_events(self, request: Request, machine: Resource, content: bytes) -> Response:
        """Return what Azure is going to do to the machine; a POST says that the guest is ready for it."""
        if request.method == "POST":
            return self._start(machine, content)
        events = machine.hidden.get("scheduledEvents") or []
        return JSONResponse({"DocumentIncarnation": self._incarnation(machine, events), "Events": events})

    def _incarnation(self, machine: Resource, events: list[Any]) -> int:
        """Return a number that grows whenever the events change."""
        known = self.cloud.store.setting(_INCARNATIONS, {})
        vm_id = machine.properties["vmId"]
        number, before = known.get(vm_id, [1, []])
        if before != events:
            number += 1
            self.cloud.store.set_setting(_INCARNATIONS, {**known, vm_id: [number, events]})
        return int(number)

    def _start(self, machine: Resource, content: bytes) -> Response:
        try:
            wanted = {request["EventId"] for request in json.loads(content)["StartRequests"]}
        except (ValueError, TypeError, KeyError):
            raise Refusal(400, "invalid_request", "StartRequests with an EventId each are expected") from None
        events = machine.hidden.get("scheduledEvents") or []
        if not wanted or not wanted <= {event["EventId"] for event in events}:
            raise Refusal(400, "invalid_request", "No such event")
        for event in events:
            if event["EventId"] in wanted:
                event["EventStatus"] = "Started"
        self.cloud.store.put(machine, self.cloud.now)
        # An eviction that the guest is ready for need not wait for the end of the notice.
        self.cloud.store.connection.execute(
            "UPDATE events SET due = ? WHERE kind = 'machine-evict' AND due > ? "
            "AND json_extract(payload, '$.vmId') = ?",
            (self.cloud.now, self.cloud.now, machine.properties["vmId"]),
        )
        return Response(status_code=200)


def _check(request: Request, content: bytes) -> None:
    if len(content) > MAX_BODY:
        raise Refusal(413, "request_too_large", "The request is too large")
    if request.headers.get("metadata", "").lower() != "true":
        raise Refusal(400, "invalid_request", "Required metadata header not specified")
    # A proxy adds it, and a proxy is not the guest.
    if "x-forwarded-for" in request.headers:
        raise Refusal(400, "invalid_request", "Request header 'X-Forwarded-For' is not allowed")
    if not request.query_params.get("api-version"):
        raise Refusal(400, "invalid_request", "Required query variable 'api-version' is missing")


def metadata_app(cloud: Cloud) -> Starlette:
    """Return the application, for plain HTTP on loopback. A machine's root is `/{vmId}`."""
    metadata = Metadata(cloud)
    root = "/{vm_id}/metadata"
    return Starlette(
        routes=[
            Route(f"{root}/identity/oauth2/token", metadata.endpoint(metadata.token), methods=["GET"]),
            Route(f"{root}/instance", metadata.endpoint(metadata.instance), methods=["GET"]),
            Route(f"{root}/instance/{{path:path}}", metadata.endpoint(metadata.instance), methods=["GET"]),
            Route(f"{root}/scheduledevents", metadata.endpoint(metadata.scheduled_events), methods=["GET", "POST"]),
        ]
    )
