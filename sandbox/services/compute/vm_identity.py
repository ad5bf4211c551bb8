"""The managed identities of a VM."""

import uuid
from typing import Any

from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.errors import ArmError
from gpuinfra.sandbox.kernel.routes import key
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services.common import section
from gpuinfra.sandbox.services.compute.fields import invalid_value

SYSTEM, USER = "SystemAssigned", "UserAssigned"


def apply_identity(cloud: Cloud, vm: Resource, body: dict[str, Any]) -> None:
    """Give the VM the identities in a body; without `identity`, the VM keeps those it has."""
    if body.get("identity") is None:
        return
    given = section(body, "identity")
    kinds = _kinds(given.get("type"))
    present = section(vm.body, "identity")
    shown: dict[str, Any] = {"type": ", ".join(kinds)}
    if SYSTEM in kinds:
        vm.hidden.setdefault("principalId", str(uuid.uuid4()))
        vm.hidden.setdefault("clientId", str(uuid.uuid4()))
        shown |= {"principalId": vm.hidden["principalId"], "tenantId": cloud.tenant}
    else:
        vm.hidden.pop("principalId", None)
        vm.hidden.pop("clientId", None)
    if USER in kinds:
        shown["userAssignedIdentities"] = _assigned(cloud, vm, present, given)
    if kinds:
        vm.body["identity"] = shown
    else:
        vm.body.pop("identity", None)


def _kinds(value: Any) -> list[str]:
    if not isinstance(value, str):
        raise invalid_value("identity.type")
    named = {part.strip().lower() for part in value.split(",")}
    kinds = [kind for kind in (SYSTEM, USER) if kind.lower() in named]
    if named - {kind.lower() for kind in kinds} and named != {"none"}:
        raise invalid_value("identity.type")
    return kinds


def _assigned(cloud: Cloud, vm: Resource, present: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Merge present and given identities; null removes one."""
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
    return {name: _ids(cloud, vm, name) for name in wanted.values()}


def _ids(cloud: Cloud, vm: Resource, identity_id: str) -> dict[str, str]:
    identity = cloud.store.get(identity_id)
    if identity is None or identity.type.lower() != "microsoft.managedidentity/userassignedidentities":
        raise ArmError(
            400,
            "FailedIdentityOperation",
            f"Identity operation for resource '{vm.id}' failed with error 'Failed to perform resource identity "
            f"operation. Status: 'BadRequest'. The identity '{identity_id}' was not found.'.",
        )
    return {name: identity.properties[name] for name in ("principalId", "clientId") if name in identity.properties}
