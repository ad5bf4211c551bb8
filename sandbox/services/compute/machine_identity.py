"""The managed identities of a machine."""

from __future__ import annotations

import uuid
from typing import Any

from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.errors import ArmError
from gpuinfra.sandbox.kernel.ids import key
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services.common import section
from gpuinfra.sandbox.services.compute.machine_errors import invalid_value

SYSTEM, USER = "SystemAssigned", "UserAssigned"


def apply_identity(cloud: Cloud, machine: Resource, body: dict[str, Any]) -> None:
    """Give the machine the identities of a body; where it says nothing, those it has stay."""
    if body.get("identity") is None:
        return
    given = section(body, "identity")
    kinds = _kinds(given.get("type"))
    present = section(machine.body, "identity")
    shown: dict[str, Any] = {"type": ", ".join(kinds)}
    if SYSTEM in kinds:
        machine.hidden.setdefault("principalId", str(uuid.uuid4()))
        machine.hidden.setdefault("clientId", str(uuid.uuid4()))
        shown |= {"principalId": machine.hidden["principalId"], "tenantId": cloud.tenant}
    else:
        machine.hidden.pop("principalId", None)
        machine.hidden.pop("clientId", None)
    if USER in kinds:
        shown["userAssignedIdentities"] = _assigned(cloud, machine, present, given)
    if kinds:
        machine.body["identity"] = shown
    else:
        machine.body.pop("identity", None)


def _kinds(value: Any) -> list[str]:
    if not isinstance(value, str):
        raise invalid_value("identity.type")
    named = {part.strip().lower() for part in value.split(",")}
    kinds = [kind for kind in (SYSTEM, USER) if kind.lower() in named]
    if named - {kind.lower() for kind in kinds} and named != {"none"}:
        raise invalid_value("identity.type")
    return kinds


def _assigned(cloud: Cloud, machine: Resource, present: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Those there are and those given; null takes one away."""
    wanted = {key(name): name for name in section(present, "userAssignedIdentities")}
    for name, value in section(given, "userAssignedIdentities").items():
        if value is None:
            wanted.pop(key(name), None)
        elif not isinstance(value, dict):
            raise invalid_value("identity.userAssignedIdentities")
        else:
            wanted.setdefault(key(name), name)
    if not wanted:
        raise invalid_value("identity.userAssignedIdentities")
    return {name: _ids(cloud, machine, name) for name in wanted.values()}


def _ids(cloud: Cloud, machine: Resource, identity_id: str) -> dict[str, str]:
    identity = cloud.store.get(identity_id)
    if identity is None or identity.type.lower() != "microsoft.managedidentity/userassignedidentities":
        raise ArmError(
            400,
            "FailedIdentityOperation",
            f"Identity operation for resource '{machine.id}' failed with error 'Failed to perform resource identity "
            f"operation. Status: 'BadRequest'. The identity '{identity_id}' was not found.'.",
        )
    return {name: identity.properties[name] for name in ("principalId", "clientId") if name in identity.properties}
