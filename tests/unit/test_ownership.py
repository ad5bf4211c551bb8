"""Which resources are ours."""

from typing import Any

from gpuinfra.models.resource import Kind, Ref
from gpuinfra.provision import tags
from gpuinfra.provision.cloud import Observed, ObservedResource

GROUP, NAME = "bobs-group", "bob"


def observed(disk: str, interface: str, group: str = GROUP) -> Observed:
    properties: dict[str, Any] = {
        "storageProfile": {"osDisk": {"name": disk}},
        "networkProfile": {"networkInterfaces": [{"id": f"/x/{interface}"}]},
    }
    body = {"tags": {tags.NAME: NAME}, "properties": properties}
    return Observed(NAME, group, (ObservedResource(Ref(Kind.VM, group, NAME), body),))


def test_tagged_machine_of_others_is_not_ours_though_a_spec_names_it() -> None:
    found = observed("bob_OsDisk_1", "bobs-nic")
    assert found.machine is None
    assert found.untagged is not None, "so nothing is done to it"


def test_tagged_machine_with_our_parts_or_group_is_ours() -> None:
    assert observed("bob-disk", "bobs-nic").machine
    assert observed("bob_OsDisk_1", "bobs-nic", f"gpuinfra-{NAME}").machine
