"""How a machine can be reached in other ways than its spec allows."""

from typing import Any

import pytest

from gpuinfra.models.plan import Kind
from gpuinfra.models.spec import Spec
from gpuinfra.provision.exposure import Network, exposures
from gpuinfra.provision.observed_resource import ObservedResource
from tests.unit.provision_help import FakeCloud, made, ref, spec

FIXED = spec(network={"allow_ssh_from": ("203.0.113.7/32",)})
AUTO = spec()
OPEN = {"direction": "Inbound", "access": "Allow", "protocol": "*", "sourceAddressPrefix": "*"}


def found(cloud: FakeCloud, wanted: Spec | None) -> tuple[str, ...]:
    parts = {kind: ObservedResource(ref(kind), cloud.body(kind)) for kind in (Kind.VM, Kind.NIC, Kind.NSG)}
    return exposures(parts[Kind.VM], parts[Kind.NIC], parts[Kind.NSG], wanted)


def with_rule(name: str, rule: dict[str, Any]) -> FakeCloud:
    cloud = made(FIXED)
    cloud.body(Kind.NSG)["properties"]["securityRules"].append({"name": name, "properties": rule})
    return cloud


@pytest.mark.parametrize("wanted", [FIXED, None])
def test_machine_as_created_is_not_exposed(wanted: Spec | None) -> None:
    assert found(made(FIXED), wanted) == ()


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({**OPEN, "destinationPortRange": "*"}, "NSG rule odd opens every port to every address"),
        ({**OPEN, "sourceAddressPrefix": "Internet"}, "NSG rule odd opens every port to every address"),
        (
            {**OPEN, "sourceAddressPrefixes": ["10.0.0.1", "0.0.0.0/0"], "destinationPortRanges": ["80", "443"]},
            "NSG rule odd opens port 80, 443 to every address",
        ),
        (
            {**OPEN, "sourceAddressPrefix": "198.51.100.9", "destinationPortRange": "8888"},
            "NSG rule odd opens port 8888 to 198.51.100.9/32",
        ),
        ({**OPEN, "access": "Deny"}, "NSG rule odd was added"),
        ({**OPEN, "direction": "Outbound"}, "NSG rule odd was added"),
    ],
)
@pytest.mark.parametrize("wanted", [FIXED, None])
def test_added_rule_is_reported(rule: dict[str, Any], words: str, wanted: Spec | None) -> None:
    assert found(with_rule("odd", rule), wanted) == (words,)


@pytest.mark.parametrize(
    ("wanted", "sources", "words"),
    [
        (FIXED, ["203.0.113.7"], ()),
        (FIXED, ["*"], ("SSH is open to *", "SSH is closed to 203.0.113.7/32")),
        (FIXED, ["203.0.113.7/32", "10.0.0.0/8"], ("SSH is open to 10.0.0.0/8",)),
        (None, ["*"], ("SSH is open to every address",)),
        (None, ["10.0.0.0/8"], ()),
        (AUTO, ["198.51.100.9"], ()),
        (AUTO, ["198.51.100.9", "198.51.100.0/24"], ("SSH is open to 198.51.100.0/24",)),
        (AUTO, ["198.51.100.9", "198.51.100.10"], ("SSH is open to 198.51.100.9/32",)),
    ],
)
def test_other_sources_of_ssh_are_reported(wanted: Spec | None, sources: list[str], words: tuple[str, ...]) -> None:
    cloud = made(wanted or FIXED)
    (rule,) = cloud.body(Kind.NSG)["properties"]["securityRules"]
    rule["properties"]["sourceAddressPrefixes"] = sources
    assert found(cloud, wanted) == words


def test_sources_of_a_spec_that_changed_since_up_are_not_compared() -> None:
    assert found(made(FIXED), spec(network={"allow_ssh_from": ("10.0.0.0/8",)})) == ()


def test_changed_or_removed_rule_is_reported() -> None:
    cloud = made(FIXED)
    (rule,) = cloud.body(Kind.NSG)["properties"]["securityRules"]
    rule["properties"]["destinationPortRange"] = "*"
    assert found(cloud, FIXED) == ("NSG rule ssh was changed",)
    cloud.body(Kind.NSG)["properties"]["securityRules"] = []
    assert found(cloud, FIXED) == ("NSG rule ssh was removed",)


@pytest.mark.parametrize(
    ("group", "words"),
    [
        (None, ("its NIC has no NSG",)),
        ({"id": "/subscriptions/s/resourceGroups/g/providers/x/y/open"}, ("its NIC has another NSG, open",)),
    ],
)
def test_other_nsg_of_the_nic_is_reported(group: dict[str, str] | None, words: tuple[str, ...]) -> None:
    cloud = made(FIXED)
    cloud.body(Kind.NIC)["properties"]["networkSecurityGroup"] = group
    assert found(cloud, FIXED) == words


def test_network_finds_the_parts_of_a_machine_whatever_the_case() -> None:
    cloud = made(FIXED)
    cloud.body(Kind.NIC)["properties"].pop("networkSecurityGroup")
    place = f"/subscriptions/s/resourceGroups/{ref(Kind.NIC).group.upper()}/providers/x/y/"
    rows = {kind: [{**cloud.body(kind), "id": place + ref(kind).name.upper()}] for kind in (Kind.NIC, Kind.NSG)}
    machine = ObservedResource(ref(Kind.VM), cloud.body(Kind.VM))
    assert Network(rows).exposures(machine, FIXED) == ("its NIC has no NSG",)
    assert Network({}).exposures(machine, FIXED) == ()
