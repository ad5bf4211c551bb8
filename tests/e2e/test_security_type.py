"""`securityType` of a spec: the created machine, the effect of a change, and refusals."""

import json

import pytest

from tests.e2e.user import User
from tests.variants import variant, variants

TRUSTED = {"securityType": "TrustedLaunch", "uefiSettings": {"secureBootEnabled": False, "vTpmEnabled": True}}


def test_a_trusted_launch_machine_has_a_working_gpu(user: User) -> None:
    user.spec(securityType="TrustedLaunch")
    assert user.up()["gpu"]["models"]
    assert user.azure.machine()["properties"]["securityProfile"] == TRUSTED
    assert user.plan()["summary"] == {"add": 0, "change": 0, "replace": 0, "destroy": 0}


@variant
@pytest.mark.parametrize(("old", "new"), variants(("Standard", "TrustedLaunch"), ("TrustedLaunch", "Standard")))
def test_another_security_type_replaces_the_machine(user: User, old: str, new: str) -> None:
    user.spec(securityType=old)
    user.up()
    before = user.azure.machine()["properties"]["vmId"]
    user.spec(securityType=new)
    done = user("plan", "gpu.yaml")
    assert f"{old} -> {new}" in done.stdout.replace("→", "->"), done.stdout
    assert "forces replacement" in done.stdout
    user.up("--yes")
    after = user.azure.machine()["properties"]
    assert after["vmId"] != before
    assert after["securityProfile"]["securityType"] == new


def test_an_image_without_trusted_launch_is_refused_before_anything_is_created(user: User) -> None:
    user.spec(securityType="TrustedLaunch", image="microsoft-dsvm:ubuntu-2204:2204:latest")
    problem = user.fails("up", "gpu.yaml", code="no-candidate")
    assert "image-security" in problem["note"]
    assert "does not support Trusted Launch" in problem["note"]
    assert "nothing was created" in problem["note"]


def test_an_exported_template_has_the_security_type(user: User) -> None:
    user.spec(securityType="TrustedLaunch")
    user.does("export", "my-dsvm", "--format", "arm", "--output", "machine.json")
    resources = json.loads((user.workspace / "machine.json").read_text())["resources"]
    (machine,) = [each for each in resources if each["type"] == "Microsoft.Compute/virtualMachines"]
    assert machine["properties"]["securityProfile"] == TRUSTED
