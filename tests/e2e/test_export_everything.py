"""`export --format arm` of specs with everything in them, for the real `az`."""

import json
import shlex
from typing import Any

import pytest

from tests.az import Az
from tests.e2e.azure import Azure
from tests.e2e.user import OTHER_REGION, REGION, SIZE, User
from tests.variants import variant, variants

GROUP = "my(group).x_y"
TAGS = {
    "[concat('a')]": "[parameters('location')]",
    "it's": "q\"u'o{te} ]",
    "é": "[[x]]",
    "half": "[half",
    "other half": "half]",
    "two": "[[",
    "turned": "][",
    "empty": "",
    "[]": "[]",
    " x ": " [x] ",
    "$schema": "${x} {{y}} {subscription}",
}


def everything(**more: Any) -> dict[str, Any]:
    return {
        "regions": [REGION, OTHER_REGION],
        "gpu": {"model": "T4", "count": 1},
        "zones": ["1", "2"],
        "priority": "spot",
        "spot": {"maxPrice": 0.98765},
        "resourceGroup": GROUP,
        "admin": {"username": "ada"},
        "network": {"allowSshFrom": ["203.0.113.7/32", "198.51.100.0/24"]},
        "disk": {"sizeGiB": 200, "sku": "Premium_LRS"},
        "target": {"type": "remote"},
        "lifecycle": {
            "afterRun": "keep",
            "lease": "23h59m",
            "idle": "30m",
            "hours": {"timezone": "America/Chicago", "on": "mon-fri 08:00-19:00"},
        },
        "tags": TAGS,
        **more,
    }


@variant
@pytest.mark.parametrize(
    "more",
    variants({}, {"lifecycle": {"lease": "2d"}, "zones": ["3"], "image": "canonical:ubuntu-24_04-lts:server:latest"}),
    ids=["all", "two days"],
)
def test_everything_in_a_spec_can_be_deployed(user: User, azure: Azure, az: Az, more: dict[str, Any]) -> None:
    user.spec("region", "size", **everything(**more))
    made = [user("export", "gpu.yaml", "--format", "arm").stdout for _ in range(2)]
    assert made[0] == made[1]
    (user.workspace / "m.json").write_text(made[0])
    az("group", "create", "--name", GROUP, "--location", REGION)
    file = str(user.workspace / "m.json")
    az("deployment", "group", "validate", "--resource-group", GROUP, "--template-file", file)
    az("deployment", "group", "create", "--resource-group", GROUP, "--template-file", file)
    done = user("plan", "gpu.yaml", "--detailed-exitcode")
    assert done.returncode == 0, done.stdout + done.stderr
    tags = az("vm", "show", "--resource-group", GROUP, "--name", "my-dsvm")["tags"]
    assert {name: tags.get(name) for name in TAGS} == TAGS


def test_suggested_commands_quote_the_group_name(user: User) -> None:
    user.spec(resourceGroup=GROUP)
    done = user("export", "gpu.yaml", "--format", "arm", "--output", "m.json")
    assert json.loads((user.workspace / "m.json").read_text())["parameters"]["vmSize"]["defaultValue"] == SIZE
    assert f"--name {shlex.quote(GROUP)} " in done.stderr


def test_tag_value_is_never_an_arm_expression(user: User) -> None:
    odd = "/subscriptions/{subscription}/resourceGroups/gpuinfra-my-dsvm/providers/a/b/c'), deployment('x"
    user.spec(tags={"odd": odd})
    template = json.loads(user("export", "gpu.yaml", "--format", "arm").stdout)
    assert {resource["tags"]["odd"] for resource in template["resources"]} == {odd}
