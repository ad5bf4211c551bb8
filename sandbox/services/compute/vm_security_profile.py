"""Security types: Standard, and Trusted Launch with its firmware settings."""

from typing import Any

from gpuinfra.sandbox.kernel.call import Call
from gpuinfra.sandbox.kernel.errors import ArmError
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services.common import section
from gpuinfra.sandbox.services.compute.fields import change_not_allowed, choice, not_allowed

TRUSTED = "TrustedLaunch"
_NAME = "securityProfile"
_TYPES = ("Standard", TRUSTED, "ConfidentialVM")


def new_security(
    call: Call, vm_id: str, location: str, properties: dict[str, Any], generation: str, *, from_image: bool
) -> dict[str, Any]:
    """Return a new VM's security profile as Azure shows it. The fault `trusted-launch` makes that the default."""
    by_default = call.cloud.faults.look("trusted-launch", resource_id=vm_id, region=location)
    profile = _read(properties)
    if _type(profile) == TRUSTED:
        _check_generation(generation)
    if profile is not None:
        return {_NAME: profile}
    if not by_default or not from_image or generation != "V2":
        return {}
    return {_NAME: {"securityType": TRUSTED, "uefiSettings": {"secureBootEnabled": True, "vTpmEnabled": True}}}


def change_security(vm: Resource, properties: dict[str, Any], *, is_deallocated: bool) -> None:
    """Apply a body's security profile. A deallocated VM can get Trusted Launch; no VM can lose it."""
    given = _read(properties)
    if given is None:
        return
    present = section(vm.properties, _NAME)
    profile = {**present, **given}
    if _type(profile) != _type(present):
        if _type(profile) != TRUSTED or _type(present) != "Standard":
            raise change_not_allowed("securityProfile.securityType")
        _check_generation(vm.hidden.get("generation", "V1"))
        if not is_deallocated:
            raise not_allowed(
                f"The security type of the VM '{vm.name}' can be changed only while it is deallocated.",
                "securityProfile.securityType",
            )
    vm.properties[_NAME] = profile


def has_trusted_launch(vm: Resource) -> bool:
    """Whether the VM, and so its OS disk, has Trusted Launch."""
    return _type(section(vm.properties, _NAME)) == TRUSTED


def boots_securely(vm: Resource) -> bool:
    """Whether the VM refuses unsigned drivers, such as NVIDIA's in the Data Science VM."""
    settings = section(section(vm.properties, _NAME), "uefiSettings")
    return bool(settings.get("secureBootEnabled"))


def _read(properties: dict[str, Any]) -> dict[str, Any] | None:
    if properties.get(_NAME) is None:
        return None
    profile = section(properties, _NAME)
    kind = choice(profile.get("securityType"), "securityProfile.securityType", _TYPES)
    section(profile, "uefiSettings")
    return {**profile, "securityType": kind} if kind else profile


def _type(profile: dict[str, Any] | None) -> str:
    return (profile or {}).get("securityType") or "Standard"


def _check_generation(generation: str) -> None:
    if generation != "V2":
        raise ArmError(
            400,
            "BadRequest",
            "Use of TrustedLaunch setting is not supported for the provided image. Please select Trusted Launch "
            "Supported Gen2 OS Image. For more information, see https://aka.ms/TrustedLaunch-FAQ.",
        )
