"""Resource providers and their registration."""

from __future__ import annotations

from typing import Any

from gpuinfra.sandbox.catalogue.providers import NAMESPACES, namespace, provider_body
from gpuinfra.sandbox.kernel.call import Answer, Call
from gpuinfra.sandbox.kernel.cloud import Cloud, Effects
from gpuinfra.sandbox.kernel.errors import ArmError
from gpuinfra.sandbox.kernel.routes import SUBSCRIPTION, Routes
from gpuinfra.sandbox.services.common import require_subscription

routes = Routes()
effects = Effects()

_PROVIDER = f"{SUBSCRIPTION}/providers/{{namespace}}"


def registration(cloud: Cloud, name: str) -> str:
    """Registered, unless it was said to be otherwise."""
    return str(cloud.store.setting(f"provider:{name.lower()}", "Registered"))


def _body(call: Call) -> dict[str, Any]:
    require_subscription(call)
    found = namespace(call["namespace"])
    name = found.name if found else ""
    body = (
        provider_body(call.cloud.catalogue, name, call.cloud.subscription, registration(call.cloud, name))
        if found
        else None
    )
    if body is None:
        message = f"The resource namespace '{call['namespace']}' is invalid."
        raise ArmError(404, "InvalidResourceNamespace", message)
    return body


@routes.add("GET", f"{SUBSCRIPTION}/providers")
def list_providers(call: Call) -> Answer:
    """Every provider in the slice."""
    require_subscription(call)
    cloud = call.cloud
    value = [
        provider_body(cloud.catalogue, name, cloud.subscription, registration(cloud, name))
        for name in (each.name for each in NAMESPACES)
    ]
    return Answer(200, {"value": value})


@routes.add("GET", _PROVIDER)
def get_provider(call: Call) -> Answer:
    """One provider."""
    return Answer(200, _body(call))


@routes.add("POST", f"{_PROVIDER}/register")
def register(call: Call) -> Answer:
    """Begin to register; it takes a while."""
    body = _body(call)
    cloud, name = call.cloud, body["namespace"]
    if registration(cloud, name) != "Registered":
        cloud.store.set_setting(f"provider:{name.lower()}", "Registering")
        cloud.schedule(
            cloud.now + cloud.latency.seconds("provider-register"), "provider-registered", {"namespace": name}
        )
    return Answer(200, _body(call))


@effects.add("provider-registered")
def provider_registered(cloud: Cloud, payload: dict[str, Any]) -> None:
    """Registration is complete."""
    cloud.store.set_setting(f"provider:{payload['namespace'].lower()}", "Registered")


@routes.add("POST", f"{_PROVIDER}/unregister")
def unregister(call: Call) -> Answer:
    """Take the registration back."""
    body = _body(call)
    call.cloud.store.set_setting(f"provider:{body['namespace'].lower()}", "NotRegistered")
    return Answer(200, _body(call))
