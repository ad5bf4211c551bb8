"""Security types of machines: what Azure accepts when a machine is created, and what can be changed later."""

from typing import Any

import pytest

from tests.integration.sandbox.machine_help import GENERATION_1, Place, error_of, settings

SECURITY = "properties.securityProfile"
TRUSTED = {"securityType": "TrustedLaunch", "uefiSettings": {"secureBootEnabled": False, "vTpmEnabled": True}}
STANDARD = {"securityType": "Standard"}


def test_vm_and_disk_show_trusted_launch(place: Place) -> None:
    machine: Any = place.make("m", securityProfile=TRUSTED)
    assert machine.security_profile.as_dict() == TRUSTED
    disk: Any = place.disks.get(place.group, machine.storage_profile.os_disk.name)
    assert disk.security_profile.security_type == "TrustedLaunch"


def test_trusted_launch_requires_a_generation_2_image(place: Place) -> None:
    body = settings(place.body("m"), "properties.storageProfile.imageReference", GENERATION_1)
    error = place.refused("m", settings(body, SECURITY, TRUSTED), "BadRequest")
    assert "Use of TrustedLaunch setting is not supported" in error_of(error).message


def test_unknown_security_type_is_refused(place: Place) -> None:
    place.refused("m", settings(place.body("m"), f"{SECURITY}.securityType", "Odd"), "InvalidParameter")


@pytest.mark.parametrize("deallocated", [True, False])
def test_deallocated_vm_can_get_trusted_launch(place: Place, deallocated: bool) -> None:
    place.make("m", securityProfile=STANDARD)
    changed = settings(place.body("m"), SECURITY, TRUSTED)
    if not deallocated:
        place.refused("m", changed, "OperationNotAllowed")
        return
    place.machines.begin_deallocate(place.group, "m").result()
    machine: Any = place.put("m", changed)
    assert machine.security_profile.security_type == "TrustedLaunch"


def test_trusted_launch_cannot_be_removed(place: Place) -> None:
    place.make("m", securityProfile=TRUSTED)
    place.machines.begin_deallocate(place.group, "m").result()
    place.refused("m", settings(place.body("m"), SECURITY, STANDARD), "PropertyChangeNotAllowed")
