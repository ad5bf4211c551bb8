"""Custom data of a machine that is deployed from an exported template."""

import base64
import json

from tests.e2e.user import User


def test_admin_of_an_exported_machine_can_use_docker(user: User) -> None:
    user.spec(admin={"username": "ada"})
    template = json.loads(user("export", "gpu.yaml", "--format", "arm").stdout)
    (machine,) = [each for each in template["resources"] if each["type"].endswith("/virtualMachines")]
    text = base64.b64decode(machine["properties"]["osProfile"]["customData"]).decode()
    head, _, config = text.partition("\n")
    assert head == "#cloud-config"
    assert any("usermod -aG docker ada" in str(each) for each in json.loads(config)["runcmd"])
    assert "PRIVATE KEY" not in text
    assert "ssh_keys" not in text
